// YAML text -> Config: the schema (configs/README.md shows it as a table). Step 1 starts here.
//
// Strict, because a setting without effect is worse than an error: unknown keys, keys given twice,
// wrong types, wrong words and text that looks like a boolean are refused with file, line, column
// and the nearest known name. Not the place for environment variables and options, which are laid
// over the result (environment.h).
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "config/config.h"

namespace perch {

// `path` is the name of the file in messages and origins; it is not opened. Values that the text
// does not set are the defaults of config.h. INVALID_ARGUMENT for whatever the text has wrong; one
// error, the first in the file (a missing or other version before all).
Result<Config> parse_config(std::string_view text, const std::string& path);

// The same for a file: NOT_FOUND where it cannot be opened or read.
Result<Config> load_config(const std::string& path);

}  // namespace perch
