// One check, run here and now: its outcome as a value, whatever it throws.
#pragma once

#include <nlohmann/json.hpp>

#include "check/isolate.h"

namespace perch_check {

CheckResult run_check(const std::string& name, Context* context);

// Across a pipe.
nlohmann::json to_json(const CheckResult& result);
CheckResult result_from_json(const nlohmann::json& json);

}  // namespace perch_check
