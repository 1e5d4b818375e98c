// The rule for extension chains, for every struct of a caller that has one.
#pragma once

#include <string>

#include "base/status.h"
#include "perch/base.h"

namespace perch {

// This runtime knows no extension yet: one that must be understood is UNSUPPORTED, with its number;
// others are skipped. A chain of more than 64 links is taken for a loop.
inline Status check_extensions(const perch_ext* next, const char* where) {
  int links = 0;
  for (const perch_ext* ext = next; ext != nullptr; ext = ext->next) {
    if ((ext->flags & PERCH_EXT_MUST_UNDERSTAND) != 0) {
      return unsupported(std::string(where) + ": extension " + std::to_string(ext->type) +
                         ": must be understood, and is not known to this runtime");
    }
    if (++links > 64) {
      return invalid_argument(std::string(where) + ": extensions: got more than 64 in a chain; " +
                              "want a chain that ends");
    }
  }
  return {};
}

}  // namespace perch
