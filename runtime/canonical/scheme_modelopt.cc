// quant_method modelopt: one quant_algo for all modules, or one each under MIXED_PRECISION.
//
// Read from config.json (new: ignore, config_groups, kv_cache_scheme) and from
// hf_quant_config.json (old: exclude_modules, kv_cache_quant_algo). quant_algo decides;
// config_groups repeats it for other readers, but is the only one to say whether MXFP4 quantizes
// its inputs. Caches of keys and values are no part of a linear layer: their keys are left out on
// purpose.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "canonical/module_names.h"
#include "canonical/scheme_parts.h"

namespace perch {
namespace {

using nlohmann::json;

enum class Act { kNone, kFp8, kFp8Token, kInt8, kNvfp4, kMxfp4, kMxfp8 };

struct Algo {
  std::string_view name;
  int64_t bits;
  bool is_float;
  Strategy strategy;
  int64_t group;   // of K; of blocks: both sides
  bool any_group;  // group_size may say another
  Act act;
};
// W4A8's and SmoothQuant's inputs have a calibrated scale (input_scale); pre_quant_scale is a
// tensor and its format's business.
constexpr std::array kAlgos = {
    Algo{"FP8", 8, true, Strategy::kTensor, 0, false, Act::kFp8},
    Algo{"FP8_PER_CHANNEL_PER_TOKEN", 8, true, Strategy::kChannel, 0, false, Act::kFp8Token},
    Algo{"FP8_PB_WO", 8, true, Strategy::kBlock, 128, true, Act::kNone},
    Algo{"NVFP4", 4, true, Strategy::kGroup, 16, false, Act::kNvfp4},
    Algo{"NVFP4_AWQ", 4, true, Strategy::kGroup, 16, false, Act::kNvfp4},
    Algo{"W4A16_NVFP4", 4, true, Strategy::kGroup, 16, false, Act::kNone},
    // In groups of 32 by default, which config.json does not say: then the scale's shape does.
    Algo{"W4A8_NVFP4_FP8", 4, true, Strategy::kGroup, 0, true, Act::kFp8},
    Algo{"MXFP4", 4, true, Strategy::kGroup, 32, false, Act::kMxfp4},
    Algo{"W4A8_MXFP4_FP8", 4, true, Strategy::kGroup, 32, false, Act::kFp8},
    Algo{"MXFP8", 8, true, Strategy::kGroup, 32, false, Act::kMxfp8},
    Algo{"W4A16_AWQ", 4, false, Strategy::kGroup, 0, true, Act::kNone},
    Algo{"W4A8_AWQ", 4, false, Strategy::kGroup, 0, true, Act::kFp8},
    Algo{"W8A8_SQ_PER_CHANNEL", 8, false, Strategy::kChannel, 0, false, Act::kInt8},
    Algo{"W8A16", 8, false, Strategy::kChannel, 0, false, Act::kNone},
};

perch_act_quant act_of(Act act) {
  switch (act) {
    case Act::kNone:
      break;
    case Act::kFp8:
      return act_static(PERCH_TYPE_E4M3FN);
    case Act::kFp8Token:
      return act_token(PERCH_TYPE_E4M3FN);
    case Act::kInt8:
      return act_static(PERCH_TYPE_INT8);
    case Act::kNvfp4:
      return act_nvfp4();
    case Act::kMxfp4:
      return act_mx(PERCH_TYPE_E2M1);
    case Act::kMxfp8:
      return act_mx(PERCH_TYPE_E4M3FN);
  }
  return plain_scheme().act;
}

// The exporter writes some names in small letters ("mxfp4", "fp8_pb_wo").
bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::toupper(x) == std::toupper(y);
  });
}

// Whether config_groups is there and none of its groups quantizes inputs.
Result<bool> is_weight_only(const Place& quantization) {
  const Place groups = quantization.at("config_groups");
  if (groups.is_absent()) return false;
  PERCH_RETURN_IF_ERROR(groups.check_object("an object of groups"));
  for (const auto& [name, unused] : groups.value().items()) {
    const Place group = groups.at(name);
    PERCH_RETURN_IF_ERROR(group.check_object("an object with weights and input_activations"));
    if (group.has("input_activations")) return false;
  }
  return true;
}

