// The policy reader: YAML from a stranger. What it takes must answer every question asked of it.
#include <nlohmann/json.hpp>
#include <string>

#include "config/effective.h"
#include "config/limits.h"
#include "config/match.h"
#include "config/yaml_reader.h"
#include "fuzz.h"
#include "mutate.h"

namespace perch::fuzz {
namespace {

constexpr std::string_view kWords[] = {"version: ",
                                       "threads: ",
                                       "validate: ",
                                       "allow_nan: ",
                                       "log: ",
                                       "level: ",
                                       "backends: ",
                                       "paths: ",
                                       "allow: ",
                                       "deny: ",
                                       "must_load: ",
                                       "probe: ",
                                       "trust: ",
                                       "allow_draft: ",
                                       "options: ",
                                       "select: ",
                                       "defaults: ",
                                       "fallback: ",
                                       "on_prepare_error: ",
                                       "require: ",
                                       "prefer: ",
                                       "rules: ",
                                       "match: ",
                                       "kind: ",
                                       "format: ",
                                       "device: ",
                                       "name: ",
                                       "model_type: ",
                                       "use: ",
                                       "act: ",
                                       "requant: ",
                                       "debug",
                                       "info",
                                       "warn",
                                       "error",
                                       "none",
                                       "process",
                                       "owner",
                                       "any",
                                       "next",
                                       "moe",
                                       "linear",
                                       "cpu",
                                       "cuda",
                                       "true",
                                       "false",
                                       "BATCH_INVARIANT",
                                       "INPLACE",
                                       "int4g32",
                                       "int8t",
                                       "0",
                                       "1",
                                       "7",
                                       "4097",
                                       "\n",
                                       "\n  - ",
                                       "{}",
                                       "[]",
                                       "\"*\"",
                                       ", ",
                                       "&a ",
                                       "*a",
                                       "!!str ",
                                       "<<: ",
                                       "---\n",
                                       "|\n  ",
                                       ">-\n  "};

void fuzz_yaml_config(Bytes bytes) {
  const Result<Config> config = parse_config(text_of(bytes), "fuzz.yaml");
  if (!config.ok()) {
    PERCH_FUZZ_CHECK(config.status().code() == PERCH_E_INVALID_ARGUMENT);
    PERCH_FUZZ_CHECK(config.status().message().rfind("fuzz.yaml", 0) == 0);
    return;
  }
  accept();
  PERCH_FUZZ_CHECK(config->threads.value >= 0 && config->threads.value <= kThreadsMax);
  PERCH_FUZZ_CHECK(config->select.rules.size() <= kRulesMax);
  for (const Rule& rule : config->select.rules) {
    PERCH_FUZZ_CHECK(rule.line > 0 && rule.column > 0);
    PERCH_FUZZ_CHECK(((rule.require | rule.prefer) & ~PERCH_CAPS_KNOWN) == 0);
  }
  const LayerFacts facts = {"moe", "int4g32:f32",    {"int4g32", "int4"},
                            "cpu", "model.layers.1", "m"};
  const Policy policy = policy_for(*config, facts);
  PERCH_FUZZ_CHECK(policy.rule == nullptr || matches(policy.rule->match, facts));
  unreachable_rules(*config);
  // Throws where the text is no JSON, and nothing here catches it.
  PERCH_FUZZ_CHECK(nlohmann::json::parse(effective_config_json(*config)).is_object());
  PERCH_FUZZ_BUG(config->threads.value > 9);
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TEXT_TARGET(yaml_config, perch::fuzz::fuzz_yaml_config, perch::fuzz::kWords);
