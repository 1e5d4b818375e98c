// What the command chooses, what it refuses, and with which exit code: 0 fine, 1 a check failed, 2
// bad usage or input, 3 no backend fits.
#include <sstream>

#include "cli_rig.h"

namespace perch::test {
namespace {

struct Refusal {
  const char* name;
  std::string arguments;
  int code;
  const char* message;
};

class ExitCodeTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(ExitCodeTest, WithOneLineThatSaysWhy) {
  const CommandResult result = perch_command(GetParam().arguments);
  EXPECT_EQ(result.code, GetParam().code) << result.err << result.out;
  EXPECT_TRUE(says(result.err + result.out, GetParam().message));
}

const std::string kModel = fixture("qwen3_moe");
const Refusal kRefusals[] = {
    {"no_subcommand", "", 2, "subcommand"},
    {"unknown_subcommand", "fly", 2, "fly"},
    {"unknown_option", "run " + kModel + " --fast", 2, "--fast"},
    {"no_model", "run", 2, "MODEL"},
    {"no_such_folder", "run /no/such/model", 2, "/no/such/model"},
    {"no_such_config", "run " + kModel + " --config /no/such.yaml", 2, "/no/such.yaml"},
    {"no_such_layer", "run " + kModel + " --layer nothing", 2, "matches none of 2 layers"},
    {"no_such_input", "run " + kModel + " --input /no/such.safetensors", 2, "/no/such.safetensors"},
    {"input_of_another_model", "run " + kModel + " --expect " + expectation("nemotron_h"), 2,
     ".input; want every layer"},
    {"unknown_promise", "run " + kModel + " --require fastest", 2, "--require: got \"fastest\""},
    {"bad_tp", "run " + kModel + " --tp 2", 2, "--tp: got \"2\"; want RANK/SIZE"},
    {"tp_rank_too_large", "run " + kModel + " --tp 2/2", 2, "tp: got rank 2 of 2"},
    {"bad_dtype", "run " + kModel + " --dtype int8", 2, "--dtype"},
    {"negative_tokens", "run " + kModel + " --tokens -1", 2, "--tokens"},
    {"alone_too_large", "run " + kModel + " --tokens 3 --alone 3", 2, "--alone: got 3"},
    {"requant", "run " + kModel + " --requant lut4g32", 2, "requant"},
    {"bad_case", "explain 'moe t4 e8 top2 h64 i96 w=int4q32'", 2, "column"},
    {"bad_recipe", "synth 'gpt9 e=8' /tmp/perch_never", 2, "got model type \"gpt9\""},
    {"run_impossible_promise", "run " + kModel + " --require graph_capture", 3, "no backend fits"},
    {"run_unknown_backend", "run " + kModel + " --backend nobody", 3, "no backend fits"},
    {"explain_impossible_promise", "explain " + kModel + " --require graph_capture", 3,
     "no backend fits"},
    {"explain_impossible_case",
     "explain 'moe t1 e2 top1 h32 i32 w=bf16 act=silu' --require graph_capture", 3,
     "no backend fits"},
};
INSTANTIATE_TEST_SUITE_P(Refusals, ExitCodeTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ExitCode, OfAYamlTypoNamesLineColumnAndNearest) {
  const TempDir folder;
  const std::string config = folder / "p.yaml";
  write_text(config, "version: 1\nselct:\n  rules: []\n");
  const CommandResult result = perch_command("list --config " + config);
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(says(result.err, config + ":2:1"));
  EXPECT_TRUE(says(result.err, "did you mean \"select\"?"));
  EXPECT_EQ(result.out, "");
}

TEST(ExitCode, OfASpoiledFileNamesIt) {
  FixtureCopy copy("mixtral");
  const std::string file = copy.path() + "/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 2);
  const CommandResult result = perch_command("run " + copy.path());
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(says(result.err, file));
}

// The same text from the command as from the API (field report F1).
TEST(ExitCode, NoBackendFitsSaysAllReasons) {
  const CommandResult result = perch_command("run " + kModel + " --require graph_capture");
  EXPECT_TRUE(says(result.err, "layer 'model.layers.0.mlp.experts'"));
  EXPECT_TRUE(says(result.err, "humming-cpu"));
  EXPECT_TRUE(says(result.err, "reference"));
  EXPECT_TRUE(says(result.err, "graph_capture is not promised"));
}

// ---- Choices -----------------------------------------------------------------------------------

json run_json(const std::string& arguments) {
  const CommandResult result = perch_command("run --json --repeat 1 " + arguments);
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  return result.document();
}

TEST(Choice, RequireBatchInvariantFlipsSplitToOrdered) {
  const json free = run_json(kModel + " --backend humming-cpu")["layers"][0];
  const json bound =
      run_json(kModel + " --backend humming-cpu --require batch_invariant")["layers"][0];
  EXPECT_TRUE(says(free["kernel"], "split"));
  EXPECT_FALSE(says(bound["kernel"], "split"));
  EXPECT_NE(free["variant"], bound["variant"]);
  bool explained = false;
  for (const json& candidate : bound["candidates"]) {
    if (candidate["variant"] != free["variant"] || candidate["backend"] != "humming-cpu") continue;
    EXPECT_EQ(candidate["verdict"], "no");
    explained = candidate["reasons"][0]["code"] == "CAP_MISSING";
  }
  EXPECT_TRUE(explained);
}

class AloneTest : public ::testing::TestWithParam<const char*> {};

TEST_P(AloneTest, OneRowAmong257HasIdenticalBytes) {
  for (const char* backend : {"humming-cpu", "reference"}) {
    for (const int row : {0, 131, 256}) {
      const json document =
          run_json(fixture(GetParam()) + " --layer '*experts' --backend " + backend +
                   " --require batch_invariant --tokens 257 --alone " + std::to_string(row));
      for (const json& layer : document["layers"]) {
        EXPECT_EQ(layer["alone"]["row"], row);
        EXPECT_EQ(layer["alone"]["tokens"], 257);
        EXPECT_EQ(layer["alone"]["identical_bytes"], true) << layer["name"];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, AloneTest,
                         ::testing::Values("qwen3_moe", "nemotron_h", "ct_int4"),
                         [](const auto& row) { return std::string(row.param); });

// Two policies that differ in one line choose different backends.
TEST(Choice, ByOneLineOfYaml) {
  const std::string folder = PERCH_SOURCE_DIR "/configs/";
  std::istringstream a(read_text(folder + "default.yaml"));
  std::istringstream b(read_text(folder + "reference.yaml"));
  int different = 0;
  for (std::string x, y; std::getline(a, x) && std::getline(b, y);) different += x != y;
  EXPECT_EQ(different, 1);
  const auto backend_by = [&](const std::string& file) {
    return run_json(kModel + " --config " + folder + file)["layers"][0]["backend"];
  };
  EXPECT_EQ(backend_by("default.yaml"), "humming-cpu");
  EXPECT_EQ(backend_by("reference.yaml"), "reference");
}

TEST(Choice, BatchInvariantPolicy) {
  const json layer =
      run_json(kModel + " --config " PERCH_SOURCE_DIR "/configs/batch_invariant.yaml")["layers"][0];
  EXPECT_TRUE(says(layer["caps"].dump(), "batch_invariant"));
  EXPECT_EQ(layer["require"], json({"batch_invariant"}));
}

// ---- Parallel ranks
// ------------------------------------------------------------------------------

TEST(Ranks, TensorAndExpertParallelAgreeWithTheReference) {
  for (const char* split : {"--tp 0/2", "--tp 1/2", "--ep 0/2", "--ep 1/2", "--tp 1/2 --ep 1/2"}) {
    for (const char* name : {"qwen3_moe", "nemotron_h", "gpt_oss_bf16", "ct_int4"}) {
      SCOPED_TRACE(std::string(split) + " " + name);
      const json document =
          run_json(fixture(name) + " --tokens 5 --verify --backend humming-cpu " + split);
      EXPECT_EQ(document["ok"], true);
      for (const json& layer : document["layers"]) {
        EXPECT_EQ(layer["error"]["against"], "reference");
      }
    }
  }
}

// ---- Synthetic checkpoints
// ------------------------------------------------------------------------

struct SynthRow {
  const char* name;
  const char* recipe;
};

class SynthTest : public ::testing::TestWithParam<SynthRow> {};

TEST_P(SynthTest, RunsAndVerifiesOnBothBackends) {
  const TempDir folder;
  const std::string model = folder / "model";
  const CommandResult made = perch_command("synth '" + std::string(GetParam().recipe) +
                                           " layers=2 e=6 h=64 i=96' " + model + " --json");
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(made.document()["directory"], model);
  for (const char* backend : {"reference", "humming-cpu"}) {
    SCOPED_TRACE(backend);
    const json document =
        run_json(model + " --tokens 7 --verify --backend " + std::string(backend));
    EXPECT_EQ(document["ok"], true);
    ASSERT_EQ(document["layers"].size(), 2U);
    for (const json& layer : document["layers"]) {
      EXPECT_EQ(layer["error"]["ok"], true) << layer["error"];
      EXPECT_EQ(layer["error"]["against"], "reference");
    }
  }
  EXPECT_EQ(perch_command("synth '" + std::string(GetParam().recipe) + "' " + model).code, 2)
      << "over an existing checkpoint";
}

const SynthRow kSynth[] = {
    {"qwen3_moe", "qwen3_moe"},
    {"mixtral", "mixtral"},
    {"nemotron_h", "nemotron_h"},
    {"qwen3_5_moe", "qwen3_5_moe"},
    {"qwen3_vl_moe", "qwen3_vl_moe"},
    {"llama4", "llama4 top=1"},
    {"gpt_oss", "gpt_oss"},
    {"granitemoe", "granitemoe"},
    {"qwen3_moe_int4", "qwen3_moe w=int4g32:bf16"},
    {"qwen3_moe_int4_zero", "qwen3_moe w=int4g16:bf16+z"},
    {"mixtral_int4_channel", "mixtral w=int4c:bf16"},
    {"nemotron_h_int4", "nemotron_h w=int4g32:bf16"},
};
INSTANTIATE_TEST_SUITE_P(Types, SynthTest, ::testing::ValuesIn(kSynth),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Synth, TheSameRecipeGivesTheSameBytes) {
  const TempDir folder;
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(perch_command("synth 'qwen3_moe e=4 h=32 i=16 seed=7' " + (folder / name)).code, 0);
  }
  EXPECT_EQ(read_text(folder / "a/model.safetensors"), read_text(folder / "b/model.safetensors"));
}

}  // namespace
}  // namespace perch::test
