// Step 1, config: every error with its place and the nearest name (field_reports.md F3), and files
// made to hurt.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "config/yaml_reader.h"

namespace perch {
namespace {

using testing::TestWithParam;

std::string error_of(const std::string& text) {
  const Result<Config> result = parse_config(text, "p.yaml");
  if (result.ok()) return "";
  EXPECT_EQ(result.status().code(), PERCH_E_INVALID_ARGUMENT);
  return result.status().message();
}

// ---- What is refused, word for word
// ----------------------------------------------------------------

struct Wrong {
  const char* name;
  std::string yaml;
  std::string message;
};
std::ostream& operator<<(std::ostream& out, const Wrong& wrong) { return out << wrong.yaml; }

const char kTop[] = "version, backends, select, log, threads, validate or allow_nan";
const char kVersion[] = "want `version: 1`, the only version there is";

std::string rule(const std::string& body) {
  return "version: 1\nselect:\n  rules:\n    - match: {}\n" + body;
}

const std::vector<Wrong> kWrongVersions = {
    {"empty", "", std::string("p.yaml:1:1: got an empty file; ") + kVersion},
    {"only_comment", "# a\n", std::string("p.yaml:1:1: got an empty file; ") + kVersion},
    {"absent", "threads: 1\n", std::string("p.yaml:1:1: got no key `version`; ") + kVersion},
    {"other", "a: 1\nversion: 2\n",
     std::string("p.yaml:2:10: version: got the number 2; ") + kVersion},
    {"text", "version: \"1\"\n", std::string("p.yaml:1:10: version: got \"1\"; ") + kVersion},
    {"null", "# a\nversion:\n", std::string("p.yaml:2:1: version: got nothing; ") + kVersion},
    {"list", "- 1\n",
     "p.yaml:1:1: got a list; want a map that holds `version: 1`, the only version there is"},
};

const std::vector<Wrong> kWrongKeys = {
    {"top", "version: 1\nbakends: {}\n",
     std::string("p.yaml:2:1: bakends: got an unknown key; want ") + kTop +
         "; did you mean \"backends\"?"},
    {"f3_backend_list", "version: 1\nbackend: [cpu]\n",
     std::string("p.yaml:2:1: backend: got an unknown key; want ") + kTop +
         "; did you mean \"backends\"?"},
    {"f3_no_near_name", "version: 1\nmoe: {bakend: cpu}\n",
     std::string("p.yaml:2:1: moe: got an unknown key; want ") + kTop},
    {"nested", "version: 1\nbackends:\n  must-load: [a]\n",
     "p.yaml:3:3: backends.must-load: got an unknown key; want paths, allow, deny, must_load, "
     "probe, trust, allow_draft or options; did you mean \"must_load\"?"},
    {"in_rule", rule("      ues: [a]\n"),
     "p.yaml:5:7: select.rules[0].ues: got an unknown key; want match, require, prefer, use, "
     "options, act, requant, fallback or on_prepare_error; did you mean \"use\"?"},
    {"in_match", "version: 1\nselect: {rules: [{match: {fromat: nvfp4}}]}\n",
     "p.yaml:2:27: select.rules[0].match.fromat: got an unknown key; want kind, format, device, "
     "name or model_type; did you mean \"format\"?"},
    {"twice", "version: 1\nthreads: 3\nthreads: 3\n",
     "p.yaml:3:1: threads: got the key a second time (first on line 2); want it once"},
    {"twice_nested", rule("      options: {a: 1, b: 2, \"a\": 3}\n"),
     "p.yaml:5:29: select.rules[0].options.a: got the key a second time (first on line 5); "
     "want it once"},
    {"merge", "version: 1\nlog:\n  <<: {level: info}\n",
     "p.yaml:3:3: log: got the merge key <<; want each key written out"},
    {"list_as_key", "version: 1\n? [a]\n: 1\n",
     "p.yaml:2:3: got a list or map as a key; want a name"},
    {"no_match", "version: 1\nselect:\n  rules:\n    - use: [a]\n",
     "p.yaml:4:7: select.rules[0]: got no key `match`; want one; `match: {}` is every layer"},
};

const std::vector<Wrong> kWrongValues = {
    {"section_of_nothing", "version: 1\nlog:\n",
     "p.yaml:2:1: log: got nothing; want a map with level"},
    {"text_for_list", rule("      use: cpu\n"),
     "p.yaml:5:12: select.rules[0].use: got \"cpu\"; want a list of backend ids"},
    {"no_use", rule("      use: []\n"),
     "p.yaml:5:12: select.rules[0].use: got an empty list; want one backend id or more, or no "
     "`use` for any backend"},
    {"id", rule("      use: [Humming]\n"),
     "p.yaml:5:13: select.rules[0].use[0]: got \"Humming\"; want the id of a backend "
     "([a-z][a-z0-9-]*, at most 63 bytes)"},
    {"id_twice", rule("      use: [a, b, a]\n"),
     "p.yaml:5:19: select.rules[0].use[2]: got \"a\" a second time; want it once"},
    {"boolean_for_text", rule("      act: no\n"),
     "p.yaml:5:12: select.rules[0].act: got no, which YAML may read as a boolean; want an "
     "activation format, such as int8, or none (quote it if you mean the text \"no\")"},
    {"number_for_text", rule("      requant: 4\n"),
     "p.yaml:5:16: select.rules[0].requant: got the number 4; want a weight format, such as "
     "int4g128 (quote it if you mean the text \"4\")"},
    {"boolean_for_choice", "version: 1\nlog: {level: off}\n",
     "p.yaml:2:14: log.level: got off, which YAML may read as a boolean; want debug, info, warn "
     "or error"},
    {"choice", "version: 1\nbackends:\n  probe: proces\n",
     "p.yaml:3:10: backends.probe: got \"proces\"; want none or process; did you mean "
     "\"process\"?"},
    {"choice_case", "version: 1\nlog: {level: INFO}\n",
     "p.yaml:2:14: log.level: got \"INFO\"; want debug, info, warn or error; did you mean "
     "\"info\"?"},
    {"format", "version: 1\nselect: {rules: [{match: {format: nvpf4}}]}\n",
     "p.yaml:2:35: select.rules[0].match.format: got \"nvpf4\"; want the name of a weight format, "
     "such as int4g32, * and ? allowed; did you mean \"nvfp4\"?"},
    {"format_order", "version: 1\nselect: {rules: [{match: {format: int4g32+bias+z}}]}\n",
     "p.yaml:2:35: select.rules[0].match.format: got \"int4g32+bias+z\"; want it as it is printed, "
     "\"int4g32:f32+z+bias\""},
    {"act", rule("      act: int9\n"),
     "p.yaml:5:12: select.rules[0].act: got \"int9\"; want an activation format, such as int8, or "
     "none"},
    {"requant", rule("      requant: int4q128\n"),
     "p.yaml:5:16: select.rules[0].requant: got \"int4q128\"; want a weight format, such as "
     "int4g128"},
    {"kind", "version: 1\nselect: {rules: [{match: {kind: mo}}]}\n",
     "p.yaml:2:33: select.rules[0].match.kind: got \"mo\"; want moe or linear; did you mean "
     "\"moe\"?"},
    {"device_with_id", "version: 1\nselect: {rules: [{match: {device: \"cuda:0\"}}]}\n",
     "p.yaml:2:35: select.rules[0].match.device: got \"cuda:0\"; want cpu or cuda; did you mean "
     "\"cuda\"?"},
    {"on_prepare_error", "version: 1\nselect: {defaults: {on_prepare_error: allow}}\n",
     "p.yaml:2:39: select.defaults.on_prepare_error: got \"allow\"; want error or next"},
    {"yes_for_boolean", "version: 1\nvalidate: yes\n",
     "p.yaml:2:11: validate: got yes, which YAML may read as a boolean; want true or false"},
    {"quoted_boolean", "version: 1\nvalidate: \"true\"\n",
     "p.yaml:2:11: validate: got \"true\"; want true or false"},
    {"threads_text", "version: 1\nthreads: many\n",
     "p.yaml:2:10: threads: got \"many\"; want a whole number from 0 to 4096"},
    {"threads_negative", "version: 1\nthreads: -1\n",
     "p.yaml:2:10: threads: got the number -1; want a whole number from 0 to 4096"},
    {"threads_huge", "version: 1\nthreads: 99999999999999999999\n",
     "p.yaml:2:10: threads: got the number 99999999999999999999; want a whole number from 0 to "
     "4096"},
    {"path", "version: 1\nbackends: {paths: [/a, lib]}\n",
     "p.yaml:2:24: backends.paths[1]: got \"lib\"; want an absolute path of a directory or a "
     "file"},
    {"glob", "version: 1\nbackends: {deny: [cuda_x]}\n",
     "p.yaml:2:19: backends.deny[0]: got \"cuda_x\"; want the id of a backend, * and ? allowed"},
    {"option_boolean", rule("      options: {stream_k: off}\n"),
     "p.yaml:5:27: select.rules[0].options.stream_k: got off, which YAML may read as a boolean; "
     "want true, false, a number or text"},
    {"option_map", "version: 1\nbackends: {options: {a: {b: {c: 1}}}}\n",
     "p.yaml:2:29: backends.options.a.b: got a map; want true, false, a number or text"},
    {"option_id", "version: 1\nbackends: {options: {A: {b: 1}}}\n",
     "p.yaml:2:25: backends.options.A: got the key \"A\"; want a backend's id"},
    {"cap_twice", rule("      prefer: [ASYNC, async]\n"),
     "p.yaml:5:23: select.rules[0].prefer[1]: got \"async\" a second time; want it once"},
};

class Refused : public TestWithParam<Wrong> {};
TEST_P(Refused, WithPlaceAndName) { EXPECT_EQ(error_of(GetParam().yaml), GetParam().message); }

std::string name_of(const testing::TestParamInfo<Wrong>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Version, Refused, testing::ValuesIn(kWrongVersions), name_of);
INSTANTIATE_TEST_SUITE_P(Key, Refused, testing::ValuesIn(kWrongKeys), name_of);
INSTANTIATE_TEST_SUITE_P(Value, Refused, testing::ValuesIn(kWrongValues), name_of);

TEST(ConfigError, UnknownCapability) {
  const std::string message = error_of(rule("      require: [ASYNC, BATCH_INVARIENT]\n"));
  EXPECT_EQ(message.find("p.yaml:5:24: select.rules[0].require[1]: got \"BATCH_INVARIENT\"; want "),
            0U)
      << message;
  EXPECT_NE(message.find("; did you mean \"batch_invariant\"?"), std::string::npos) << message;
}

std::string match_name(const std::string& name) {
  return "version: 1\nselect: {rules: [{match: {name: " + name + "}}]}\n";
}

TEST(ConfigError, EveryWordLikeABooleanUnlessQuoted) {
  for (const char* word : {"no", "No", "NO", "off", "on", "yes", "true", "False", "y", "N"}) {
    const std::string text = word;
    EXPECT_NE(error_of(match_name(text)).find("p.yaml:2:33: "), std::string::npos);
    const auto config = parse_config(match_name("'" + text + "'"), "p.yaml");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->select.rules[0].match.name, text);
  }
}

// ---- Hostile files
// ---------------------------------------------------------------------------------

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

struct Hostile {
  const char* name;
  std::string yaml;
  const char* part;  // of the message
};
std::ostream& operator<<(std::ostream& out, const Hostile& hostile) { return out << hostile.name; }

std::vector<Hostile> hostile_files() {
  const std::string v = "version: 1\n";
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes += static_cast<char>(i);
  std::string bomb = v + "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 30; ++i) {
    const std::string alias = " *a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + repeated(alias + ",", 9) +
            alias + "]\n";
  }
  return {
      {"lists_10k_deep", v + "x: " + repeated("[", 10000) + repeated("]", 10000), "32 levels"},
      {"maps_10k_deep", v + "x: " + repeated("{a: ", 10000) + repeated("}", 10000), "32 levels"},
      {"dashes_10k", v + "x:\n " + repeated("- ", 10000) + "a\n", "32 levels"},
      {"open_list_10k", v + "x: " + repeated("[", 10000), "p.yaml:2:"},
      {"one_mebibyte_and_a_byte", repeated("a", (1U << 20) + 1), "p.yaml: size: got 1048577 bytes"},
      {"one_mebibyte_of_text", repeated("a", 1U << 20), "want a map that holds"},
      {"one_mebibyte_of_colons", repeated(":", 1U << 20), "p.yaml:1:"},
      {"all_bytes", repeated(all_bytes, 100), "p.yaml:1:1: got the byte 0x00; want UTF-8 text"},
      {"late_bad_byte", v + "# \xC3\n", "p.yaml:2:3: got the byte 0xc3; want UTF-8 text"},
      {"surrogate", v + "# \xED\xA0\x80\n", "p.yaml:2:3: got the byte 0xed"},
      {"nul_by_escape", v + "log: {level: \"a\\0\"}\n", "p.yaml:2:14: log.level: got \"a?\""},
      {"newline_in_value", v + "log: {level: \"a\\nb\"}\n", "p.yaml:2:14: log.level: got \"a?b\""},
      {"open_quote", v + "log: {level: \"a", "p.yaml:2:"},
      {"open_map", v + "log: {level: info", "p.yaml:2:"},
      {"closed_only", v + "log: ]\n", "p.yaml:2:"},
      {"tab", v + "\tthreads: 1\n", "p.yaml:2:1: not valid YAML"},
      {"second_document", v + "---\nversion: 1\n", "p.yaml:2:1: got a second document; want one"},
      {"tag", v + "threads: !!int 3\n", "p.yaml:2:10: threads: got the tag"},
      {"alias_of_nothing", v + "log: *a\n", "p.yaml:2:6: not valid YAML"},
      {"alias_in_itself", v + "x: &a [*a]\n", "p.yaml:2:8: x[0]: got an alias inside its own"},
      {"aliases_of_aliases", bomb, "expand to more than 64 MiB"},
      {"long_name", v + "select: {rules: [{match: {name: '" + repeated("*a", 3000) + "'}}]}\n",
       "p.yaml:2:33: select.rules[0].match.name: got 6000 bytes; want at most 4096"},
      {"many_rules", v + "select:\n  rules:\n" + repeated("  - match: {}\n", 1001),
       "p.yaml:4:3: select.rules: got 1001 rules; want at most 1000"},
      {"long_value", v + "log: {level: " + repeated("x", 100000) + "}\n", "xxx...\"; want debug"},
  };
}

class HostileFile : public TestWithParam<Hostile> {};
TEST_P(HostileFile, IsOneLineOfError) {
  const std::string message = error_of(GetParam().yaml);
  EXPECT_NE(message.find(GetParam().part), std::string::npos) << message;
  EXPECT_EQ(message.find("p.yaml:"), 0U) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 500U);
}
std::string name_of_file(const testing::TestParamInfo<Hostile>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Config, HostileFile, testing::ValuesIn(hostile_files()), name_of_file);

}  // namespace
}  // namespace perch
