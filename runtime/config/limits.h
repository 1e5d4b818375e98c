// Values that YAML, environment and options agree on. Inside step 1, config.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "perch/base.h"

namespace perch {

// More than any machine we know has cores; a larger number is a typing error.
constexpr int32_t kThreadsMax = 4096;

// Comparing all rules with all others, and globs with names, stays a matter of milliseconds.
constexpr size_t kRulesMax = 1000;
constexpr size_t kTextBytesMax = 4096;

constexpr std::array<std::string_view, 4> kLogLevelNames = {"debug", "info", "warn", "error"};
constexpr std::array<int32_t, 4> kLogLevels = {PERCH_LOG_DEBUG, PERCH_LOG_INFO, PERCH_LOG_WARN,
                                               PERCH_LOG_ERROR};

}  // namespace perch
