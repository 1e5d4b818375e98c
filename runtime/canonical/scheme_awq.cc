// quant_method awq, version gemm: 4-bit weights packed along N, and quant_config.json of older
// files, which name their keys otherwise.
//
// A module is plain where an entry of modules_to_not_convert is any part of its name, as the
// writer has it: "gate" there is "gate_proj" too.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "canonical/module_names.h"
#include "canonical/scheme_parts.h"

namespace perch {
namespace {

using nlohmann::json;

Place either(const Place& object, const char* key, const char* old_key) {
  return object.has(old_key) && !object.has(key) ? object.at(old_key) : object.at(key);
}

Status parse_version(const Place& quantization, Scheme* scheme) {
  const Place backend = quantization.at("backend");
  PERCH_ASSIGN_OR_RETURN(const std::string tool, backend.text("autoawq"));
  if (tool == "llm-awq") return backend.unread("autoawq: llm-awq's order is not read");
  for (const char* key : {"version", "format", "checkpoint_format"}) {
    const Place place = quantization.at(key);
    PERCH_ASSIGN_OR_RETURN(std::string name, place.text("gemm"));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (name != "gemm") {
      return place.unread(
          "gemm: gemv, gemv_fast, llm-awq and marlin have orders that are not read");
    }
  }
  scheme->format = "gemm";
  return {};
}

Result<Scheme> find(const json& json_value, const std::string& where, const std::string& module) {
  const Place quantization(json_value, where);
  Scheme scheme = plain_scheme();
  scheme.method = kAwqMethod.name;
  scheme.where = where;
  PERCH_RETURN_IF_ERROR(parse_version(quantization, &scheme));
  const Place entries = quantization.at("modules_to_not_convert");
  PERCH_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, entries.strings());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty() || module.find(texts[i]) == std::string::npos) continue;
    scheme.where = entries.at(i).path();
    return scheme;
  }
  const Place dynamic = quantization.at("dynamic");
  if (!dynamic.is_absent() && !dynamic.is_empty()) return dynamic.unread("none with awq");
  const Place head = quantization.at("lm_head");
  PERCH_ASSIGN_OR_RETURN(const bool has_head, head.flag(false));
  if (core_name(module) == "lm_head" && !has_head) {
    scheme.where = head.path();
    return scheme;
  }
  const Place bits = either(quantization, "bits", "w_bit");
  PERCH_ASSIGN_OR_RETURN(scheme.bits, bits.integer(0));
  if (scheme.bits != 4) return scheme.bits == 0 ? bits.wrong("4") : bits.unread("4");
  const Place group = either(quantization, "group_size", "q_group_size");
  PERCH_ASSIGN_OR_RETURN(const int64_t size, group.integer(0));
  if (size != -1 && !(size == 0 && group.is_absent()) && !is_group_size(size)) {
    return group.wrong("-1 (whole rows) or 1 and more");
  }
  scheme.quantized = true;
  scheme.strategy = size == -1 ? Strategy::kChannel : Strategy::kGroup;
  scheme.group = size == -1 ? 0 : size;
  PERCH_ASSIGN_OR_RETURN(const bool zeros, quantization.at("zero_point").flag(true));
  scheme.symmetric = !zeros;
  return scheme;
}

}  // namespace

const QuantMethod kAwqMethod = {"awq", find};

}  // namespace perch
