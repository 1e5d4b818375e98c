// canonical/module_names.h and canonical/python_pattern.h: which names mean which module.
#include "canonical/module_names.h"

#include <gtest/gtest.h>

#include "canonical/python_pattern.h"

namespace perch {
namespace {

struct Match {
  const char* pattern;
  const char* text;
  bool matches;
};

TEST(ModuleNames, PythonMatchIsAnchoredAtTheStartOnly) {
  const Match cases[] = {
      {".*mlp.gate$", "model.layers.0.mlp.gate", true},
      {".*mlp.gate$", "model.layers.0.mlp.gate_proj", false},
      {".*mlp.gate", "model.layers.0.mlp.gate_proj", true},
      {"mlp", "model.layers.0.mlp", false},
      {"model", "model.layers.0.mlp", true},
      {"", "a", true},
      {"layers|model", "model.a", true},
      {"layers.0|el", "model.a", false},
      {R"(.*\.layers\.(0|1|2)\..*)", "model.layers.2.x", true},
      {R"(.*\.layers\.(0|1|2)\..*)", "model.layers.12.x", false},
      {R"(.*layers\.\d+\.mlp)", "model.layers.12.mlp", true},
      {R"(.*self_attn\.[qkvo]_proj$)", "l.0.self_attn.k_proj", true},
      {R"(.*self_attn\.[^qkv]_proj$)", "l.0.self_attn.k_proj", false},
      {R"(.*[a-c\d_-]x$)", "-x", true},
      {"[]a]+$", "]a]", true},
      {"[^]a]", "]", false},
      {"[a-]$", "-", true},
      {R"(a\.b\Z)", "a.b", true},
      {R"(\Aa)", "ab", true},
      {R"(.*\bgate\b)", "mlp.gate.x", true},
      {R"(.*\bgate\b)", "mlp.gate_x", false},
      {R"(.*gate\B)", "mlp.gate_x", true},
      {"(?!.*experts).*proj$", "mlp.up_proj", true},
      {"(?!.*experts).*proj$", "mlp.experts.0.up_proj", false},
      {"(?=.*experts).*proj$", "mlp.experts.0.up_proj", true},
      {"(?:ab)+$", "ababab", true},
      {"(?P<name>ab)+?c", "ababc", true},
      {"(a|b)*c$", "abbac", true},
      {"a{2}$", "aa", true},
      {"a{2}$", "aaa", false},
      {"a{,2}$", "", true},
      {"a{2,}$", "aaaa", true},
      {"a{1,3}b", "aaaab", false},
      {"a{x}", "a{x}", true},
      {"a{", "a{", true},
      {"a+{{,2}$", "a{{", true},
      {".", "\n", false},
      {"a$", "a\n", true},
      {"a*?b", "aab", true},
      {"(a?){3}b", "aab", true},
      {"()*a", "a", true},
      {R"(\.\*\_\-)", ".*_-", true},
  };
  for (const Match& row : cases) {
    const Result<bool> found = python_match(row.pattern, row.text);
    ASSERT_TRUE(found.ok()) << row.pattern << ": " << found.status().message();
    EXPECT_EQ(*found, row.matches) << row.pattern << " on " << row.text;
  }
}

TEST(ModuleNames, PatternsThatAreNotReadAreRefused) {
  const std::pair<std::string, const char*> cases[] = {
      {"(?i)a", "want no (? but (?: (?= (?! and (?P<name>"},
      {"(?<=a)b", "want no (? but"},
      {"(?P=a)", "want no (? but"},
      {R"((a)\1)", R"(want no escape \1)"},
      {R"(\Xa)", R"(want no escape \X)"},
      {"a++", "want one repeat after another"},
      {"a**", "want one repeat after another"},
      {"a{2}{3}", "want one repeat after another"},
      {"*a", "want something before *"},
      {"(a", "want each ( to have its )"},
      {"a)", "want each ) to have its ("},
      {"[a", "want each [ to have its ]"},
      {"[[:alpha:]]", R"(want \[ for a [)"},
      {"[z-a]", "want ranges from a lower"},
      {"a\\", "want something after the last backslash"},
      {"a{1001}", "want at most 1000 repeats"},
      {"a{3,2}", "want {low,high}"},
      {std::string(1001, 'a'), "want at most 1000 bytes"},
      {std::string(40, '('), "want groups nested at most 32 deep"},
      {"(((((a?){1000}b?){1000}c?){1000}d?){1000}e?){1000}", "want a simpler one"},
  };
  for (const auto& [pattern, want] : cases) {
    const Result<bool> found = python_match(pattern, "abcdeabcdeabcde");
    ASSERT_FALSE(found.ok()) << pattern;
    EXPECT_EQ(found.status().code(), PERCH_E_UNSUPPORTED);
    EXPECT_NE(found.status().message().find(want), std::string::npos)
        << pattern << ": " << found.status().message();
  }
  EXPECT_FALSE(python_match("a", std::string(512, 'a')).ok());
  EXPECT_TRUE(*python_match("a*$", std::string(511, 'a')));
}

// Seconds to centuries for a matcher that goes back; here the steps are bounded.
TEST(ModuleNames, PatternsMadeToTakeLong) {
  const std::string text(500, 'a');
  for (const char* pattern : {"(a+)+$", "(a|a)*b", "(a*)*b", "(.*.*.*)*b", "(a?){500}a{500}$"}) {
    const Result<bool> found = python_match(pattern, text);
    EXPECT_TRUE(found.ok() || found.status().code() == PERCH_E_UNSUPPORTED) << pattern;
  }
  EXPECT_TRUE(*python_match("(a+)+$", text));
}

TEST(ModuleNames, WildcardsSpanDots) {
  const Match cases[] = {
      {"*", "", true},
      {"model.layers.0*", "model.layers.0.mlp.gate", true},
      {"model.layers.0*", "model.layers.01", true},
      {"*router*", "a.router.b", true},
      {"*mlp.gate", "model.layers.0.mlp.gate", true},
      {"*mlp.gate", "model.layers.0.mlp.gate_proj", false},
      {"a*b*c", "a.x.b.y.b.c", true},
      {"a*b*c", "a.x.b.y", false},
      {"a?c", "abc", true},
      {"a?c", "ac", false},
      {"a[bc]d", "acd", true},
      {"a[!bc]d", "acd", false},
      {"a[0-9]*", "a7x", true},
      {"a[", "a[", true},
      {"[]]", "]", true},
      {"", "a", false},
  };
  for (const Match& row : cases) {
    EXPECT_EQ(wildcard_match(row.pattern, row.text), row.matches)
        << row.pattern << " on " << row.text;
  }
}

TEST(ModuleNames, PrefixesThatCountForNothing) {
  const Match cases[] = {
      {"model.layers.0.mlp", "model.language_model.layers.0.mlp", true},
      {"language_model.model.layers.0.mlp", "layers.0.mlp", true},
      {"backbone.layers.0.mlp", "model.layers.0.mlp", true},
      {"lm_head", "language_model.lm_head", true},
      {"model.visual.blocks.0", "visual.blocks.0", true},
      {"model.layers.0.mlp", "mtp.layers.0.mlp", false},
      {"model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj", false},
      {"models.layers.0", "layers.0", false},
  };
  for (const Match& row : cases) {
    EXPECT_EQ(same_module(row.pattern, row.text), row.matches) << row.pattern << ", " << row.text;
  }
  EXPECT_TRUE(is_within("model.layers.61.mlp.gate", "model.layers.61"));
  EXPECT_TRUE(is_within("model.language_model.layers.61.mlp.gate", "model.layers.61"));
  EXPECT_FALSE(is_within("model.layers.61.mlp.gate", "model.layers.6"));
  EXPECT_FALSE(is_within("model.layers.61", ""));
}

TEST(ModuleNames, PatternsAndWildcardsTryEachPrefix) {
  EXPECT_TRUE(*pattern_names(R"(model\.layers\.0\..*)", "model.language_model.layers.0.mlp"));
  EXPECT_TRUE(*pattern_names("visual", "model.visual.blocks.0"));
  EXPECT_FALSE(*pattern_names("model", "mtp.layers.0.mlp"));
  // Judged on a name that is not there, these would answer otherwise.
  EXPECT_FALSE(*pattern_names("(?!language_model)", "language_model.model.layers.0"));
  EXPECT_FALSE(*pattern_names(".*language_model", "model.layers.0"));
  EXPECT_TRUE(wildcard_names("model.layers.0*", "model.language_model.layers.0.mlp"));
  EXPECT_TRUE(wildcard_names("*.mlp.experts", "model.layers.0.mlp.experts.3.up_proj"));
  EXPECT_FALSE(wildcard_names("model.*", "mtp.layers.0.mlp"));
  EXPECT_FALSE(wildcard_names("model.*", "lm_head"));
}

TEST(ModuleNames, ModulesThatAreNotConverted) {
  const Match cases[] = {
      {"mlp.gate", "model.layers.0.mlp.gate", true},
      {"gate", "model.layers.0.mlp.gate", true},
      {"gate", "model.layers.0.mlp.gate_proj", false},
      {"self_attn", "model.layers.0.self_attn.q_proj", true},
      {"model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", true},
      {"model.layers.*.mlp.router", "model.layers.7.mlp.experts.gate_up_proj", false},
      {"model.layers.0", "model.layers.0.mlp.up_proj", true},
      {"model.layers.0", "model.layers.01.mlp.up_proj", false},
      {"model.layers.0.mlp", "mtp.layers.0.mlp.up_proj", false},
      {"re:.*gate$", "model.layers.0.mlp.gate", true},
      {"re:.*gate$", "model.layers.0.mlp.gate_proj", false},
      {"", "a", false},
  };
  for (const Match& row : cases) {
    EXPECT_EQ(*is_not_converted(row.text, row.pattern), row.matches)
        << row.pattern << ", " << row.text;
  }
}

TEST(ModuleNames, TheModuleOfTheExperts) {
  EXPECT_EQ(experts_module("a.mlp.experts.3.up_proj"), "a.mlp.experts");
  EXPECT_EQ(experts_module("a.mlp.experts"), "a.mlp.experts");
  EXPECT_EQ(experts_module("a.mlp.shared_experts.up_proj"), "");
  EXPECT_EQ(experts_module("a.experts_x.experts.0"), "a.experts_x.experts");
  EXPECT_EQ(experts_module("a.experts.experts_x"), "a.experts");
  EXPECT_EQ(experts_module("experts"), "experts");
  EXPECT_EQ(experts_module(""), "");
}

}  // namespace
}  // namespace perch
