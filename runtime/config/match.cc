// See match.h. Part of step 1, config.
#include "config/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace perch {
namespace {

using Pattern = std::optional<std::string>;

// Greedy with one step back, so linear in pattern x text at worst. `fits(p, t)` is asked for each
// byte t under a pattern byte p that is not '*'.
template <class Fits>
bool glob_walk(std::string_view pattern, std::string_view text, Fits fits) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last '*' seen, and where its text ends so far
  size_t star_end = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = t;
    } else if (p < pattern.size() && fits(pattern[p], text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_end;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Does `earlier` match all that `later` matches? A '*' of `later` stands for any text, so only a
// '*' can take it in; then whatever it stands for is taken in too. Never wrongly true.
bool covers(const Pattern& earlier, const Pattern& later) {
  if (!earlier) return true;
  return glob_walk(*earlier, later ? *later : "*",
                   [](char e, char l) { return l != '*' && (e == '?' || e == l); });
}

bool covers(const Match& earlier, const Match& later) {
  return covers(earlier.kind, later.kind) && covers(earlier.format, later.format) &&
         covers(earlier.device, later.device) && covers(earlier.name, later.name) &&
         covers(earlier.model_type, later.model_type);
}

bool fits(const Pattern& pattern, const std::string& text) {
  return !pattern || glob_matches(*pattern, text);
}

Setting<perch_caps> joined(const Setting<perch_caps>& defaults, perch_caps own, const Rule* rule) {
  if (own == 0) return defaults;
  if (defaults.value == 0) return {own, {rule->where}};
  return {defaults.value | own, {defaults.origin.where + " and " + rule->where}};
}

Setting<bool> chosen(const Setting<bool>& defaults, std::optional<bool> own, const Rule* rule) {
  return own ? Setting<bool>{*own, {rule->where}} : defaults;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  return glob_walk(pattern, text, [](char p, char t) { return p == '?' || p == t; });
}

bool matches(const Match& match, const LayerFacts& facts) {
  const bool format =
      fits(match.format, facts.format) ||
      std::any_of(facts.format_aliases.begin(), facts.format_aliases.end(),
                  [&](const std::string& alias) { return fits(match.format, alias); });
  return format && fits(match.kind, facts.kind) && fits(match.device, facts.device) &&
         fits(match.name, facts.name) && fits(match.model_type, facts.model_type);
}

const Rule* find_rule(const Config& config, const LayerFacts& facts) {
  for (const Rule& rule : config.select.rules) {
    if (matches(rule.match, facts)) return &rule;
  }
  return nullptr;
}

Policy policy_of(const Config& config, const Rule* rule) {
  const SelectDefaults& defaults = config.select.defaults;
  Policy policy;
  policy.rule = rule;
  policy.require = defaults.require;
  policy.prefer = defaults.prefer;
  policy.fallback_allow = defaults.fallback_allow;
  policy.on_prepare_error_next = defaults.on_prepare_error_next;
  if (rule != nullptr) {
    policy.require = joined(defaults.require, rule->require, rule);
    policy.prefer = joined(defaults.prefer, rule->prefer, rule);
    policy.fallback_allow = chosen(defaults.fallback_allow, rule->fallback_allow, rule);
    policy.on_prepare_error_next =
        chosen(defaults.on_prepare_error_next, rule->on_prepare_error_next, rule);
    policy.use = {rule->use, {rule->use.empty() ? "default" : rule->where}};
  }
  if (config.select.use_option) policy.use = *config.select.use_option;
  return policy;
}

std::vector<std::string> unreachable_rules(const Config& config) {
  const std::vector<Rule>& rules = config.select.rules;
  std::vector<std::string> lines;
  for (size_t later = 1; later < rules.size(); ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      if (!covers(rules[earlier].match, rules[later].match)) continue;
      lines.push_back(fmt::format(
          "{}: select.rules[{}] can never be reached: select.rules[{}] ({}) matches every layer "
          "that it matches; move it up or remove it",
          rules[later].where, later, earlier, rules[earlier].where));
      break;
    }
  }
  return lines;
}

}  // namespace perch
