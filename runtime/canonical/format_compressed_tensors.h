// The quantization_config of compressed-tensors: which scheme a module has.
//
// Shared by the formats of that package (pack-quantized now). Matching: a target or ignore string
// is the module's name, "re:" plus a pattern anchored at the start, or the class name Linear (every
// linear, experts too). Exact beats pattern beats class; ignore beats all.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "perch/layer.h"

namespace perch {

struct CompressedScheme {
  std::string group;   // the config group's name, for messages
  std::string format;  // "pack-quantized"
  int64_t bits = 0;
  std::string type;  // "int" or "float"
  bool symmetric = true;
  std::string strategy;  // "tensor" "channel" "group" "block" "tensor_group"
  int64_t group_size = 0;
  bool actorder = false;  // weight_g_idx is stored
  perch_act_quant act{};
};

Result<CompressedScheme> find_compressed_scheme(const nlohmann::json& quantization,
                                                const std::string& module);

}  // namespace perch
