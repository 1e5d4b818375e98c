// The effective config as JSON: every value with where it came from. In perch_runtime_report and
// `perch explain`; the last word of step 1 on "did my setting have an effect?".
#pragma once

#include <string>

#include "config/config.h"

namespace perch {

// One document. A value is {"value":...,"origin":"perch.yaml:12:7"}; a rule stands as it is
// together with what the defaults add to it, its own place is "origin". Also "precedence",
// "overridden" (what environment and options replaced) and "warnings" (rules never reached). Keys
// are added, never renamed. Bytes of values that are not UTF-8 become U+FFFD.
std::string effective_config_json(const Config& config);

}  // namespace perch
