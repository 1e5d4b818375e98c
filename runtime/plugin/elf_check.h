// What a file is, before the dynamic linker maps it: a plain message instead of dlerror's, and no
// SIGBUS from a file that ends too early.
//
// Not a full validator: sections, symbols and relocations stay the dynamic linker's business.
#pragma once

#include <string>

#include "base/status.h"

namespace perch {

struct ElfFacts {
  std::string build_id;  // the GNU build id in hex; "" where there is none
};

// Refuses what is not a whole shared library for this machine. Messages carry no path: who knows
// which name the user gave puts it in front.
Result<ElfFacts> check_elf(const std::string& path);

}  // namespace perch
