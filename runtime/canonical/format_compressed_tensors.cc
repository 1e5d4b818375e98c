#include "canonical/format_compressed_tensors.h"

#include <fmt/format.h>

#include <regex>

#include "base/layer_config.h"

namespace perch {
namespace {

using nlohmann::json;

enum Rank { kNoMatch = 0, kByClass = 1, kByPattern = 2, kByName = 3 };

// std::regex is the one part of the standard library here that throws on input.
bool pattern_matches(const std::string& pattern, const std::string& module) {
  try {
    return std::regex_search(module, std::regex(pattern), std::regex_constants::match_continuous);
  } catch (const std::regex_error&) {
    return false;
  }
}

Rank match_rank(const json& targets, const std::string& module) {
  Rank best = kNoMatch;
  if (!targets.is_array()) return best;
  for (const json& target : targets) {
    if (!target.is_string()) continue;
    const std::string text = target.get<std::string>();
    Rank rank = kNoMatch;
    if (text == module) {
      rank = kByName;
    } else if (text.starts_with("re:")) {
      rank = pattern_matches(text.substr(3), module) ? kByPattern : kNoMatch;
    } else if (text == "Linear") {
      rank = kByClass;
    }
    best = std::max(best, rank);
  }
  return best;
}

template <typename T>
T value_or(const json& object, const char* key, T fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->get<std::string>() : fallback;
  } else if constexpr (std::is_same_v<T, bool>) {
    return found->is_boolean() ? found->get<bool>() : fallback;
  } else {
    return found->is_number_integer() ? found->get<T>() : fallback;
  }
}

// strategy null: tensor without a group size, channel for -1, else group.
std::string strategy_of(const json& weights, int64_t group_size) {
  std::string strategy = value_or<std::string>(weights, "strategy", "");
  if (!strategy.empty()) return strategy;
  if (group_size == 0) return "tensor";
  return group_size < 0 ? "channel" : "group";
}

Result<perch_act_quant> parse_act(const json& group, const std::string& name) {
  perch_act_quant act = make_act_none();
  const auto found = group.find("input_activations");
  if (found == group.end() || found->is_null()) return act;
  const json& input = *found;
  const int64_t bits = value_or<int64_t>(input, "num_bits", 8);
  const std::string type = value_or<std::string>(input, "type", "int");
  const std::string strategy = value_or<std::string>(input, "strategy", "tensor");
  const bool known = bits == 8 && value_or<bool>(input, "dynamic", false) &&
                     value_or<bool>(input, "symmetric", true) &&
                     (strategy == "token" || strategy == "group");
  if (!known) {
    return unsupported(fmt::format(
        "config.json: quantization_config.config_groups.{}.input_activations: got {}; want 8 bits, "
        "dynamic, symmetric, per token or per group",
        name, input.dump()));
  }
  act.dtype = type == "float" ? PERCH_TYPE_E4M3FN : PERCH_TYPE_INT8;
  act.mode = strategy == "token" ? PERCH_ACT_TOKEN : PERCH_ACT_GROUP;
  act.group =
      strategy == "token" ? 0 : static_cast<uint32_t>(value_or<int64_t>(input, "group_size", 128));
  act.scale_dtype = PERCH_TYPE_F32;
  return act;
}

bool has_actorder(const json& weights) {
  const auto found = weights.find("actorder");
  if (found == weights.end() || found->is_null()) return false;
  if (found->is_boolean()) return found->get<bool>();
  const std::string text = found->is_string() ? found->get<std::string>() : "";
  return text == "group" || text == "dynamic";
}

// What would change the numbers and is not read, and settings of the wrong type: refused, never
// passed over.
Status check_settings(const json& quantization, const json& weights, const std::string& group) {
  const auto wrong = [&](const std::string& key, const json& got, const char* want) {
    return unsupported(
        fmt::format("config.json: quantization_config.{}: got {}; want {}", key, got.dump(), want));
  };
  const json transform = quantization.value("transform_config", json());
  if (!transform.is_null() && !transform.empty()) {
    return wrong("transform_config", transform, "none: rotations of the input are not applied");
  }
  const json sparsity = quantization.value("sparsity_config", json());
  if (sparsity.is_object() && !sparsity.empty() && sparsity.value("format", json()) != "dense") {
    return wrong("sparsity_config", sparsity, "none, or format dense");
  }
  const std::string where = fmt::format("config_groups.{}.weights.", group);
  const json bits = weights.value("num_bits", json());
  if (!bits.is_number_integer()) return wrong(where + "num_bits", bits, "an integer");
  const json symmetric = weights.value("symmetric", json());
  if (!symmetric.is_null() && !symmetric.is_boolean()) {
    return wrong(where + "symmetric", symmetric, "true or false");
  }
  const json dynamic = weights.value("dynamic", json());
  if (!dynamic.is_null() && dynamic != json(false)) {
    return wrong(where + "dynamic", dynamic, "false: weights are stored quantized");
  }
  return {};
}

}  // namespace

Result<CompressedScheme> find_compressed_scheme(const json& quantization,
                                                const std::string& module) {
  const std::string where = "config.json: quantization_config";
  if (!quantization.is_object() ||
      value_or<std::string>(quantization, "quant_method", "") != "compressed-tensors") {
    return invalid_argument(fmt::format(
        "{}: got quant_method {}; want \"compressed-tensors\" for module \"{}\", which has a "
        "weight_packed tensor",
        where,
        quantization.is_object() ? quantization.value("quant_method", json()).dump() : "none",
        module));
  }
  const json groups = quantization.value("config_groups", json::object());
  Rank best = kNoMatch;
  const json* chosen = nullptr;
  CompressedScheme scheme;
  for (const auto& [name, group] : groups.items()) {
    if (!group.is_object()) continue;
    const Rank rank = match_rank(group.value("targets", json::array()), module);
    if (rank <= best) continue;
    best = rank;
    chosen = &group;
    scheme.group = name;
  }
  if (chosen == nullptr) {
    return invalid_argument(
        fmt::format("{}.config_groups: got no group whose targets match module \"{}\", which has a "
                    "weight_packed tensor; want one",
                    where, module));
  }
  const json weights = chosen->value("weights", json::object());
  PERCH_RETURN_IF_ERROR(check_settings(quantization, weights, scheme.group));
  scheme.format =
      value_or<std::string>(*chosen, "format", value_or<std::string>(quantization, "format", ""));
  scheme.bits = value_or<int64_t>(weights, "num_bits", 8);
  scheme.type = value_or<std::string>(weights, "type", "int");
  scheme.symmetric = value_or<bool>(weights, "symmetric", true);
  scheme.group_size = value_or<int64_t>(weights, "group_size", 0);
  scheme.strategy = strategy_of(weights, scheme.group_size);
  scheme.actorder = has_actorder(weights);
  PERCH_ASSIGN_OR_RETURN(scheme.act, parse_act(*chosen, scheme.group));
  return scheme;
}

}  // namespace perch
