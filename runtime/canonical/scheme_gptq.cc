// quant_method gptq: integer weights with qweight, qzeros, scales and g_idx, and
// quantize_config.json of older files.
//
// Without modules_in_block_to_quantize the configuration does not say which modules are quantized:
// all are here, and one whose tensors are a plain weight is plain.
#include <fmt/format.h>

#include <array>
#include <optional>

#include "canonical/module_names.h"
#include "canonical/scheme_parts.h"

namespace perch {
namespace {

using nlohmann::json;

// The four settings that a module can override.
Status parse_settings(const Place& settings, Scheme* scheme) {
  const Place bits = settings.at("bits");
  PERCH_ASSIGN_OR_RETURN(scheme->bits, bits.integer(scheme->bits));
  if (scheme->bits >= 5 && scheme->bits <= 7) {
    return bits.unread("2, 3, 4 or 8: 5 to 7 bits are stored in planes, which are not read");
  }
  if (scheme->bits < 2 || scheme->bits > 8) return bits.wrong("2, 3, 4 or 8");
  const Place group = settings.at("group_size");
  if (!group.is_absent()) {
    PERCH_ASSIGN_OR_RETURN(const int64_t size, group.integer(0));
    if (size != -1 && !is_group_size(size)) return group.wrong("-1 (whole rows) or 1 and more");
    scheme->strategy = size == -1 ? Strategy::kChannel : Strategy::kGroup;
    scheme->group = size == -1 ? 0 : size;
  }
  // Zero points are stored either way, so reading them is right where sym is not said.
  PERCH_ASSIGN_OR_RETURN(scheme->symmetric, settings.at("sym").flag(scheme->symmetric));
  PERCH_ASSIGN_OR_RETURN(scheme->act_order, settings.at("desc_act").flag(scheme->act_order));
  return {};
}

// v1 (also where nothing is said) stores zero points less one, v2 as they are.
Status parse_format(const Place& quantization, Scheme* scheme) {
  scheme->format = "gptq";
  const Place marlin = quantization.at("is_marlin_format");
  PERCH_ASSIGN_OR_RETURN(const bool is_marlin, marlin.flag(false));
  if (is_marlin) return marlin.unread("false: the Marlin kernel's own order is not read");
  std::optional<std::string> first;
  for (const char* key : {"checkpoint_format", "format"}) {
    const Place place = quantization.at(key);
    PERCH_ASSIGN_OR_RETURN(const std::string name, place.text(""));
    if (name.empty()) continue;
    if (name != "gptq" && name != "gptq_v2") {
      return place.unread("gptq or gptq_v2: planar (gptq_p) and kernels' own orders are not read");
    }
    if (first && *first != name) {
      return place.wrong(fmt::format("\"{}\", as checkpoint_format says", *first));
    }
    first = name;
    scheme->format = name;
  }
  scheme->zeros_less_one = scheme->format == "gptq";
  const Place word = quantization.at("pack_dtype");
  PERCH_ASSIGN_OR_RETURN(const std::string pack, word.text("int32"));
  return pack == "int32" ? Status() : word.unread("int32");
}

// What `dynamic` says of the module.
struct Override {
  std::optional<Place> settings;
  bool skip = false;
  std::string key;
};

// {pattern: settings}: "-:" skips the module, "+:" or nothing before the pattern overrides. Several
// that match must say the same: config.json is written with its keys sorted, so which came first
// for the tool is lost.
Result<Override> find_override(const Place& quantization, const std::string& module) {
  Override chosen;
  const Place dynamic = quantization.at("dynamic");
  if (dynamic.is_absent()) return chosen;
  PERCH_RETURN_IF_ERROR(dynamic.check_object("an object of patterns"));
  for (const auto& [key, value] : dynamic.value().items()) {
    const Place settings = dynamic.at(key);
    const bool skip = key.starts_with("-:");
    const Result<bool> matches =
        pattern_names(std::string_view(key).substr(skip || key.starts_with("+:") ? 2 : 0), module);
    if (!matches.ok()) return matches.status().with_context(settings.path());
    if (!*matches) continue;
    if (!skip) PERCH_RETURN_IF_ERROR(settings.check_object("an object of settings"));
    const bool differs =
        chosen.settings && (skip != chosen.skip || (!skip && chosen.settings->value() != value));
    if (differs) {
      return invalid_argument(
          fmt::format("{}: got the patterns \"{}\" and \"{}\", which both match module \"{}\" and "
                      "differ; want one to match",
                      dynamic.path(), chosen.key, key, module));
    }
    chosen = {settings, skip, key};
  }
  if (!chosen.settings || chosen.skip) return chosen;
  for (const char* key : {"adapter", "pack_dtype", "format", "checkpoint_format", "method"}) {
    if (chosen.settings->has(key)) {
      return chosen.settings->at(key).unread("only bits, group_size, sym and desc_act by module");
    }
  }
  return chosen;
}

// Lists of lists of names inside a block ("self_attn.q_proj"), or one flat list.
Result<bool> is_listed(const Place& lists, const std::string& module) {
  if (!lists.value().is_array()) return lists.wrong("a list of lists of names");
  for (size_t i = 0; i < lists.value().size(); ++i) {
    const Place list = lists.at(i);
    std::vector<std::string_view> names;
    if (list.value().is_string()) {
      names.push_back(list.value().get_ref<const std::string&>());
    } else {
      PERCH_ASSIGN_OR_RETURN(names, list.strings());
    }
    for (const std::string_view name : names) {
      if (same_module(name, module)) return true;
      const size_t rest = module.size() - std::min(module.size(), name.size());
      if (!name.empty() && module.ends_with(name) && rest > 0 && module[rest - 1] == '.') {
        return true;
      }
    }
  }
  return false;
}

// "gptqmodel:4.0.0" of meta.quantizer: a string, or a list of them.
Result<std::string> find_version(const Place& quantization) {
  const Place quantizer = quantization.at("meta").at("quantizer");
  if (!quantizer.value().is_array()) return quantizer.text("");
  PERCH_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, quantizer.strings());
  return texts.empty() ? std::string() : std::string(texts.front());
}

Result<Scheme> find(const json& json_value, const std::string& where, const std::string& module) {
  const Place quantization(json_value, where);
  Scheme scheme = plain_scheme();
  scheme.method = kGptqMethod.name;
  scheme.where = where;
  PERCH_ASSIGN_OR_RETURN(scheme.version, find_version(quantization));
  PERCH_RETURN_IF_ERROR(parse_format(quantization, &scheme));
  const Place head = quantization.at("lm_head");
  PERCH_ASSIGN_OR_RETURN(const bool has_head, head.flag(false));
  PERCH_ASSIGN_OR_RETURN(const Override override, find_override(quantization, module));
  const Place listed = quantization.at("modules_in_block_to_quantize");
  const bool is_head = core_name(module) == "lm_head";
  bool left_out = is_head && !has_head && !override.settings;
  if (left_out) scheme.where = head.path();
  if (override.skip) {
    left_out = true;
    scheme.where = override.settings->path();
  } else if (!listed.is_absent() && !is_head) {
    PERCH_ASSIGN_OR_RETURN(const bool in_list, is_listed(listed, module));
    left_out |= !in_list;
  }
  if (left_out) return scheme;
  scheme.quantized = true;
  scheme.symmetric = false;
  scheme.strategy = Strategy::kGroup;
  PERCH_RETURN_IF_ERROR(parse_settings(quantization, &scheme));
  if (override.settings) {
    scheme.where = override.settings->path();
    PERCH_RETURN_IF_ERROR(parse_settings(*override.settings, &scheme));
  }
  // One group has no order.
  if (scheme.strategy == Strategy::kChannel) scheme.act_order = false;
  return scheme;
}

}  // namespace

const QuantMethod kGptqMethod = {"gptq", find};

}  // namespace perch
