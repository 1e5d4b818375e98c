// See effective.h. Part of step 1, config.
#include "config/effective.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/recipe.h"
#include "config/limits.h"
#include "config/match.h"

namespace perch {
namespace {

using Json = nlohmann::ordered_json;

Json with_origin(Json value, const Origin& origin) {
  return {{"value", std::move(value)}, {"origin", origin.where}};
}

template <class T>
Json plain(const Setting<T>& setting) {
  return with_origin(setting.value, setting.origin);
}

Json caps(const Setting<perch_caps>& setting) {
  return with_origin(cap_names(setting.value), setting.origin);
}

Json word(const Setting<bool>& setting, std::string_view no, std::string_view yes) {
  return with_origin(setting.value ? yes : no, setting.origin);
}

Json options_of(const Options& options) {
  Json json = Json::object();
  for (const auto& [key, value] : options) json[key] = value;
  return json;
}

Json log_level(const Setting<int32_t>& level) {
  for (size_t i = 0; i < kLogLevels.size(); ++i) {
    if (kLogLevels[i] == level.value) return with_origin(kLogLevelNames[i], level.origin);
  }
  return plain(level);
}

Json backends_of(const BackendsConfig& backends) {
  Json paths = Json::array();
  for (const Setting<std::string>& path : backends.paths) paths.push_back(plain(path));
  Json options = Json::object();
  for (const auto& [id, setting] : backends.options) {
    options[id] = with_origin(options_of(setting.value), setting.origin);
  }
  const bool probe = backends.probe.value == Probe::kProcess;
  return {{"paths", std::move(paths)},
          {"allow", plain(backends.allow)},
          {"deny", plain(backends.deny)},
          {"must_load", plain(backends.must_load)},
          {"probe", with_origin(probe ? "process" : "none", backends.probe.origin)},
          {"trust", word(backends.trust_any, "owner", "any")},
          {"allow_draft", plain(backends.allow_draft)},
          {"options", std::move(options)}};
}

Json match_of(const Match& match) {
  Json json = Json::object();
  if (match.kind) json["kind"] = *match.kind;
  if (match.format) json["format"] = *match.format;
  if (match.device) json["device"] = *match.device;
  if (match.name) json["name"] = *match.name;
  if (match.model_type) json["model_type"] = *match.model_type;
  return json;
}

Json rule_of(const Config& config, const Rule& rule) {
  const Policy policy = policy_of(config, &rule);
  Json json = {{"origin", rule.where},
               {"match", match_of(rule.match)},
               {"require", caps(policy.require)},
               {"prefer", caps(policy.prefer)},
               {"use", plain(policy.use)},
               {"fallback", word(policy.fallback_allow, "error", "allow")},
               {"on_prepare_error", word(policy.on_prepare_error_next, "error", "next")}};
  if (policy.use.value.empty()) json["use"]["value"] = "auto";
  if (!rule.options.empty()) {
    json["options"] = with_origin(options_of(rule.options), {rule.where});
  }
  if (rule.act) json["act"] = with_origin(*rule.act, {rule.where});
  if (rule.requant) json["requant"] = with_origin(*rule.requant, {rule.where});
  return json;
}

Json select_of(const Config& config) {
  const SelectDefaults& defaults = config.select.defaults;
  Json rules = Json::array();
  for (const Rule& rule : config.select.rules) rules.push_back(rule_of(config, rule));
  Json json = {{"defaults",
                {{"fallback", word(defaults.fallback_allow, "error", "allow")},
                 {"on_prepare_error", word(defaults.on_prepare_error_next, "error", "next")},
                 {"require", caps(defaults.require)},
                 {"prefer", caps(defaults.prefer)}}},
               {"rules", std::move(rules)}};
  if (const auto& use = config.select.use_option) {
    json["use_option"] = plain(*use);
    if (use->value.empty()) json["use_option"]["value"] = "auto";
  }
  return json;
}

}  // namespace

std::string effective_config_json(const Config& config) {
  const Json json = {{"file", config.file},
                     {"precedence", {"option", "environment", "file", "default"}},
                     {"backends", backends_of(config.backends)},
                     {"select", select_of(config)},
                     {"log", {{"level", log_level(config.log_level)}}},
                     {"threads", plain(config.threads)},
                     {"validate", plain(config.validate)},
                     {"allow_nan", plain(config.allow_nan)},
                     {"overridden", config.overridden},
                     {"warnings", unreachable_rules(config)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace perch