// group_size of the layer, else of the whole. Only algorithms with groups look at it: under
// MIXED_PRECISION the whole's is for those.
Status parse_group(const Place& quantization, const Place& settings, const Algo& algo,
                   Scheme* scheme) {
  const bool block = algo.strategy == Strategy::kBlock;
  if (algo.strategy != Strategy::kGroup && !block) return {};
  const Place own = settings.at("group_size");
  const Place place = own.is_absent() ? quantization.at("group_size") : own;
  PERCH_ASSIGN_OR_RETURN(const int64_t stated, place.integer(algo.group));
  if (algo.any_group ? stated != algo.group && !is_group_size(stated) : stated != algo.group) {
    return place.wrong(algo.any_group ? std::string("1 or more")
                                      : fmt::format("{} with {}", algo.group, algo.name));
  }
  (block ? scheme->block_k : scheme->group) = stated;
  scheme->block_n = block ? stated : 0;
  return {};
}

// `settings` holds quant_algo: the configuration itself, or a layer of MIXED_PRECISION.
Status parse_algo(const Place& quantization, const Place& settings, Scheme* scheme) {
  const Place place = settings.at("quant_algo");
  PERCH_ASSIGN_OR_RETURN(const std::string name, place.text(""));
  scheme->where = place.path();
  if (name.empty()) return {};  // only the cache of keys and values is quantized
  std::vector<std::string_view> names;
  for (const Algo& algo : kAlgos) {
    names.push_back(algo.name);
    if (!same_letters(name, algo.name)) continue;
    scheme->quantized = true;
    scheme->format = algo.name;
    scheme->bits = algo.bits;
    scheme->is_float = algo.is_float;
    scheme->strategy = algo.strategy;
    PERCH_RETURN_IF_ERROR(parse_group(quantization, settings, algo, scheme));
    scheme->act = act_of(algo.act);
    if (algo.act == Act::kMxfp4) {
      PERCH_ASSIGN_OR_RETURN(const bool weight_only, is_weight_only(quantization));
      if (weight_only) scheme->act = act_of(Act::kNone);
    }
    for (const Place& object : {settings, quantization}) {
      const Place zero = object.at("has_zero_point");
      PERCH_ASSIGN_OR_RETURN(const bool has_zero, zero.flag(false));
      if (has_zero) return zero.unread("false: weights with zero points are not read");
    }
    return {};
  }
  return place.unread(fmt::format("one of {}, MIXED_PRECISION", fmt::join(names, ", ")));
}

// Entries are wildcards for the module's name; one without any also covers what is inside it.
Result<std::optional<Place>> find_exclusion(const Place& quantization, const std::string& module) {
  for (const char* key : {"exclude_modules", "ignore"}) {
    const Place entries = quantization.at(key);
    PERCH_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, entries.strings());
    for (size_t i = 0; i < texts.size(); ++i) {
      if (is_wildcard(texts[i]) ? wildcard_names(texts[i], module) : is_within(module, texts[i])) {
        return std::optional<Place>(entries.at(i));
      }
    }
  }
  return std::optional<Place>();
}

// The entry of quantized_layers for the module, or for all experts that it is one of.
Result<std::optional<Place>> find_layer(const Place& quantization, const std::string& module) {
  const Place layers = quantization.at("quantized_layers");
  PERCH_RETURN_IF_ERROR(layers.check_object("an object of modules with quant_algo"));
  for (const std::string_view name : {std::string_view(module), experts_module(module)}) {
    if (name.empty()) continue;
    for (const std::string& one : names_of(name)) {
      Place layer = layers.at(one);
      if (layer.is_absent()) continue;
      PERCH_RETURN_IF_ERROR(layer.check_object("an object with quant_algo"));
      return std::optional<Place>(std::move(layer));
    }
  }
  return std::optional<Place>();
}

Result<Scheme> find(const json& json_value, const std::string& where, const std::string& module) {
  const Place quantization(json_value, where);
  Scheme scheme = plain_scheme();
  scheme.method = kModeloptMethod.name;
  scheme.where = where;
  PERCH_ASSIGN_OR_RETURN(scheme.version, quantization.at("producer").at("version").text(""));
  PERCH_ASSIGN_OR_RETURN(const auto exclusion, find_exclusion(quantization, module));
  if (exclusion) {
    scheme.where = exclusion->path();
    return scheme;
  }
  if (quantization.at("quant_algo").value() != "MIXED_PRECISION") {
    PERCH_RETURN_IF_ERROR(parse_algo(quantization, quantization, &scheme));
    return scheme;
  }
  PERCH_ASSIGN_OR_RETURN(const auto layer, find_layer(quantization, module));
  if (layer) PERCH_RETURN_IF_ERROR(parse_algo(quantization, *layer, &scheme));
  return scheme;
}

}  // namespace

const QuantMethod kModeloptMethod = {"modelopt", find};

}  // namespace perch
