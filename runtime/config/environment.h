// What stands above the YAML file: environment variables, and above them options of the command and
// the API. The last part of making a Config in step 1.
//
// Precedence: option > environment > file > default; backend paths are the exception, for they add
// up: those of options are searched first, then the file's, then the environment's, then the one
// built in. Call order makes it so: parse_config, apply_environment, apply_option. Nothing here
// reads the environment: the caller does (secure_getenv), so tests need none.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "config/config.h"

namespace perch {

// PERCH_BACKEND_PATH, PERCH_LOG, PERCH_THREADS, PERCH_VALIDATE: there are no others.
std::span<const std::string_view> environment_variables();

// `entries` as in environ, "NAME=value". Refuses a PERCH_ name that is none of the four, with the
// nearest: a variable without effect is worse than an error.
Status check_environment(const std::vector<std::string>& entries);

// Lays variables over the config. Other names than the four are refused, as is a value that is not
// wanted, also the empty one; the config is then as it was.
Status apply_environment(Config& config,
                         const std::vector<std::pair<std::string, std::string>>& variables);

// Lays one option over the config. `setting`: "backend_path", "log", "threads", "validate", all
// with the values of the variables, or "backend": a comma-separated list of ids in place of every
// rule's `use`, or "auto" for any. `origin` is what the dump shows: "option --threads".
Status apply_option(Config& config, std::string_view setting, std::string_view value,
                    const std::string& origin);

}  // namespace perch
