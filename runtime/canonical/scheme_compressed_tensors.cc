// quant_method compressed-tensors: config_groups with targets, ignore, and quantization arguments.
//
// A target or ignore string is a module's name, "re:" plus a pattern for re.match, or the class
// name Linear, which every linear is, experts too. Exact beats pattern beats class; ignore beats
// all. Left out on purpose: quantization_status (old files say "frozen" of compressed weights),
// kv_cache_scheme, observers and scale_dtype (the tensors have their own).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "canonical/module_names.h"
#include "canonical/scheme_parts.h"

namespace perch {
namespace {

using nlohmann::json;

// ---- Which group

enum Rank { kNoMatch = 0, kByClass = 1, kByPattern = 2, kByName = 3 };

// How the strings of a list match, and the index of the best one.
Result<Rank> match_rank(const Place& strings, const std::string& module, size_t* index) {
  PERCH_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, strings.strings());
  Rank best = kNoMatch;
  for (size_t i = 0; i < texts.size(); ++i) {
    Rank rank = kNoMatch;
    if (texts[i].starts_with("re:")) {
      const Result<bool> matches = pattern_names(texts[i].substr(3), module);
      if (!matches.ok()) return matches.status().with_context(strings.at(i).path());
      rank = *matches ? kByPattern : kNoMatch;
    } else if (same_module(texts[i], module)) {
      rank = kByName;
    } else if (texts[i] == "Linear") {
      rank = kByClass;
    }
    if (rank > best) *index = i;
    best = std::max(best, rank);
  }
  return best;
}

bool same_but_for_targets(json a, json b) {
  a.erase("targets");
  b.erase("targets");
  return a == b;
}

// The group with the best match. Two that match equally well must say the same: JSON objects have
// no order, and tools disagree on which one would win.
Result<std::optional<Place>> find_group(const Place& quantization, const std::string& module) {
  const Place groups = quantization.at("config_groups");
  PERCH_RETURN_IF_ERROR(groups.check_object("an object of groups with targets and weights"));
  Rank best = kNoMatch;
  std::optional<Place> chosen;
  for (const auto& [name, value] : groups.value().items()) {
    Place group = groups.at(name);
    PERCH_RETURN_IF_ERROR(group.check_object("an object with targets and weights"));
    size_t index = 0;
    PERCH_ASSIGN_OR_RETURN(const Rank rank, match_rank(group.at("targets"), module, &index));
    if (rank == kNoMatch || rank < best) continue;
    if (rank == best && !same_but_for_targets(chosen->value(), value)) {
      return invalid_argument(fmt::format(
          "{}: got {} and {}, which match module \"{}\" equally well and differ; want one to match",
          groups.path(), chosen->path(), group.path(), module));
    }
    best = rank;
    chosen = std::move(group);
  }
  return chosen;
}

// What would change the numbers of every module and is not read.
Status check_whole(const Place& quantization) {
  const Place transform = quantization.at("transform_config");
  if (!transform.is_absent() && !transform.is_empty()) {
    return transform.unread("none: rotations of weights and inputs are not applied");
  }
  for (const char* key : {"sparsity_config", "moe_sparsity_config"}) {
    const Place sparsity = quantization.at(key);
    if (sparsity.is_absent() || sparsity.is_empty()) continue;
    PERCH_RETURN_IF_ERROR(sparsity.check_object("an object, or none"));
    if (sparsity.at("format").value() != "dense") return sparsity.unread("none, or format dense");
  }
  return {};
}

// ---- The weights of a group

Result<Strategy> parse_strategy(const Place& weights) {
  const Place place = weights.at("strategy");
  PERCH_ASSIGN_OR_RETURN(const std::string name, place.text(""));
  PERCH_ASSIGN_OR_RETURN(const int64_t group, weights.at("group_size").integer(0));
  if (name.empty()) {
    if (group == 0) return Strategy::kTensor;
    return group == -1 ? Strategy::kChannel : Strategy::kGroup;
  }
  if (name == "tensor") return Strategy::kTensor;
  if (name == "channel") return Strategy::kChannel;
  if (name == "group" || name == "tensor_group") return Strategy::kGroup;
  if (name == "block") return Strategy::kBlock;
  return place.unread("tensor, channel, group, tensor_group or block");
}

Status parse_group_size(const Place& weights, Scheme* scheme) {
  const Place place = weights.at("group_size");
  PERCH_ASSIGN_OR_RETURN(const int64_t group, place.integer(0));
  if (scheme->strategy == Strategy::kGroup) {
    if (!is_group_size(group)) return place.wrong("1 or more with groups");
    scheme->group = group;
  } else if (group != 0 && !(group == -1 && scheme->strategy == Strategy::kChannel)) {
    return place.wrong("none: only the strategies group and tensor_group have one");
  }
  return {};
}

Status parse_block(const Place& weights, Scheme* scheme) {
  if (scheme->strategy != Strategy::kBlock) return {};
  const Place place = weights.at("block_structure");
  const json& sizes = place.value();
  constexpr const char* kWant = "two sizes [rows, columns]";
  if (!sizes.is_array() || sizes.size() != 2) return place.wrong(kWant);
  PERCH_ASSIGN_OR_RETURN(scheme->block_n, place.at(size_t{0}).integer(0));
  PERCH_ASSIGN_OR_RETURN(scheme->block_k, place.at(size_t{1}).integer(0));
  const bool sane = is_group_size(scheme->block_n) && is_group_size(scheme->block_k);
  return sane ? Status() : place.wrong(kWant);
}

// Whether a g_idx is stored: "static" only permutes while calibrating.
Status parse_actorder(const Place& weights, Scheme* scheme) {
  const Place place = weights.at("actorder");
  const json& value = place.value();
  if (place.is_absent() || value == false || value == "static" || value == "weight") return {};
  if (value != true && value != "group" && value != "dynamic") {
    return place.unread("group, static, true or false");
  }
  if (scheme->strategy != Strategy::kGroup) return place.wrong("none without groups");
  scheme->act_order = true;
  return {};
}

Status parse_weights(const Place& weights, Scheme* scheme) {
  PERCH_RETURN_IF_ERROR(weights.check_object("an object with num_bits and type"));
  const Place bits = weights.at("num_bits");
  if (bits.is_absent()) return bits.wrong("an integer");
  PERCH_ASSIGN_OR_RETURN(scheme->bits, bits.integer(0));
  const Place type = weights.at("type");
  PERCH_ASSIGN_OR_RETURN(const std::string name, type.text("int"));
  if (name != "int" && name != "float") return type.wrong("int or float");
  scheme->is_float = name == "float";
  if (scheme->is_float && scheme->bits != 4 && scheme->bits != 8) {
    return bits.unread("4 or 8 with type float");
  }
  if (scheme->bits < 1 || scheme->bits > 8) return bits.unread("1 to 8");
  const Place symmetric = weights.at("symmetric");
  PERCH_ASSIGN_OR_RETURN(scheme->symmetric, symmetric.flag(true));
  if (scheme->is_float && !scheme->symmetric) return symmetric.unread("true with type float");
  const Place dynamic = weights.at("dynamic");
  if (!dynamic.is_absent() && dynamic.value() != false) {
    return dynamic.unread("false: weights are stored quantized");
  }
  PERCH_ASSIGN_OR_RETURN(scheme->strategy, parse_strategy(weights));
  PERCH_RETURN_IF_ERROR(parse_group_size(weights, scheme));
  PERCH_RETURN_IF_ERROR(parse_block(weights, scheme));
  return parse_actorder(weights, scheme);
}

// ---- Its format

struct FormatRow {
  std::string_view name;
  int64_t bits;  // 0: 1 to 8
  int kinds;     // of kInt and kFloat
  int64_t group;
};
constexpr int kInt = 1;
constexpr int kFloat = 2;
constexpr std::array kFormatRows = {
    FormatRow{"pack-quantized", 0, kInt, 0},
    FormatRow{"int-quantized", 8, kInt, 0},
    FormatRow{"float-quantized", 8, kFloat, 0},
    FormatRow{"naive-quantized", 8, kInt | kFloat, 0},
    FormatRow{"nvfp4-pack-quantized", 4, kFloat, 16},
    FormatRow{"mxfp4-pack-quantized", 4, kFloat, 32},
    FormatRow{"mxfp8-quantized", 8, kFloat, 32},
};

Status parse_format(const Place& quantization, const Place& group, Scheme* scheme) {
  const Place of_group = group.at("format");
  const Place place = of_group.is_absent() ? quantization.at("format") : of_group;
  PERCH_ASSIGN_OR_RETURN(scheme->format, place.text(""));
  if (scheme->format.empty()) return {};  // very old files; the tensors' suffixes tell
  if (scheme->format == "mixed-precision") {
    return of_group.wrong("the group's own format, since the whole is mixed-precision");
  }
  std::vector<std::string_view> names;
  for (const FormatRow& row : kFormatRows) {
    names.push_back(row.name);
    if (scheme->format != row.name) continue;
    const bool fits =
        (row.bits == 0 || row.bits == scheme->bits) &&
        (row.kinds & (scheme->is_float ? kFloat : kInt)) != 0 &&
        (row.group == 0 || (scheme->strategy == Strategy::kGroup && scheme->group == row.group));
    if (fits) return {};
    return place.wrong(
        fmt::format("a format for {} bits {}{}", scheme->bits, scheme->is_float ? "float" : "int",
                    scheme->group > 0 ? fmt::format(" in groups of {}", scheme->group) : ""));
  }
  return place.unread(fmt::format("one of {}", fmt::join(names, ", ")));
}

// ---- The input of a group

enum class Dynamic { kNo, kYes, kLocal };

Result<Dynamic> parse_dynamic(const Place& input) {
  const Place place = input.at("dynamic");
  if (place.is_absent() || place.value() == false) return Dynamic::kNo;
  if (place.value() == true) return Dynamic::kYes;
  if (place.value() == "local") return Dynamic::kLocal;
  return place.wrong("true, false or \"local\"");
}

// FP4 inputs: nvfp4 (a stored scale and one of E4M3 per group) or mxfp4.
Result<perch_act_quant> parse_fp4_input(const Place& input, Dynamic dynamic) {
  PERCH_ASSIGN_OR_RETURN(const int64_t group, input.at("group_size").integer(0));
  const json& strategy = input.at("strategy").value();
  if (strategy == "tensor_group" && dynamic == Dynamic::kLocal && group == 16) return act_nvfp4();
  if (strategy == "group" && dynamic == Dynamic::kYes && group == 32) {
    return act_mx(PERCH_TYPE_E2M1);
  }
  return input.unread(
      "for 4 bits float: tensor_group of 16 with dynamic \"local\" (nvfp4), or group of 32 with "
      "dynamic true (mxfp4)");
}

Result<perch_act_quant> parse_8_bit_input(const Place& input, Dynamic dynamic, uint32_t dtype,
                                          const Scheme& scheme) {
  PERCH_ASSIGN_OR_RETURN(const int64_t group, input.at("group_size").integer(0));
  PERCH_ASSIGN_OR_RETURN(std::string strategy, input.at("strategy").text(""));
  if (strategy.empty()) strategy = group > 0 ? "group" : "tensor";
  if (dynamic == Dynamic::kNo && strategy == "tensor") return act_static(dtype);
  if (dynamic == Dynamic::kYes) {
    // A dynamic scale of the whole tensor would let one token change another's result, so the
    // algebra has none: each token gets its own, which only is finer.
    if (strategy == "token" || strategy == "tensor") return act_token(dtype);
    if (strategy == "group" && is_group_size(group)) {
      // Groups of 32 beside MX weights have MX scales.
      const bool mx = dtype == PERCH_TYPE_E4M3FN && group == 32 && scheme.format.starts_with("mx");
      return make_act(dtype, PERCH_ACT_GROUP, group, mx ? PERCH_TYPE_E8M0 : PERCH_TYPE_F32);
    }
  }
  return input.unread("for 8 bits: dynamic true per token or group, or dynamic false per tensor");
}

Status parse_input(const Place& group, Scheme* scheme) {
  const Place output = group.at("output_activations");
  if (!output.is_absent()) return output.unread("none: outputs are not quantized");
  const Place input = group.at("input_activations");
  if (input.is_absent()) return {};
  PERCH_RETURN_IF_ERROR(input.check_object("an object with num_bits and type, or none"));
  const Place symmetric = input.at("symmetric");
  PERCH_ASSIGN_OR_RETURN(const bool is_symmetric, symmetric.flag(true));
  if (!is_symmetric) return symmetric.unread("true: inputs have no zero point");
  PERCH_ASSIGN_OR_RETURN(const int64_t bits, input.at("num_bits").integer(8));
  PERCH_ASSIGN_OR_RETURN(const std::string type, input.at("type").text("int"));
  PERCH_ASSIGN_OR_RETURN(const Dynamic dynamic, parse_dynamic(input));
  if (bits == 4 && type == "float") {
    PERCH_ASSIGN_OR_RETURN(scheme->act, parse_fp4_input(input, dynamic));
  } else if (bits == 8 && (type == "int" || type == "float")) {
    const uint32_t dtype = type == "float" ? PERCH_TYPE_E4M3FN : PERCH_TYPE_INT8;
    PERCH_ASSIGN_OR_RETURN(scheme->act, parse_8_bit_input(input, dynamic, dtype, *scheme));
  } else {
    return input.unread("8 bits int or float, or 4 bits float");
  }
  return {};
}

Result<Scheme> find(const json& json_value, const std::string& where, const std::string& module) {
  const Place quantization(json_value, where);
  Scheme scheme = plain_scheme();
  scheme.method = kCompressedTensorsMethod.name;
  scheme.where = where;
  PERCH_ASSIGN_OR_RETURN(scheme.version, quantization.at("version").text(""));
  PERCH_RETURN_IF_ERROR(check_whole(quantization));
  size_t index = 0;
  const Place ignore = quantization.at("ignore");
  PERCH_ASSIGN_OR_RETURN(const Rank ignored, match_rank(ignore, module, &index));
  if (ignored != kNoMatch) {
    scheme.where = ignore.at(index).path();
    return scheme;
  }
  PERCH_ASSIGN_OR_RETURN(const std::optional<Place> group, find_group(quantization, module));
  if (!group) return scheme;
  scheme.where = group->path();
  const Place weights = group->at("weights");
  if (weights.is_absent()) {
    const Place input = group->at("input_activations");
    if (!input.is_absent()) return input.unread("none where the weights are not quantized");
    return scheme;
  }
  scheme.quantized = true;
  PERCH_RETURN_IF_ERROR(parse_weights(weights, &scheme));
  PERCH_RETURN_IF_ERROR(parse_format(quantization, *group, &scheme));
  PERCH_RETURN_IF_ERROR(parse_input(*group, &scheme));
  return scheme;
}

}  // namespace

const QuantMethod kCompressedTensorsMethod = {"compressed-tensors", find};

}  // namespace perch
