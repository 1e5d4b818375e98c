// Config: what the operator decided, each value with where it came from. The output of step 1.
//
// Plain data, read by plugin/ (where to search, whom to trust), select/ (rules) and run/ (threads).
// Made by parse_config() from YAML (yaml_reader.h); environment variables and options are laid over
// it (environment.h); find_rule() and policy_for() answer questions (match.h). Nothing here knows
// which backends or layers exist: a name in it may turn out to name nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perch/base.h"

namespace perch {

// "perch.yaml:12:7", "default", "env PERCH_LOG", "option --threads".
struct Origin {
  std::string where = "default";
};

template <class T>
struct Setting {
  T value{};
  Origin origin{};
};

// Key and value in the order of the file; the value is text as a backend gets it.
using Options = std::vector<std::pair<std::string, std::string>>;

// All that are set must hold. format, name and model_type are globs: '*' is any text, dots
// included, '?' any one byte; text without them is matched whole.
struct Match {
  std::optional<std::string> kind;    // "moe" or "linear"
  std::optional<std::string> format;  // "int4g32", "nvfp4", "int4*"
  std::optional<std::string> device;  // "cpu" or "cuda"
  std::optional<std::string> name;    // "model.layers.*"
  std::optional<std::string> model_type;
};

struct Rule {
  Match match;
  perch_caps require = 0;          // added to the defaults' and to what the layer asks for
  perch_caps prefer = 0;           // likewise
  std::vector<std::string> use;    // backend ids, best first; no other is a candidate. Empty: all
  Options options;                 // compute options of the layer
  std::optional<std::string> act;  // activation recipe in place of the checkpoint's
  std::optional<std::string> requant;  // weight format to convert to; loses precision
  std::optional<bool> fallback_allow;
  std::optional<bool> on_prepare_error_next;
  int line = 0;
  int column = 0;
  std::string where;  // "perch.yaml:12:7"
};

enum class Probe { kNone, kProcess };

struct BackendsConfig {
  std::vector<Setting<std::string>> paths;  // absolute, in search order; the built-in one is last
  Setting<std::vector<std::string>> allow = {{"*"}, {}};  // globs of ids
  Setting<std::vector<std::string>> deny;                 // globs of ids; wins over allow
  Setting<std::vector<std::string>> must_load;            // ids
  Setting<Probe> probe = {Probe::kNone, {}};
  Setting<bool> trust_any;
  Setting<bool> allow_draft;
  std::map<std::string, Setting<Options>> options;  // by backend id
};

struct SelectDefaults {
  Setting<bool> fallback_allow;
  Setting<bool> on_prepare_error_next;
  Setting<perch_caps> require;
  Setting<perch_caps> prefer;
};

struct SelectConfig {
  SelectDefaults defaults;
  std::vector<Rule> rules;  // first match wins
  // Set by an option only (--backend): in place of every rule's `use`. Empty list: all.
  std::optional<Setting<std::vector<std::string>>> use_option;
};

struct Config {
  std::string file;  // as given to parse_config()
  BackendsConfig backends;
  SelectConfig select;
  Setting<int32_t> log_level = {PERCH_LOG_WARN, {}};  // PERCH_LOG_DEBUG .. PERCH_LOG_ERROR
  Setting<int32_t> threads;                           // 0: one per physical core allowed to us
  Setting<bool> validate;   // full checks, canaries and poison fills on every call
  Setting<bool> allow_nan;  // NaN codes and e8m0 255 in weights are not refused
  // One line for each value that an environment variable or option took the place of.
  std::vector<std::string> overridden;
};

}  // namespace perch
