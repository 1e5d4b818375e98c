#include "canonical/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "canonical/model_types.h"
#include "perch/layer.h"

namespace perch {
namespace {

using nlohmann::json;

const json* find(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

constexpr int64_t kNoLayer = -1;

// What `key` says of layer `layer`, null when it does not say. One value holds for all layers, and
// so does a list of equal ones; any other list has an entry for each layer, and `by_layer` is set.
Result<const json*> find_value(const json& text, const char* key, int64_t layer, bool* by_layer) {
  const json* value = find(text, key);
  if (value == nullptr || !value->is_array() || value->empty()) return value;
  const bool equal =
      std::all_of(value->begin(), value->end(), [&](const json& v) { return v == value->front(); });
  if (equal) return &value->front();
  *by_layer = true;
  if (layer == kNoLayer) return nullptr;
  if (layer < static_cast<int64_t>(value->size())) return &(*value)[static_cast<size_t>(layer)];
  return invalid_argument(
      fmt::format("config.json: {}: got a list of {}; want an entry for layer {} too", key,
                  value->size(), layer));
}

// The first of `keys` that is there, as a size. Keys in the order in which tools look for them.
template <size_t n>
Result<std::optional<int64_t>> find_size(const json& text, const std::array<const char*, n>& keys,
                                         int64_t layer, bool* by_layer, int64_t min = 1) {
  for (const char* key : keys) {
    PERCH_ASSIGN_OR_RETURN(const json* value, find_value(text, key, layer, by_layer));
    if (value == nullptr) continue;
    if (!value->is_number_integer() || value->get<int64_t>() < min ||
        value->get<int64_t>() > std::numeric_limits<int32_t>::max()) {
      return invalid_argument(
          fmt::format("config.json: {}: got {}; want a positive integer", key, value->dump()));
    }
    if (value->get<int64_t>() == 0) continue;
    return std::optional<int64_t>(value->get<int64_t>());
  }
  return std::optional<int64_t>();
}

// Values that may differ between layers.
Status read_layer_values(int64_t layer, ModelConfig* config) {
  constexpr std::array kExperts = {"num_local_experts", "moe_num_experts", "num_experts",
                                   "n_routed_experts"};
  constexpr std::array kTopk = {
      "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "moe_topk",
      "experts_per_token",   "top_k_experts",
  };
  constexpr std::array kIntermediate = {"moe_intermediate_size", "expert_ffn_hidden_size",
                                        "intermediate_size"};
  const json& text = config->text;
  bool* by_layer = &config->by_layer;
  // granitemoehybrid writes 0 experts where it has none.
  PERCH_ASSIGN_OR_RETURN(config->num_experts, find_size(text, kExperts, layer, by_layer, 0));
  PERCH_ASSIGN_OR_RETURN(config->topk, find_size(text, kTopk, layer, by_layer, 0));
  PERCH_ASSIGN_OR_RETURN(config->intermediate, find_size(text, kIntermediate, layer, by_layer));
  config->activation_limit = config_real(*config, "swiglu_limit");
  PERCH_ASSIGN_OR_RETURN(const json* limit, find_value(text, "swiglu_limits", layer, by_layer));
  // A limit of 0 is none, as the models' code has it.
  if (limit != nullptr && limit->is_number() && limit->get<double>() != 0.0) {
    config->activation_limit = limit->get<double>();
  }
  return {};
}

// 3 of "model.layers.3.mlp.experts"; kNoLayer for a name without, or of a module that counts its
// layers apart.
int64_t layer_number(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string::npos || name.find("mtp") != std::string::npos) return kNoLayer;
  const size_t begin = at + kLayers.size();
  const size_t end = std::min(name.find_first_not_of("0123456789", begin), name.size());
  if (end == begin || end - begin > 6) return kNoLayer;
  return std::stol(name.substr(begin, end - begin));
}

Result<uint32_t> parse_dtype(const json& text, const json& root) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (const json* object : {&text, &root}) {
      const json* value = find(*object, key);
      if (value == nullptr || !value->is_string()) continue;
      const std::string name = value->get<std::string>();
      if (name == "bfloat16") return PERCH_TYPE_BF16;
      if (name == "float16") return PERCH_TYPE_F16;
      if (name == "float32") return PERCH_TYPE_F32;
      return invalid_argument(
          fmt::format("config.json: {}: got \"{}\"; want bfloat16, float16 or float32", key, name));
    }
  }
  return PERCH_TYPE_BF16;
}

// Nested values are walked by recursion, so their depth is bounded before they are parsed.
constexpr int kDepthMax = 127;

int nesting_depth(const std::string& text) {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && (text[i] == '{' || text[i] == '[')) {
      deepest = std::max(deepest, ++depth);
    } else if (!quoted && (text[i] == '}' || text[i] == ']')) {
      --depth;
    }
  }
  return deepest;
}

