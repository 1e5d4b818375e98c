// See rule_reader.h. Part of step 1, config.
#include "config/rule_reader.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/nearest.h"
#include "base/recipe.h"
#include "config/text.h"

namespace perch {
namespace {

// target = result, or the error.
template <class Target, class T>
Status store(Target& target, Result<T> result) {
  if (!result.ok()) return result.status();
  target = std::move(result.value());
  return {};
}

Status read_word(const YamlValue& value, std::span<const std::string_view> names,
                 std::optional<std::string>& target) {
  PERCH_ASSIGN_OR_RETURN(const size_t index, read_choice(value, names));
  target = std::string(names[index]);
  return {};
}

Result<std::string> read_act(const YamlValue& value) {
  const std::string want = "an activation format, such as int8, or none";
  PERCH_ASSIGN_OR_RETURN(std::string text, read_text(value, want));
  if (!parse_act(text).ok()) return wrong_type(value, want);
  return text;
}

Result<std::string> read_weight(const YamlValue& value) {
  const std::string want = "a weight format, such as int4g128";
  PERCH_ASSIGN_OR_RETURN(std::string text, read_text(value, want));
  if (!parse_weight(text).ok()) return wrong_type(value, want);
  return text;
}

// What match.format may be: a glob, or a name that format_aliases() gives some weight. Another text
// would match no layer, ever, and nobody would be told.
Result<std::string> read_format(const YamlValue& value) {
  constexpr std::array<std::string_view, 8> kFamous = {"nvfp4", "mxfp4", "mxfp6", "mxfp8",
                                                       "fp8",   "int4",  "int8",  "bf16"};
  const std::string want = "the name of a weight format, such as int4g32, * and ? allowed";
  PERCH_ASSIGN_OR_RETURN(std::string text, read_text(value, want));
  if (text.find_first_of("*?") != std::string::npos) return text;
  if (text == "mxfp6") return text;  // a family of two types, which no one weight is printed as
  const Result<perch_quant> weight = parse_weight(text);
  if (!weight.ok()) return wrong_type(value, want + did_you_mean(text, kFamous));
  const std::vector<std::string> names = format_aliases(*weight);
  if (std::find(names.begin(), names.end(), text) != names.end()) return text;
  return wrong_type(value, "it as it is printed, " + quote(print_weight(*weight)));
}

Status read_match(const YamlValue& value, Match& match) {
  constexpr std::array<std::string_view, 2> kKinds = {"moe", "linear"};
  constexpr std::array<std::string_view, 2> kDevices = {"cpu", "cuda"};
  return read_map(
      value, {{"kind", [&](const YamlValue& v) { return read_word(v, kKinds, match.kind); }},
              {"format", [&](const YamlValue& v) { return store(match.format, read_format(v)); }},
              {"device", [&](const YamlValue& v) { return read_word(v, kDevices, match.device); }},
              {"name",
               [&](const YamlValue& v) {
                 return store(match.name, read_text(v, "a layer's name, * and ? allowed"));
               }},
              {"model_type", [&](const YamlValue& v) {
                 return store(match.model_type, read_text(v, "the model_type of config.json"));
               }}});
}

Status read_use(const YamlValue& value, std::vector<std::string>& use) {
  PERCH_RETURN_IF_ERROR(store(use, read_ids(value)));
  if (!use.empty()) return {};
  return wrong_value(value, "an empty list", "one backend id or more, or no `use` for any backend");
}

}  // namespace

Result<bool> read_fallback(const YamlValue& value) {
  constexpr std::array<std::string_view, 2> kWords = {"error", "allow"};
  PERCH_ASSIGN_OR_RETURN(const size_t index, read_choice(value, kWords));
  return index == 1;
}

Result<bool> read_on_prepare_error(const YamlValue& value) {
  constexpr std::array<std::string_view, 2> kWords = {"error", "next"};
  PERCH_ASSIGN_OR_RETURN(const size_t index, read_choice(value, kWords));
  return index == 1;
}

Result<Rule> read_rule(const YamlValue& value) {
  Rule rule;
  rule.line = value.line;
  rule.column = value.column;
  rule.where = value.where();
  bool has_match = false;
  PERCH_RETURN_IF_ERROR(read_map(
      value, {{"match",
               [&](const YamlValue& v) {
                 has_match = true;
                 return read_match(v, rule.match);
               }},
              {"require", [&](const YamlValue& v) { return store(rule.require, read_caps(v)); }},
              {"prefer", [&](const YamlValue& v) { return store(rule.prefer, read_caps(v)); }},
              {"use", [&](const YamlValue& v) { return read_use(v, rule.use); }},
              {"options", [&](const YamlValue& v) { return store(rule.options, read_options(v)); }},
              {"act", [&](const YamlValue& v) { return store(rule.act, read_act(v)); }},
              {"requant", [&](const YamlValue& v) { return store(rule.requant, read_weight(v)); }},
              {"fallback",
               [&](const YamlValue& v) { return store(rule.fallback_allow, read_fallback(v)); }},
              {"on_prepare_error", [&](const YamlValue& v) {
                 return store(rule.on_prepare_error_next, read_on_prepare_error(v));
               }}}));
  if (!has_match) {
    return wrong_value(value, "no key `match`", "one; `match: {}` is every layer");
  }
  return rule;
}

}  // namespace perch
