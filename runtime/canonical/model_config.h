// ModelConfig: what config.json says about a model's MoE layers, in plain fields.
//
// Step 3 of the data flow begins here. Keys are looked up in text_config first where there is one
// (multimodal models), then at the top level. Not here: which tensors exist (layout.h) and how they
// are quantized (scheme.h).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace perch {

struct ModelConfig {
  std::string model_type;            // of text_config where the file's own is not known
  std::string transformers_version;  // "" when absent
  nlohmann::json text;               // text_config, or the whole document
  nlohmann::json quantization;       // as scheme.h reads it; null when absent
  std::string quantization_where;    // "config.json: quantization_config": its file and key
  uint32_t dtype = 0;                // PERCH_TYPE_* of torch_dtype or dtype; bf16 when absent
  std::optional<int64_t> hidden;
  std::optional<int64_t> latent;  // moe_latent_size: the experts' hidden size where there is one
  std::optional<int64_t> num_experts;
  std::optional<int64_t> topk;
  std::optional<int64_t> intermediate;  // of one routed expert
  std::string activation;               // as written: "silu", "gelu_pytorch_tanh"
  std::optional<double> activation_limit;
  bool by_layer = false;  // the last four and num_experts are not all the same for every layer
};

// A value that differs between layers is left out here. `extra_json` as in Checkpoint: the
// quantization configs beside config.json, by file name. They are looked into only where
// config.json has none.
Result<ModelConfig> parse_model_config(const std::string& json_text,
                                       const std::map<std::string, std::string>& extra_json);

// The configuration of one layer: values given as a list are those of the layer number in its name.
Result<ModelConfig> config_of_layer(const ModelConfig& config, const std::string& layer);

// Integer, real or boolean under `key` of config.text, nullopt where absent or null.
std::optional<int64_t> config_int(const ModelConfig& config, const char* key);
std::optional<double> config_real(const ModelConfig& config, const char* key);
std::optional<bool> config_bool(const ModelConfig& config, const char* key);

}  // namespace perch
