// quant_method fp8: E4M3 weights with a scale per block or per tensor (DeepSeek, Qwen3, MiniMax).
//
// DeepSeek-V4 stores its routed experts in fp4 beside them: expert_dtype, which stands beside
// quantization_config or in it, says so. Their inputs are those of the fp8 modules.
#include <fmt/format.h>

#include "canonical/module_names.h"
#include "canonical/scheme_parts.h"

namespace perch {
namespace {

using nlohmann::json;

Status parse_blocks(const Place& quantization, Scheme* scheme) {
  const Place place = quantization.at("weight_block_size");
  scheme->strategy = place.is_absent() ? Strategy::kTensor : Strategy::kBlock;
  if (place.is_absent()) return {};
  constexpr const char* kWant = "two sizes [rows, columns], or none";
  if (!place.value().is_array() || place.value().size() != 2) return place.wrong(kWant);
  PERCH_ASSIGN_OR_RETURN(scheme->block_n, place.at(size_t{0}).integer(0));
  PERCH_ASSIGN_OR_RETURN(scheme->block_k, place.at(size_t{1}).integer(0));
  const bool sane = is_group_size(scheme->block_n) && is_group_size(scheme->block_k);
  return sane ? Status() : place.wrong(kWant);
}

// scale_fmt "ue8m0" makes scales powers of two: those of inputs too, which is all that it says
// here, since weights have theirs stored.
Result<uint32_t> parse_scale_type(const Place& quantization) {
  const Place place = quantization.at("scale_fmt");
  PERCH_ASSIGN_OR_RETURN(const std::string name, place.text("float"));
  if (name == "float") return PERCH_TYPE_F32;
  if (name == "ue8m0") return PERCH_TYPE_E8M0;
  return place.unread("ue8m0, float or none");
}

Status parse_act(const Place& quantization, Scheme* scheme) {
  const Place place = quantization.at("activation_scheme");
  PERCH_ASSIGN_OR_RETURN(const std::string name, place.text("dynamic"));
  PERCH_ASSIGN_OR_RETURN(const uint32_t scale_type, parse_scale_type(quantization));
  const bool blocks = scheme->strategy == Strategy::kBlock;
  if (name == "static") {
    if (blocks) return place.unread("dynamic with weight_block_size");
    scheme->act = act_static(PERCH_TYPE_E4M3FN);
  } else if (name == "dynamic" && blocks) {
    scheme->act = make_act(PERCH_TYPE_E4M3FN, PERCH_ACT_GROUP, scheme->block_k, scale_type);
  } else if (name == "dynamic") {
    // The file means one scale for the whole input, which would let one token change another's
    // result: the algebra has none. One per token is finer and what other runtimes offer too.
    scheme->act = make_act(PERCH_TYPE_E4M3FN, PERCH_ACT_TOKEN, 0, scale_type);
  } else {
    return place.wrong("dynamic or static");
  }
  return {};
}

// Turns the scheme into that of fp4 experts where the module is one and they are.
Status parse_experts(const Place& quantization, const std::string& module, Scheme* scheme) {
  const Place place = quantization.at("expert_dtype");
  PERCH_ASSIGN_OR_RETURN(const std::string name, place.text("fp8"));
  if (experts_module(module).empty() || name == "fp8") return {};
  if (name != "fp4")
    return place.unread("fp4 or fp8 (the key may also stand beside quantization_config)");
  scheme->format = "fp4";
  scheme->bits = 4;
  scheme->strategy = Strategy::kGroup;
  scheme->group = 32;
  scheme->block_n = 0;
  scheme->block_k = 0;
  return {};
}

Result<Scheme> find(const json& json_value, const std::string& where, const std::string& module) {
  const Place quantization(json_value, where);
  Scheme scheme = plain_scheme();
  scheme.method = kFp8Method.name;
  scheme.where = where;
  for (const char* key : {"ignored_layers", "modules_to_not_convert"}) {
    const Place entries = quantization.at(key);
    PERCH_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, entries.strings());
    for (size_t i = 0; i < texts.size(); ++i) {
      const Result<bool> matches = is_not_converted(module, texts[i]);
      if (!matches.ok()) return matches.status().with_context(entries.at(i).path());
      if (!*matches) continue;
      scheme.where = entries.at(i).path();
      return scheme;
    }
  }
  const Place fmt = quantization.at("fmt");
  PERCH_ASSIGN_OR_RETURN(const std::string code, fmt.text("e4m3"));
  if (code != "e4m3") return fmt.unread("e4m3");
  scheme.quantized = true;
  scheme.bits = 8;
  scheme.is_float = true;
  PERCH_RETURN_IF_ERROR(parse_blocks(quantization, &scheme));
  PERCH_RETURN_IF_ERROR(parse_act(quantization, &scheme));
  PERCH_RETURN_IF_ERROR(parse_experts(quantization, module, &scheme));
  return scheme;
}

}  // namespace

const QuantMethod kFp8Method = {"fp8", find};

}  // namespace perch
