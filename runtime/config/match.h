// Questions to a Config: which rule does a layer get, what follows from it, and which rules no
// layer can ever get. The end of step 1; select/ asks per layer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace perch {

// What rules can ask about a layer.
struct LayerFacts {
  std::string kind;                         // "moe" or "linear"
  std::string format;                       // as printed: "int4g32", "bf16"
  std::vector<std::string> format_aliases;  // other names of the same format: "nvfp4"
  std::string device;                       // "cpu" or "cuda"
  std::string name;                         // "model.layers.7.mlp"
  std::string model_type;                   // empty where there is no model
};

// '*' is any text, '?' any one byte, everything else itself; the whole of `text` must fit.
bool glob_matches(std::string_view pattern, std::string_view text);

bool matches(const Match& match, const LayerFacts& facts);

// The first rule that matches, or null. Points into `config`.
const Rule* find_rule(const Config& config, const LayerFacts& facts);

// A rule with the defaults and options around it: everything that select/ needs for one layer.
struct Policy {
  const Rule* rule = nullptr;   // null: no rule matched
  Setting<perch_caps> require;  // the defaults' and the rule's; the layer's own come on top
  Setting<perch_caps> prefer;
  // Backend ids, best first. Nothing outside it is a candidate; empty: every backend is one.
  Setting<std::vector<std::string>> use;
  Setting<bool> fallback_allow;
  Setting<bool> on_prepare_error_next;
};
Policy policy_of(const Config& config, const Rule* rule);
inline Policy policy_for(const Config& config, const LayerFacts& facts) {
  return policy_of(config, find_rule(config, facts));
}

// One line for each rule that can never be reached, because an earlier one matches everything it
// matches. For a warning. Not found: a rule that only several earlier ones together cover, and two
// names of one format.
std::vector<std::string> unreachable_rules(const Config& config);

}  // namespace perch
