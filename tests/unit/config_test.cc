// Step 1, config: what is read, what stands above what (field_reports.md F3), and the dump that
// shows it. Errors: config_error_test.cc; rules: config_match_test.cc.
#include "config/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest.h"
#include "config/effective.h"
#include "config/environment.h"
#include "config/match.h"
#include "config/yaml_reader.h"

namespace perch {
namespace {

Config parsed(const std::string& text) {
  Result<Config> result = parse_config(text, "p.yaml");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : Config();
}

const char kAll[] = R"(version: 1
backends:
  paths: [/usr/lib/perch/backends]
  allow: ["humming-*", reference]
  deny: [cuda-experimental]
  must_load: [reference]
  probe: process
  trust: any
  allow_draft: true
  options:
    humming-cpu: {isa: avx2, stream_k: false, n: 0x10, note: "off"}
select:
  defaults: {fallback: allow, on_prepare_error: next, require: [deterministic]}
  rules:
    - match: {kind: moe, format: nvfp4, device: cuda, name: "model.layers.*", model_type: qwen3}
      require: [BATCH_INVARIANT, Fp32_Accum]
      prefer: [ASYNC]
      use: [humming-cuda]
      options: {stream_k: false}
      act: none
      requant: int4g128
      fallback: error
      on_prepare_error: error
    - match: {}
log: {level: debug}
threads: 8
validate: true
allow_nan: true
)";

TEST(Config, EveryKey) {
  const Config config = parsed(kAll);
  const BackendsConfig& b = config.backends;
  ASSERT_EQ(b.paths.size(), 1U);
  EXPECT_EQ(b.paths[0].value, "/usr/lib/perch/backends");
  EXPECT_EQ(b.paths[0].origin.where, "p.yaml:3:11");
  EXPECT_EQ(b.allow.value, (std::vector<std::string>{"humming-*", "reference"}));
  EXPECT_EQ(b.deny.value, std::vector<std::string>{"cuda-experimental"});
  EXPECT_EQ(b.must_load.value, std::vector<std::string>{"reference"});
  EXPECT_EQ(b.probe.value, Probe::kProcess);
  EXPECT_TRUE(b.trust_any.value);
  EXPECT_TRUE(b.allow_draft.value);
  const Options options = {{"isa", "avx2"}, {"stream_k", "false"}, {"n", "0x10"}, {"note", "off"}};
  EXPECT_EQ(b.options.at("humming-cpu").value, options);
  const SelectDefaults& defaults = config.select.defaults;
  EXPECT_TRUE(defaults.fallback_allow.value);
  EXPECT_TRUE(defaults.on_prepare_error_next.value);
  EXPECT_EQ(defaults.require.value, PERCH_CAP_DETERMINISTIC);
  EXPECT_EQ(config.log_level.value, PERCH_LOG_DEBUG);
  EXPECT_EQ(config.threads.value, 8);
  EXPECT_TRUE(config.validate.value);
  EXPECT_TRUE(config.allow_nan.value);
}

TEST(Config, EveryKeyOfARule) {
  const Config config = parsed(kAll);
  ASSERT_EQ(config.select.rules.size(), 2U);
  const Rule& r = config.select.rules[0];
  EXPECT_EQ(r.match.kind, "moe");
  EXPECT_EQ(r.match.format, "nvfp4");
  EXPECT_EQ(r.match.device, "cuda");
  EXPECT_EQ(r.match.name, "model.layers.*");
  EXPECT_EQ(r.match.model_type, "qwen3");
  EXPECT_EQ(r.require, PERCH_CAP_BATCH_INVARIANT | PERCH_CAP_FP32_ACCUM);
  EXPECT_EQ(r.prefer, PERCH_CAP_ASYNC);
  EXPECT_EQ(r.use, std::vector<std::string>{"humming-cuda"});
  EXPECT_EQ(r.options, (Options{{"stream_k", "false"}}));
  EXPECT_EQ(r.act, "none");
  EXPECT_EQ(r.requant, "int4g128");
  EXPECT_EQ(r.fallback_allow, false);
  EXPECT_EQ(r.on_prepare_error_next, false);
  EXPECT_EQ(r.where, "p.yaml:15:7");
  EXPECT_EQ(r.line, 15);
  EXPECT_EQ(r.column, 7);
  EXPECT_FALSE(config.select.rules[1].match.kind.has_value());
  EXPECT_FALSE(config.select.rules[1].fallback_allow.has_value());
}

TEST(Config, OnlyTheVersionIsNeeded) {
  const Config config = parsed("version: 1");
  EXPECT_EQ(config.backends.allow.value, std::vector<std::string>{"*"});
  EXPECT_FALSE(config.backends.trust_any.value);
  EXPECT_FALSE(config.select.defaults.fallback_allow.value);
  EXPECT_EQ(config.log_level.value, PERCH_LOG_WARN);
  EXPECT_EQ(config.threads.value, 0);
  EXPECT_EQ(config.threads.origin.where, "default");
}

TEST(Config, AnchorsAliasesAndMarks) {
  const Config config = parsed(
      "\xEF\xBB\xBF%YAML 1.2\n---\nversion: 1\nselect:\n  rules:\n    - match: {format: nvfp4}\n"
      "      use: &fast [b, a]\n    - match: {format: mxfp4}\n      use: *fast\n...\n");
  ASSERT_EQ(config.select.rules.size(), 2U);
  EXPECT_EQ(config.select.rules[1].use, (std::vector<std::string>{"b", "a"}));
}

// ---- Environment and options
// -----------------------------------------------------------------------

TEST(Environment, OnlyFourVariablesExist) {
  EXPECT_TRUE(check_environment({"PATH=/bin", "PERCHANCE=1", "PERCH_LOG=info", "perch_x=1", "=",
                                 "PERCH_THREADS=", "PERCH_VALIDATE=1", "PERCH_BACKEND_PATH=/a"})
                  .ok());
  const Status status = check_environment({"PATH=/bin", "PERCH_THREDS=4"});
  EXPECT_EQ(status.code(), PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(status.message(),
            "env PERCH_THREDS: got an unknown variable; want PERCH_BACKEND_PATH, PERCH_LOG, "
            "PERCH_THREADS or PERCH_VALIDATE; did you mean \"PERCH_THREADS\"?");
  EXPECT_FALSE(check_environment({"PERCH_"}).ok());
}

TEST(Environment, OptionOverEnvironmentOverFileOverDefault) {
  Config config = parsed("version: 1\nlog: {level: debug}\nthreads: 8\n");
  ASSERT_TRUE(apply_environment(
                  config, {{"PERCH_LOG", "info"}, {"PERCH_THREADS", "4"}, {"PERCH_VALIDATE", "1"}})
                  .ok());
  ASSERT_TRUE(apply_option(config, "threads", "2", "option --threads").ok());
  EXPECT_EQ(config.log_level.value, PERCH_LOG_INFO);
  EXPECT_EQ(config.log_level.origin.where, "env PERCH_LOG");
  EXPECT_EQ(config.threads.value, 2);
  EXPECT_EQ(config.threads.origin.where, "option --threads");
  EXPECT_TRUE(config.validate.value);
  EXPECT_FALSE(config.allow_nan.value);
  EXPECT_EQ(config.allow_nan.origin.where, "default");
  const std::vector<std::string> overridden = {
      "log.level: \"info\" from env PERCH_LOG takes the place of p.yaml:2:14",
      "threads: \"4\" from env PERCH_THREADS takes the place of p.yaml:3:10",
      "threads: \"2\" from option --threads takes the place of env PERCH_THREADS"};
  EXPECT_EQ(config.overridden, overridden);
}

TEST(Environment, PathsAddUpInSearchOrder) {
  Config config = parsed("version: 1\nbackends: {paths: [/file]}\n");
  ASSERT_TRUE(apply_environment(config, {{"PERCH_BACKEND_PATH", "/env/a:/env/b"}}).ok());
  ASSERT_TRUE(apply_option(config, "backend_path", "/option", "option --plugin").ok());
  std::vector<std::string> found;
  for (const Setting<std::string>& path : config.backends.paths) {
    found.push_back(path.value + " " + path.origin.where);
  }
  const std::vector<std::string> expected = {"/option option --plugin", "/file p.yaml:2:20",
                                             "/env/a env PERCH_BACKEND_PATH",
                                             "/env/b env PERCH_BACKEND_PATH"};
  EXPECT_EQ(found, expected);
}

TEST(Environment, AWrongValueChangesNothing) {
  struct Case {
    const char* name;
    const char* value;
    const char* message;
  };
  const Case cases[] = {
      {"PERCH_LOG", "inof",
       "env PERCH_LOG: got \"inof\"; want debug, info, warn or error; did you mean \"info\"?"},
      {"PERCH_LOG", "", "env PERCH_LOG: got \"\"; want debug, info, warn or error"},
      {"PERCH_THREADS", "4x",
       "env PERCH_THREADS: got \"4x\"; want a whole number from 0 (one per core) to 4096"},
      {"PERCH_THREADS", "-1",
       "env PERCH_THREADS: got \"-1\"; want a whole number from 0 (one per core) to 4096"},
      {"PERCH_VALIDATE", "\xFFyes\n", "env PERCH_VALIDATE: got \"?yes?\"; want 0 or 1"},
      {"PERCH_BACKEND_PATH", "/a::/b",
       "env PERCH_BACKEND_PATH: got \"/a::/b\"; want absolute paths with ':' between them"},
      {"PERCH_BACKEND_PATH", "lib",
       "env PERCH_BACKEND_PATH: got \"lib\"; want absolute paths with ':' between them"},
      {"PERCH_LOGS", "info",
       "env PERCH_LOGS: got an unknown variable; want PERCH_BACKEND_PATH, PERCH_LOG, "
       "PERCH_THREADS or PERCH_VALIDATE; did you mean \"PERCH_LOG\"?"},
  };
  for (const Case& c : cases) {
    Config config = parsed("version: 1\n");
    const Status status = apply_environment(config, {{"PERCH_THREADS", "3"}, {c.name, c.value}});
    EXPECT_EQ(status.message(), c.message);
    EXPECT_EQ(config.threads.value, 0);
  }
}

TEST(Environment, ABackendByNameStandsAboveEveryRule) {
  Config config = parsed("version: 1\nselect: {rules: [{match: {}, use: [a]}]}\n");
  ASSERT_TRUE(apply_option(config, "backend", "b,c", "option --backend").ok());
  const LayerFacts facts = {"moe", "bf16", {}, "cpu", "l", ""};
  EXPECT_EQ(policy_for(config, facts).use.value, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(policy_for(config, facts).use.origin.where, "option --backend");
  ASSERT_TRUE(apply_option(config, "backend", "auto", "option --backend").ok());
  EXPECT_TRUE(policy_for(config, facts).use.value.empty());
  EXPECT_FALSE(apply_option(config, "backend", "b,", "option --backend").ok());
  EXPECT_EQ(apply_option(config, "color", "1", "x").code(), PERCH_E_INTERNAL);
}

// ---- The dump
// --------------------------------------------------------------------------------------

TEST(Effective, EveryValueHasItsOrigin) {
  Config config = parsed(kAll);
  ASSERT_TRUE(apply_environment(config, {{"PERCH_THREADS", "4"}}).ok());
  const auto json = nlohmann::json::parse(effective_config_json(config));
  EXPECT_EQ(json["file"], "p.yaml");
  EXPECT_EQ(json["precedence"], (nlohmann::json{"option", "environment", "file", "default"}));
  EXPECT_EQ(json["threads"], (nlohmann::json{{"value", 4}, {"origin", "env PERCH_THREADS"}}));
  EXPECT_EQ(json["log"]["level"], (nlohmann::json{{"value", "debug"}, {"origin", "p.yaml:25:14"}}));
  EXPECT_EQ(json["backends"]["trust"]["value"], "any");
  EXPECT_EQ(json["backends"]["paths"][0]["origin"], "p.yaml:3:11");
  EXPECT_EQ(json["backends"]["options"]["humming-cpu"]["value"]["isa"], "avx2");
  const auto& first = json["select"]["rules"][0];
  EXPECT_EQ(first["origin"], "p.yaml:15:7");
  EXPECT_EQ(first["require"]["value"],
            (nlohmann::json{"deterministic", "batch_invariant", "fp32_accum"}));
  EXPECT_EQ(first["act"]["value"], "none");
  const auto& second = json["select"]["rules"][1];
  EXPECT_EQ(second["use"], (nlohmann::json{{"value", "auto"}, {"origin", "default"}}));
  EXPECT_EQ(second["fallback"], (nlohmann::json{{"value", "allow"}, {"origin", "p.yaml:13:24"}}));
  EXPECT_EQ(json["overridden"].size(), 1U);
  EXPECT_TRUE(json["warnings"].empty());
}

TEST(Effective, UnreachableRulesAndBytesThatAreNotText) {
  Config config = parsed("version: 1\nselect: {rules: [{match: {}}, {match: {}}]}\n");
  ASSERT_TRUE(apply_environment(config, {{"PERCH_BACKEND_PATH", "/\xFF"}}).ok());
  const auto json = nlohmann::json::parse(effective_config_json(config));
  EXPECT_EQ(json["warnings"].size(), 1U);
  EXPECT_EQ(json["backends"]["paths"][0]["value"], "/\xEF\xBF\xBD");
}

// ---- Words
// -----------------------------------------------------------------------------------------

TEST(Nearest, FewestTypingErrors) {
  const std::vector<std::string_view> known = {"backends", "select", "log", "must_load"};
  EXPECT_EQ(nearest_name("bakends", known), "backends");
  EXPECT_EQ(nearest_name("bcakends", known), "backends");
  EXPECT_EQ(nearest_name("MUST-LOAD", known), "must_load");
  EXPECT_EQ(nearest_name("lgo", known), "log");
  EXPECT_EQ(nearest_name("moe", known), std::nullopt);
  EXPECT_EQ(nearest_name("", known), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), known), std::nullopt);
  EXPECT_EQ(nearest_name("log", {}), std::nullopt);
}

// ---- Files
// -----------------------------------------------------------------------------------------

TEST(ConfigFile, AbsentDirectoryEndless) {
  EXPECT_EQ(load_config("/nonexistent/perch.yaml").status().code(), PERCH_E_NOT_FOUND);
  EXPECT_EQ(load_config("/").status().code(), PERCH_E_NOT_FOUND);
  const Status endless = load_config("/dev/zero").status();
  EXPECT_EQ(endless.message(), "/dev/zero: size: got more than 1048576 bytes; want at most that");
}

#ifdef PERCH_SOURCE_DIR
TEST(ConfigFile, ThoseWeShip) {
  const std::string folder = std::string(PERCH_SOURCE_DIR) + "/configs/";
  const LayerFacts moe = {"moe", "bf16", {}, "cpu", "model.layers.0.mlp", "m"};
  for (const char* name : {"default.yaml", "reference.yaml", "batch_invariant.yaml"}) {
    const Result<Config> config = load_config(folder + name);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_TRUE(unreachable_rules(*config).empty()) << name;
  }
  const Result<Config> usual = load_config(folder + "default.yaml");
  const Result<Config> reference = load_config(folder + "reference.yaml");
  const Result<Config> invariant = load_config(folder + "batch_invariant.yaml");
  EXPECT_TRUE(policy_for(*usual, moe).use.value.empty()) << "every backend may compete";
  EXPECT_EQ(policy_for(*reference, moe).use.value, std::vector<std::string>{"reference"});
  EXPECT_EQ(policy_for(*invariant, moe).require.value, PERCH_CAP_BATCH_INVARIANT);
}

TEST(ConfigFile, DefaultAndReferenceDifferInOneLine) {
  std::ifstream a(std::string(PERCH_SOURCE_DIR) + "/configs/default.yaml");
  std::ifstream b(std::string(PERCH_SOURCE_DIR) + "/configs/reference.yaml");
  std::string line_a, line_b;
  int different = 0;
  while (std::getline(a, line_a)) {
    ASSERT_TRUE(std::getline(b, line_b));
    different += line_a != line_b ? 1 : 0;
  }
  EXPECT_FALSE(std::getline(b, line_b));
  EXPECT_EQ(different, 1);
}
#endif

}  // namespace
}  // namespace perch
