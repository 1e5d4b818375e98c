// Choosing, through the host API: field report F1 (all reasons in one error), F3 (a setting is in
// force or refused), and what happens when the winner fails to prepare.
#include <cstdlib>

#include "../abi/shell.h"
#include "api_rig.h"
#include "base/recipe.h"

namespace perch::test {
namespace {

const char kRefuser[] = PERCH_BUILD_DIR "/tests/api_fixtures/libperch_refuser.so";
// Takes plain bf16 linear layers and nothing else.
const char kMine[] = PERCH_BUILD_DIR "/tests/api_fixtures/libperch_mine.so";

perch_host::Runtime runtime_with_path(const std::string& yaml, const std::string& backend_path) {
  perch_runtime_opts opts{};
  opts.struct_size = sizeof(opts);
  opts.num_threads = 1;
  opts.config_text = yaml.c_str();
  opts.backend_path = backend_path.c_str();
  opts.log = [](void*, int32_t, const char*, const char*) {};
  return perch_host::make_runtime(&opts);
}

LayerConfig moe_of(const std::string& weight) {
  const perch_quant quant = *parse_weight(weight);
  LayerConfig config = LayerConfig::make_moe("model.layers.7.mlp.experts", quant, quant);
  config.layer().max_tokens = 16;
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = 2;
  moe.topk = 1;
  moe.hidden = 64;
  moe.intermediate = 32;
  moe.activation = PERCH_ACTIVATION_SILU;
  return config;
}

json candidate_of(const json& selection, const std::string& backend) {
  for (const json& candidate : selection["candidates"]) {
    if (candidate["backend"] == backend) return candidate;
  }
  return nullptr;
}

// ---- F1 ----------------------------------------------------------------------------------------

// One lacks the kind of layer, others a promise, one library did not load.
TEST(F1, OneErrorNamesEveryBackendWithItsReasonsAndTheLayer) {
  const TempDir folder;
  write_text(folder / "libperch_broken.so", "this is no library\n");
  const perch_host::Runtime runtime =
      runtime_with_path("version: 1\n", folder.path() + ":" + kMine);
  LayerConfig config = moe_of("mxfp4");
  config.layer().require = PERCH_CAP_BATCH_INVARIANT | PERCH_CAP_GRAPH_CAPTURE;
  perch_layer* layer = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(perch_layer_create(runtime.get(), &config.abi(), nullptr, 0, nullptr, &layer, &error),
            PERCH_E_UNSUPPORTED);
  const std::string text = error.message;
  EXPECT_TRUE(says(text, "layer 'model.layers.7.mlp.experts' (moe, cpu:0"));
  EXPECT_TRUE(says(text, "batch_invariant,graph_capture"));
  EXPECT_TRUE(says(text, "no backend fits"));
  EXPECT_TRUE(says(text, "require less, list another backend under `use`, or add one"));
  EXPECT_TRUE(says(text, "broken: LOAD"));
  EXPECT_TRUE(says(text, "CAP_MISSING require: graph_capture"));

  // The text has 496 bytes; the document has everything.
  const json selection = explain(config, runtime.get());
  EXPECT_TRUE(selection["chosen"].is_null());
  const json mine = candidate_of(selection, "mine");
  const json humming = candidate_of(selection, "humming-cpu");
  const json reference = candidate_of(selection, "reference");
  const json broken = candidate_of(selection, "broken");
  ASSERT_FALSE(mine.is_null());
  ASSERT_FALSE(humming.is_null());
  ASSERT_FALSE(reference.is_null());
  ASSERT_FALSE(broken.is_null());
  EXPECT_TRUE(says(mine["reasons"].dump(), "kind"));
  EXPECT_TRUE(says(humming["reasons"].dump(), "graph_capture"));
  EXPECT_TRUE(says(reference["reasons"].dump(), "\"code\":\"CAP_MISSING\""));
  EXPECT_TRUE(says(reference["reasons"].dump(), "graph_capture"));
  EXPECT_TRUE(says(broken["reasons"].dump(), folder / "libperch_broken.so"));
  EXPECT_TRUE(says(broken["reasons"].dump(), "ELF"));
  for (const json& candidate : selection["candidates"]) {
    EXPECT_EQ(candidate["verdict"], "no");
    EXPECT_FALSE(candidate["reasons"].empty()) << candidate.dump();
  }
}

// Variants that refuse for the same reason share a line.
TEST(F1, VariantsAreNamed) {
  LayerConfig config = moe_of("bf16");
  config.layer().require = PERCH_CAP_GRAPH_CAPTURE;
  const std::string text =
      refusal([&] { build_layer(runtime_of("version: 1\n").get(), config, {}); });
  EXPECT_TRUE(says(text, "reference/0: CAP_MISSING"));
  EXPECT_TRUE(says(text, "humming-cpu/1,0: CAP_MISSING"));
}

// ---- Rules -------------------------------------------------------------------------------------

std::string chosen(const json& selection) {
  if (selection["chosen"].is_null()) return "";
  return selection["chosen"]["backend"].get<std::string>() + "/" +
         std::to_string(selection["chosen"]["variant"].get<int>());
}

TEST(Rules, FirstMatchDecides) {
  const perch_host::Runtime runtime = runtime_of(
      "version: 1\nselect:\n  rules:\n"
      "    - match: {name: \"model.layers.7.*\"}\n      use: [reference]\n"
      "    - match: {format: int4*}\n      use: [humming-cpu]\n"
      "    - match: {kind: moe}\n      require: [BATCH_INVARIANT]\n      use: [humming-cpu]\n");
  LayerConfig config = moe_of("int4g32:bf16");
  const json first = explain(config, runtime.get());
  EXPECT_EQ(chosen(first), "reference/0");
  EXPECT_TRUE(says(first["rule"], "config_text:4:7"));
  config.set_name("model.layers.8.mlp.experts");
  EXPECT_TRUE(says(chosen(explain(config, runtime.get())), "humming-cpu"));
  LayerConfig bf16 = moe_of("bf16");
  bf16.set_name("other");
  const json third = explain(bf16, runtime.get());
  EXPECT_EQ(chosen(third), "humming-cpu/0");
  EXPECT_EQ(third["require"], json({"batch_invariant"}));
}

TEST(Rules, RequireFlipsTheVariant) {
  const perch_host::Runtime runtime = runtime_of(only("humming-cpu"));
  LayerConfig config = moe_of("bf16");
  const json free = explain(config, runtime.get());
  config.layer().require = PERCH_CAP_BATCH_INVARIANT;
  const json bound = explain(config, runtime.get());
  EXPECT_EQ(chosen(free), "humming-cpu/1");
  EXPECT_EQ(chosen(bound), "humming-cpu/0");
  EXPECT_TRUE(says(bound["candidates"].dump(), "batch_invariant is not promised for this config"));
}

TEST(Rules, AnExplicitNameIsNeverReplaced) {
  const perch_host::Runtime runtime = runtime_with_path(only("mine"), kMine);
  const std::string text = refusal([&] { build_layer(runtime.get(), moe_of("nvfp4"), {}); });
  EXPECT_TRUE(says(text, "no backend fits"));
  EXPECT_TRUE(says(text, "mine"));
  EXPECT_TRUE(says(explain(moe_of("nvfp4"), runtime.get()).dump(), "allows only mine"));
}

TEST(Rules, FallbackIsReported) {
  const perch_host::Runtime runtime = runtime_with_path(only("mine", "fallback: allow"), kMine);
  const LayerConfig config = moe_of("nvfp4");
  const json selection = explain(config, runtime.get());
  EXPECT_EQ(chosen(selection), "humming-cpu/1");
  EXPECT_EQ(selection["fallback"], true);
  EXPECT_TRUE(says(selection["notes"].dump(), "fallback"));
  const perch_host::Layer layer = build_layer(runtime.get(), config, random_experts(config, 1));
  perch_layer_info info{};
  info.struct_size = sizeof(info);
  info.layout.struct_size = sizeof(perch_layout);
  perch_host::check(perch_layer_get_info, layer.get(),
                    static_cast<const perch_call_shape*>(nullptr), &info);
  EXPECT_EQ(info.fallback, 1U);
}

TEST(Rules, AnOptionThatTheBackendDoesNotKnowIsRefused) {
  const perch_host::Runtime runtime = runtime_of(only("humming-cpu", "options: {stream_q: no1}"));
  EXPECT_TRUE(says(explain(moe_of("bf16"), runtime.get()).dump(), "stream_q"));
  EXPECT_FALSE(accepts(moe_of("bf16"), runtime.get()));
}

// ---- F3 ----------------------------------------------------------------------------------------

struct BadYaml {
  const char* name;
  const char* yaml;
  std::vector<std::string> messages;
};

class BadYamlTest : public ::testing::TestWithParam<BadYaml> {};

TEST_P(BadYamlTest, IsRefusedWithItsPlace) {
  const std::string text = refusal([&] { runtime_of(GetParam().yaml); });
  EXPECT_TRUE(says(text, "PERCH_E_INVALID_ARGUMENT"));
  for (const std::string& message : GetParam().messages) EXPECT_TRUE(says(text, message));
}

const BadYaml kYaml[] = {
    {"moe_bakend", "version: 1\nmoe: {bakend: cpu}\n", {"config_text:2:1", "moe"}},
    {"backend", "version: 1\nbackend: [cpu]\n", {"config_text:2:1", "did you mean \"backends\"?"}},
    {"twice", "version: 1\nthreads: 1\nthreads: 2\n", {"config_text:3:1", "threads"}},
    {"rule_key",
     "version: 1\nselect:\n  rules:\n    - match: {}\n      requir: [inplace]\n",
     {"config_text:5:7", "did you mean \"require\"?"}},
    {"cap",
     "version: 1\nselect:\n  rules:\n    - match: {}\n      require: [batch_invarient]\n",
     {"config_text:5:", "batch_invariant"}},
    {"bool_for_text", "version: 1\nbackends: {trust: no}\n", {"config_text:2:", "trust"}},
    {"not_yaml", "version: 1\n  bad: [\n", {"config_text:"}},
};
INSTANTIATE_TEST_SUITE_P(F3, BadYamlTest, ::testing::ValuesIn(kYaml),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(F3Environment, UnknownVariableIsRefusedWithTheNearest) {
  ASSERT_EQ(setenv("PERCH_BACKEND_PAHT", "/tmp", 1), 0);
  const std::string text = refusal([&] { runtime_of("version: 1\n"); });
  unsetenv("PERCH_BACKEND_PAHT");
  EXPECT_TRUE(says(text, "PERCH_BACKEND_PAHT"));
  EXPECT_TRUE(says(text, "PERCH_BACKEND_PATH"));
}

// Option over environment over file, each with its origin in the report.
TEST(F3Environment, PrecedenceIsShown) {
  const auto threads_of = [](int32_t option) {
    const perch_host::Runtime runtime = runtime_of("version: 1\nthreads: 1\n", option);
    const json report = json::parse(perch_host::json(perch_runtime_report, runtime.get()));
    EXPECT_TRUE(says(report["config"].dump(),
                     option != 0 ? "perch_runtime_opts.num_threads" : "PERCH_THREADS"));
    return perch_runtime_num_threads(runtime.get());
  };
  ASSERT_EQ(setenv("PERCH_THREADS", "3", 1), 0);
  EXPECT_EQ(threads_of(0), 3);
  EXPECT_EQ(threads_of(2), 2);
  unsetenv("PERCH_THREADS");
}

LayerConfig int8_linear() {
  perch_quant quant = make_quant(PERCH_TYPE_INT8);
  quant.scale_kind = PERCH_SCALE_CHANNEL;
  quant.scale_dtype = PERCH_TYPE_F32;
  LayerConfig config = LayerConfig::make_linear("fc", 1, 2, quant);
  config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
  config.layer().max_tokens = 4;
  return config;
}

float run_f3(perch_runtime* runtime, const LayerConfig& config) {
  TensorMap tensors;
  tensors["w"] = u8({1, 2}, {128, 129});  // 0 and 1
  tensors["w.scale"] = f32({1}, {1});
  const perch_host::Layer layer = build_layer(runtime, config, {tensors});
  Call call;
  call.x = f32({1, 2}, {100.4F, 0.3F});
  return to_floats(run(layer.get(), config, call))[0];
}

TEST(F3Act, Int8ActivationsByRuleAreInForceAndNoted) {
  const perch_host::Runtime runtime = runtime_of(only("reference", "act: int8t"));
  EXPECT_EQ(run_f3(runtime.get(), int8_linear()), 0.0F);  // 0.3 / 0.79 rounds to 0
  const json selection = explain(int8_linear(), runtime.get());
  EXPECT_TRUE(says(selection["notes"].dump(), "act: int8t by config_text:4:7"));
  EXPECT_TRUE(says(selection["recipe"], "a=int8t"));
}

TEST(F3Act, WithoutARuleTheInputIsNotQuantized) {
  EXPECT_EQ(run_f3(shared_runtime("reference"), int8_linear()), 0.3F);
}

TEST(F3Act, OfTheCheckpointItselfAndTurnedOffByRule) {
  LayerConfig config = int8_linear();
  config.act_first() = *parse_act("int8t");
  EXPECT_EQ(run_f3(shared_runtime("reference"), config), 0.0F);
  const perch_host::Runtime off = runtime_of(only("reference", "act: none"));
  EXPECT_EQ(run_f3(off.get(), config), 0.3F);
  EXPECT_TRUE(says(explain(config, off.get())["notes"].dump(), "in place of the checkpoint's"));
}

TEST(F3Act, ABackendThatCannotIsNotChosen) {
  const auto explained = [](const std::string& rule) {
    const LayerConfig config = LayerConfig::make_linear("proj", 32, 64, *parse_weight("bf16"));
    return explain(config, runtime_with_path(only("mine", rule), kMine).get());
  };
  EXPECT_EQ(chosen(explained("")), "mine/0");
  const json refused = explained("act: int8t");
  EXPECT_EQ(chosen(refused), "");
  EXPECT_TRUE(says(candidate_of(refused, "mine").dump(), "linear.act"));
}

// Asked for by a rule it is done, and said; for tensors of the host's own it is refused.
TEST(F3Requant, IsDoneForModelsAndNeverIgnored) {
  const perch_host::Runtime runtime = runtime_of(only("reference", "requant: int8c"));
  const json document = explain(moe_of("bf16"), runtime.get());
  EXPECT_TRUE(says(document["notes"].dump(), "lossy"));
  EXPECT_TRUE(says(document["recipe"].get<std::string>(), "w=int8c"));
  const LayerConfig config = moe_of("bf16");
  const auto build = [&] { build_layer(runtime.get(), config, random_experts(config, 1)); };
  EXPECT_TRUE(says(refusal(build), "requant"));
  const perch_host::Runtime bad = runtime_of(only("reference", "requant: lut4g32"));
  EXPECT_TRUE(says(refusal([&] { explain(config, bad.get()); }), "requant"));
}

// ---- A winner that fails to prepare
// --------------------------------------------------------------

std::string refuser_yaml(int code, const std::string& rule) {
  return "version: 1\nbackends:\n  options: {refuser: {code: \"" + std::to_string(code) +
         "\"}}\nselect:\n  rules:\n    - match: {}\n      use: [refuser, reference]\n      " +
         rule + "\n";
}

std::string prepared_by(int code, const std::string& rule) {
  const perch_host::Runtime runtime = runtime_with_path(refuser_yaml(code, rule), kRefuser);
  const LayerConfig config = int8_linear();
  TensorMap tensors;
  tensors["w"] = u8({1, 2}, {128, 129});
  tensors["w.scale"] = f32({1}, {1});
  std::string result;
  const std::string text = refusal([&] {
    const perch_host::Layer layer =
        perch_host::make_layer(runtime, config.abi(), BackendHarness::name_tensors(tensors));
    const json said = json::parse(perch_host::json(perch_layer_explain, layer.get()));
    result = chosen(said);
    EXPECT_TRUE(says(candidate_of(said, "refuser").dump(), "refused on purpose"));
  });
  return text.empty() ? result : text;
}

TEST(PrepareError, IsAnErrorByDefault) {
  EXPECT_TRUE(says(prepared_by(PERCH_E_UNSUPPORTED, "on_prepare_error: error"),
                   "backend refuser: prepare_begin: refused on purpose"));
}

TEST(PrepareError, NextTriesTheNextCandidate) {
  EXPECT_EQ(prepared_by(PERCH_E_UNSUPPORTED, "on_prepare_error: next"), "reference/0");
  EXPECT_EQ(prepared_by(PERCH_E_OUT_OF_MEMORY, "on_prepare_error: next"), "reference/0");
}

TEST(PrepareError, NextDoesNotHideABadArgument) {
  EXPECT_TRUE(says(prepared_by(PERCH_E_INVALID_ARGUMENT, "on_prepare_error: next"),
                   "PERCH_E_INVALID_ARGUMENT"));
}

}  // namespace
}  // namespace perch::test
