// A Selection as JSON: the document of perch_select, perch_layer_explain and `perch explain`.
#pragma once

#include <nlohmann/json.hpp>

#include "select/candidate.h"

namespace perch {

// {"layer","kind","recipe","device","require","rule","notes","chosen","fallback",
// "candidates":[...]}
nlohmann::ordered_json selection_json(const Selection& selection);

}  // namespace perch
