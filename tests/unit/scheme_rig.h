// A configuration and a module in, one line out: the scheme in short, or the error.
//   "pack-quantized int4 g128 z idx | int8 token"
// format, code (asymmetric: z; GPTQ v1: z-1), scale (t c g<K> b<N>x<K>, ? where not said), stored
// order (idx), and the input (none; or dtype, mode with group, and scale where it is not f32).
#pragma once

#include <map>
#include <string>

#include "base/layer_config.h"
#include "canonical/model_config.h"
#include "canonical/scheme.h"

namespace perch::scheme_rig {

inline std::string print_act(const perch_act_quant& act) {
  if (act.mode == PERCH_ACT_NONE) return "none";
  static const char* const kModes[] = {"", "none", "token", "group", "static", "static group"};
  std::string text = std::string(type_name(act.dtype)) + " " + kModes[act.mode];
  if (act.group > 0) text += " " + std::to_string(act.group);
  if (act.scale_dtype != PERCH_TYPE_F32) text += std::string(" ") + type_name(act.scale_dtype);
  return text;
}

inline std::string print(const Scheme& scheme) {
  if (scheme.unstated) return "unstated";
  if (!scheme.quantized) return "plain";
  std::string text = scheme.format.empty() ? "" : scheme.format + " ";
  text += (scheme.is_float ? "float" : "int") + std::to_string(scheme.bits);
  switch (scheme.strategy) {
    case Strategy::kUnstated:
      text += " ?";
      break;
    case Strategy::kTensor:
      text += " t";
      break;
    case Strategy::kChannel:
      text += " c";
      break;
    case Strategy::kGroup:
      text += scheme.group == 0 ? " g?" : " g" + std::to_string(scheme.group);
      break;
    case Strategy::kBlock:
      text += " b" + std::to_string(scheme.block_n) + "x" + std::to_string(scheme.block_k);
      break;
  }
  if (!scheme.symmetric) text += " z";
  if (scheme.zeros_less_one) text += "-1";
  if (scheme.act_order) text += " idx";
  return text + " | " + print_act(scheme.act);
}

using Files = std::map<std::string, std::string>;

inline Result<Scheme> scheme_of(const std::string& config_json, const Files& extra,
                                const std::string& module) {
  const Result<ModelConfig> config = parse_model_config(config_json, extra);
  if (!config.ok()) return config.status();
  return find_scheme(*config, module);
}

inline std::string line(const std::string& config_json, const Files& extra,
                        const std::string& module) {
  const Result<Scheme> scheme = scheme_of(config_json, extra, module);
  return scheme.ok() ? print(*scheme) : scheme.status().message();
}

// Of config.json's quantization_config alone.
inline std::string line(const std::string& quantization, const std::string& module) {
  return line(R"({"quantization_config": )" + quantization + "}", {}, module);
}

}  // namespace perch::scheme_rig
