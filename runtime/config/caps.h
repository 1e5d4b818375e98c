// The names of capabilities (PERCH_CAP_*), as YAML, options and messages spell them. Not what they
// promise: that is perch/base.h.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "perch/base.h"

namespace perch {

// "DETERMINISTIC", "BATCH_INVARIANT", ...: entry i names bit i.
std::span<const std::string_view> cap_names();
// Any mix of upper and lower case.
std::optional<perch_caps> cap_from_name(std::string_view name);
// In order of their bits. Bits without a name are left out.
std::vector<std::string_view> names_of_caps(perch_caps caps);

}  // namespace perch
