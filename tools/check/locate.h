// From a backend's id, or a file, to a library that the runtime has loaded and so has verified.
#pragma once

#include <string>

#include "command.h"

namespace perch_check {

struct Located {
  std::string path;  // absolute
  std::string id;
};

// As a shell takes it: quoted where it has to be.
std::string shell_quoted(const std::string& text);

// Asks a runtime in a child process: this one stays free of backends. Throws perch_command::Failure
// with the loader's reason, or the nearest ids.
// `option`: what the message calls the id or the file.
Located locate_backend(const perch_command::CommonOptions& common, const std::string& id,
                       const std::string& option = "--backend");
Located locate_plugin(const perch_command::CommonOptions& common, const std::string& file,
                      const std::string& option = "--plugin");

}  // namespace perch_check
