// Step 1, config: which rule a layer gets, what follows from it, and which rules no layer can get
// (field_reports.md J3).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/match.h"
#include "config/yaml_reader.h"

namespace perch {
namespace {

Config parsed(const std::string& text) {
  Result<Config> result = parse_config(text, "p.yaml");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : Config();
}

TEST(Rules, GlobsMatchTheWholeText) {
  struct Case {
    const char* pattern;
    const char* text;
    bool fits;
  };
  const Case cases[] = {
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"*", "a.b.c", true},
      {"a", "ab", false},
      {"a*", "a", true},
      {"*.mlp", "l.7.mlp", true},
      {"*.mlp", "l.7.mlp2", false},
      {"l.?.mlp", "l.7.mlp", true},
      {"l.?.mlp", "l.17.mlp", false},
      {"*a*b*c", "xaxbxbxc", true},
      {"*a*b*c", "xaxcxb", false},
      {"[ab]", "a", false},
      {"[ab]", "[ab]", true},
      {"**", "x", true},
      {"?", "", false},
      {"a\\*", "a\\b", true},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(glob_matches(c.pattern, c.text), c.fits) << c.pattern << " on " << c.text;
  }
}

// J3: by layer, by format, default; the first that matches.
TEST(Rules, FourLayersResolveAsListed) {
  const Config config = parsed(R"(version: 1
select:
  rules:
    - match: {name: "model.layers.3.*"}
      use: [reference]
    - match: {format: nvfp4}
      use: [humming-cuda]
    - match: {kind: linear, format: "e4m3*"}
    - match: {}
      use: [humming-cpu]
)");
  struct Layer {
    LayerFacts facts;
    int rule_line;
    std::vector<std::string> use;
  };
  const Layer layers[] = {
      {{"moe", "e2m1g16:e4m3+s2t", {"nvfp4"}, "cuda", "model.layers.0.mlp", "m"},
       6,
       {"humming-cuda"}},
      {{"linear", "e4m3b128:f32", {"fp8"}, "cuda", "model.layers.1.q", "m"}, 8, {}},
      {{"moe", "e4m3b128:f32", {"fp8"}, "cpu", "model.layers.2.mlp", "m"}, 9, {"humming-cpu"}},
      {{"moe", "e2m1g16:e4m3+s2t", {"nvfp4"}, "cuda", "model.layers.3.mlp", "m"}, 4, {"reference"}},
  };
  for (const Layer& layer : layers) {
    const Policy policy = policy_for(config, layer.facts);
    ASSERT_NE(policy.rule, nullptr) << layer.facts.name;
    EXPECT_EQ(policy.rule->line, layer.rule_line) << layer.facts.name;
    EXPECT_EQ(policy.use.value, layer.use) << layer.facts.name;
  }
  EXPECT_TRUE(unreachable_rules(config).empty());
}

TEST(Rules, NoRuleIsEveryBackendAndTheDefaults) {
  const Config config = parsed("version: 1\nselect: {defaults: {require: [ASYNC]}}\n");
  const Policy policy = policy_for(config, {"moe", "bf16", {}, "cpu", "l", ""});
  EXPECT_EQ(policy.rule, nullptr);
  EXPECT_TRUE(policy.use.value.empty());
  EXPECT_EQ(policy.require.value, PERCH_CAP_ASYNC);
  EXPECT_FALSE(policy.fallback_allow.value);
}

const char kTwoRules[] = R"(version: 1
select:
  defaults: {fallback: allow, require: [deterministic]}
  rules:
    - match: {kind: moe}
      require: [BATCH_INVARIANT]
      fallback: error
    - match: {}
)";

TEST(Rules, ARuleAddsCapsAndReplacesTheRest) {
  const Config config = parsed(kTwoRules);
  const Policy first = policy_of(config, &config.select.rules[0]);
  EXPECT_EQ(first.require.value, PERCH_CAP_DETERMINISTIC | PERCH_CAP_BATCH_INVARIANT);
  EXPECT_EQ(first.require.origin.where, "p.yaml:3:40 and p.yaml:5:7");
  EXPECT_FALSE(first.fallback_allow.value);
  EXPECT_EQ(first.fallback_allow.origin.where, "p.yaml:5:7");
  const Policy second = policy_of(config, &config.select.rules[1]);
  EXPECT_TRUE(second.fallback_allow.value);
  EXPECT_EQ(second.fallback_allow.origin.where, "p.yaml:3:24");
}

TEST(Rules, UnreachableOnesAreReported) {
  const Config config = parsed(R"(version: 1
select:
  rules:
    - match: {kind: moe}
    - match: {kind: moe, device: cpu}
    - match: {}
    - match: {format: nvfp4}
)");
  const std::vector<std::string> expected = {
      "p.yaml:5:7: select.rules[1] can never be reached: select.rules[0] (p.yaml:4:7) matches "
      "every layer that it matches; move it up or remove it",
      "p.yaml:7:7: select.rules[3] can never be reached: select.rules[2] (p.yaml:6:7) matches "
      "every layer that it matches; move it up or remove it"};
  EXPECT_EQ(unreachable_rules(config), expected);
}

TEST(Rules, OneCoversTheOther) {
  struct Case {
    const char* earlier;
    const char* later;
    bool covers;
  };
  const Case cases[] = {
      {"{}", "{}", true},
      {"{kind: moe}", "{kind: moe}", true},
      {"{kind: moe}", "{kind: linear}", false},
      {"{kind: moe}", "{}", false},
      {"{kind: moe, device: cpu}", "{kind: moe}", false},
      {"{name: '*'}", "{}", true},
      {"{name: 'a.*'}", "{name: a.b.c}", true},
      {"{name: 'a.*'}", "{name: 'a.b.*'}", true},
      {"{name: 'a.b.*'}", "{name: 'a.*'}", false},
      {"{name: 'a?'}", "{name: 'a*'}", false},
      {"{name: 'a?'}", "{name: 'a?'}", true},
      {"{name: 'a*'}", "{name: 'a?'}", true},
      {"{name: '?'}", "{name: '*'}", false},
      {"{format: 'int4*'}", "{format: int4g32}", true},
      {"{format: nvfp4}", "{format: mxfp4}", false},
      {"{model_type: qwen3}", "{model_type: qwen3, name: a}", true},
  };
  for (const Case& c : cases) {
    const Config config = parsed(std::string("version: 1\nselect:\n  rules:\n    - match: ") +
                                 c.earlier + "\n    - match: " + c.later + "\n");
    EXPECT_EQ(unreachable_rules(config).size(), c.covers ? 1U : 0U) << c.earlier << c.later;
  }
}

}  // namespace
}  // namespace perch
