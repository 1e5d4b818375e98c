// One item of select.rules, and the values that the defaults and rules share. Inside step 1,
// config; used by yaml_reader.cc only.
#pragma once

#include "base/status.h"
#include "config/config.h"
#include "config/yaml_value.h"

namespace perch {

Result<Rule> read_rule(const YamlValue& value);
// `error` or `allow`.
Result<bool> read_fallback(const YamlValue& value);
// `error` or `next`.
Result<bool> read_on_prepare_error(const YamlValue& value);

}  // namespace perch
