// The candidate table of one layer for people, from the JSON of perch_model_explain.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>

namespace perch_command {

void print_selection(const nlohmann::ordered_json& layer, std::ostream& out);

}  // namespace perch_command