std::string string_of(const json& object, const char* key) {
  const json* value = find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

Result<json> parse_object(const std::string& file, const std::string& text, const char* want) {
  if (nesting_depth(text) > kDepthMax) {
    return invalid_argument(
        fmt::format("{}: got values nested deeper than {}; want at most that", file, kDepthMax));
  }
  json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) {
    return invalid_argument(
        fmt::format("{}: got text that is not a JSON object; want {}", file, want));
  }
  return root;
}

// The first that is there of: config.json's keys; modelopt's file; the files of old GPTQ and AWQ
// tools, which have their keys at the top level.
Status find_quantization(const json& root, const std::map<std::string, std::string>& extra_json,
                         ModelConfig* config) {
  const json* text_config = find(root, "text_config");
  for (const json* object : {&root, text_config}) {
    if (object == nullptr || !object->is_object()) continue;
    for (const char* key : {"quantization_config", "compression_config"}) {
      const json* value = find(*object, key);
      if (value == nullptr) continue;
      config->quantization = *value;
      config->quantization_where =
          fmt::format("config.json: {}{}", object == &root ? "" : "text_config.", key);
      // DeepSeek-V4 says beside it which of its fp8 experts are fp4.
      const json* experts = find(config->text, "expert_dtype");
      if (experts != nullptr && value->is_object() && !value->contains("expert_dtype")) {
        config->quantization["expert_dtype"] = *experts;
      }
      return {};
    }
  }
  for (const char* file : {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}) {
    const auto found = extra_json.find(file);
    if (found == extra_json.end()) continue;
    PERCH_ASSIGN_OR_RETURN(json extra, parse_object(file, found->second,
                                                    "a quantization config as its tool writes it"));
    config->quantization_where = file;
    if (found->first != "hf_quant_config.json") {
      config->quantization = std::move(extra);
      return {};
    }
    const json* inner = find(extra, "quantization");
    if (inner == nullptr || !inner->is_object()) {
      return invalid_argument(
          fmt::format("{}: quantization: got {}; want an object with quant_algo", file,
                      inner == nullptr ? "nothing" : inner->type_name()));
    }
    config->quantization = *inner;
    config->quantization_where += ": quantization";
    if (const json* producer = find(extra, "producer")) {
      config->quantization.emplace("producer", *producer);
    }
    return {};
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& json_text,
                                       const std::map<std::string, std::string>& extra_json) {
  if (json_text.empty()) {
    return invalid_argument(
        "config.json: missing; want the checkpoint's directory, with the "
        "model's config beside its weights");
  }
  PERCH_ASSIGN_OR_RETURN(
      const json root,
      parse_object("config.json", json_text, "the model's config as save_pretrained writes it"));
  ModelConfig config;
  const json* nested = find(root, "text_config");
  config.text = nested != nullptr && nested->is_object() ? *nested : root;
  config.model_type = string_of(root, "model_type");
  const std::string text_type = string_of(config.text, "model_type");
  if (find_model_type(config.model_type).model_type.empty() && !text_type.empty()) {
    config.model_type = text_type;
  }
  config.transformers_version = string_of(root, "transformers_version");
  PERCH_RETURN_IF_ERROR(find_quantization(root, extra_json, &config));
  PERCH_ASSIGN_OR_RETURN(config.dtype, parse_dtype(config.text, root));

  constexpr std::array kHidden = {"hidden_size", "d_model"};
  constexpr std::array kLatent = {"moe_latent_size"};
  bool ignored = false;
  PERCH_ASSIGN_OR_RETURN(config.hidden, find_size(config.text, kHidden, kNoLayer, &ignored));
  PERCH_ASSIGN_OR_RETURN(config.latent, find_size(config.text, kLatent, kNoLayer, &ignored));
  PERCH_RETURN_IF_ERROR(read_layer_values(kNoLayer, &config));
  for (const char* key : {"mlp_hidden_act", "hidden_act", "hidden_activation"}) {
    if (config.activation.empty()) config.activation = string_of(config.text, key);
  }
  return config;
}

Result<ModelConfig> config_of_layer(const ModelConfig& config, const std::string& layer) {
  ModelConfig own = config;
  PERCH_RETURN_IF_ERROR(read_layer_values(layer_number(layer), &own));
  return own;
}

std::optional<int64_t> config_int(const ModelConfig& config, const char* key) {
  const json* value = find(config.text, key);
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  return value->get<int64_t>();
}

std::optional<double> config_real(const ModelConfig& config, const char* key) {
  const json* value = find(config.text, key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

std::optional<bool> config_bool(const ModelConfig& config, const char* key) {
  const json* value = find(config.text, key);
  if (value == nullptr || !value->is_boolean()) return std::nullopt;
  return value->get<bool>();
}

}  // namespace perch
