// perch diff: two backends that agree, one that is wrong and named as such, one that crashes, cases
// and layers that a side refuses, and its exit codes.
#include "cli_rig.h"

namespace perch::test {
namespace {

const std::string kBf16 = "'moe t5 e4 top2 h40 i24 w=bf16 act=silu seed=3'";
const std::string kInt8 = "'linear t2 n32 k64 w=int8c:f32'";
const std::string kLinear = "'linear t2 n32 k64 w=bf16'";
// Takes plain bf16 linear layers and nothing else.
const std::string kMine = PERCH_BUILD_DIR "/tests/api_fixtures/libperch_mine.so";

struct Diff {
  int code;
  json document;
  const json& pair() const { return document["pairs"][0]; }
  const json& rows() const { return document["rows"]; }
};

Diff diff(const std::string& arguments) {
  const CommandResult result = perch_command("diff " + arguments + " --json");
  json document = json::parse(result.out, nullptr, false);
  EXPECT_FALSE(document.is_discarded()) << result.out << result.err;
  return {result.code, std::move(document)};
}

// A backend that is broken on purpose; "" where this build has none.
std::string mutant(const std::string& name) {
  const std::string path = PERCH_BUILD_DIR "/mutants/libperch_mutant_" + name + ".so";
  return std::filesystem::exists(path) ? path : "";
}

// ---- Cases -------------------------------------------------------------------------------------

TEST(Diff, ABackendHasTheBytesOfItself) {
  const Diff same = diff("reference reference " + kBf16);
  EXPECT_EQ(same.code, 0);
  ASSERT_EQ(same.rows().size(), 1U);
  EXPECT_EQ(same.rows()[0]["identical_bytes"], true);
  EXPECT_EQ(same.rows()[0]["worst_ratio"]["a_b"], 0.0);
  EXPECT_EQ(same.pair()["identical"], 1);
}

TEST(Diff, HasARowForEveryTwoKernels) {
  const Diff pair = diff("reference humming-cpu " + kBf16);
  EXPECT_EQ(pair.code, 0) << pair.document;
  EXPECT_EQ(pair.rows().size(), 2U);
  // Of one backend: each variant with itself and, once, with the other.
  const Diff own = diff("humming-cpu humming-cpu " + kBf16);
  EXPECT_EQ(own.code, 0) << own.document;
  ASSERT_EQ(own.rows().size(), 3U);
  for (const json& row : own.rows()) {
    const bool itself = row["kernel_a"] == row["kernel_b"];
    EXPECT_TRUE(!itself || row["identical_bytes"] == true) << row;
  }
  // A kernel's name binds the side that has it.
  const std::string kernel = pair.rows()[1]["kernel_b"];
  const std::string named = "'moe t5 e4 top2 h40 i24 w=bf16 act=silu seed=3 kernel=" + kernel + "'";
  const Diff one = diff("reference humming-cpu " + named);
  ASSERT_EQ(one.rows().size(), 1U) << one.document;
  EXPECT_EQ(one.rows()[0]["kernel_b"], kernel);
}

TEST(Diff, TheTwoBackendsAgreeOnTheSmokeSuite) {
  const Diff smoke = diff("reference humming-cpu");
  EXPECT_EQ(smoke.code, 0) << smoke.pair();
  EXPECT_EQ(smoke.pair()["suite"], "smoke");
  EXPECT_EQ(smoke.pair()["failed"], 0);
  EXPECT_GE(smoke.pair()["passed"], 2);
  for (const json& row : smoke.rows()) {
    if (row["status"] != "passed") continue;
    for (const char* which : {"a_b", "a_oracle", "b_oracle"}) {
      EXPECT_LE(row["worst_ratio"][which], 1.0) << row;
    }
  }
}

TEST(Diff, JsonHasTheKeysOfTheContract) {
  const Diff pair = diff("reference humming-cpu " + kBf16);
  for (const char* key :
       {"a", "b", "device", "suite", "passed", "failed", "untrusted", "skipped", "failures"}) {
    EXPECT_TRUE(pair.pair().contains(key)) << key;
  }
  EXPECT_EQ(pair.pair()["a"], "reference");
  EXPECT_EQ(pair.pair()["b"], "humming-cpu");
}

TEST(Diff, WhatASideRefusesIsCountedAndTheOthersGoOn) {
  const Diff b = diff("reference " + kMine + " " + kInt8 + " " + kLinear);
  EXPECT_EQ(b.code, 0) << b.document;
  EXPECT_EQ(b.pair()["skipped"], json({{"UNSUPPORTED_B", 1}}));
  EXPECT_TRUE(says(b.rows()[0]["text"], "plain bf16"));
  EXPECT_EQ(b.pair()["passed"], 1);
  const Diff a = diff(kMine + " reference " + kInt8);
  EXPECT_EQ(a.code, 3);
  EXPECT_EQ(a.pair()["skipped"], json({{"UNSUPPORTED_A", 1}}));
  const CommandResult people = perch_command("diff " + kMine + " reference " + kInt8);
  EXPECT_EQ(people.code, 3);
  EXPECT_TRUE(says(people.out, "UNSUPPORTED_A"));
}

TEST(Diff, SaysWhichSideIsWrongAndMakesItSmall) {
  const std::string wrong = mutant("gate_up_swapped");
  if (wrong.empty()) GTEST_SKIP() << "this build has no mutants";
  const std::string sides[] = {"reference " + wrong, wrong + " reference"};
  for (const std::string& side : sides) {
    const bool is_a = side.rfind(wrong, 0) == 0;
    const Diff pair = diff(side + " " + kBf16 + " --shrink-seconds 1");
    EXPECT_EQ(pair.code, 1);
    EXPECT_EQ(pair.pair()["failed"], 1);
    const json& failure = pair.pair()["failures"][0];
    EXPECT_EQ(failure["wrong"], json::array({is_a ? "a" : "b"})) << failure;
    EXPECT_TRUE(says(failure["where"], "row "));
    EXPECT_TRUE(says(failure["want"], is_a ? "A mutant/reference is wrong" : "B mutant/reference"));
    const std::string reproducer = failure["reproducer"];
    EXPECT_TRUE(says(reproducer, "perch diff " + side + " 'moe t1 "));
    EXPECT_LT(reproducer.size(), ("perch diff " + side + " " + kBf16).size());
    EXPECT_EQ(perch_command(reproducer.substr(6) + " --no-shrink").code, 1) << reproducer;
  }
}

TEST(Diff, ACrashIsARowThatSaysWhose) {
  const std::string crashes = mutant("reads_past_x");
  if (crashes.empty()) GTEST_SKIP() << "this build has no mutants";
  const Diff pair = diff("reference " + crashes + " " + kBf16 + " --no-shrink");
  EXPECT_EQ(pair.code, 1);
  const json& failure = pair.pair()["failures"][0];
  EXPECT_EQ(failure["status"], "CRASHED") << failure;
  EXPECT_TRUE(says(failure["where"], "B mutant/reference: executing 5 rows"));
}

TEST(Diff, ALieOfQuerySupportIsAFailure) {
  const std::string refuser = PERCH_BUILD_DIR "/tests/api_fixtures/libperch_refuser.so";
  for (const std::string& what : {kBf16, fixture("qwen3_moe") + " --layer '*.0.*'"}) {
    const Diff pair = diff("reference " + refuser + " " + what + " --no-shrink");
    EXPECT_EQ(pair.code, 1) << pair.document;
    EXPECT_TRUE(says(pair.pair()["failures"][0]["where"], "B refuser")) << pair.document;
  }
}

// ---- Models ------------------------------------------------------------------------------------

TEST(Diff, OfAModelHasARowPerLayer) {
  const Diff model = diff("reference humming-cpu " + fixture("qwen3_moe") + " --tokens 5 --seed 2");
  EXPECT_EQ(model.code, 0) << model.document;
  ASSERT_EQ(model.rows().size(), 2U);
  for (const json& row : model.rows()) {
    EXPECT_TRUE(says(row["layer"], ".mlp.experts"));
    EXPECT_EQ(row["kernel_a"], "reference");
    EXPECT_LE(row["worst_ratio"]["a_b"], 1.0);
    EXPECT_LE(row["worst_ratio"]["b_oracle"], 1.0);
    EXPECT_GT(row["worst_ratio"]["b_oracle"], 0.0);
  }
  const Diff same = diff("humming-cpu humming-cpu " + fixture("qwen3_moe") + " --ep 1/2");
  EXPECT_EQ(same.pair()["identical"], 2) << same.document;
}

// Attention is int8 there, which humming-cpu does not offer.
TEST(Diff, LayersThatASideRefusesAreNamedAndTheOthersGoOn) {
  const TempDir folder;
  const std::string policy = folder / "policy.yaml";
  write_text(policy,
             "version: 1\nselect:\n  rules:\n"
             "    - match: {name: \"*attn*\"}\n      require: [inplace]\n");
  const Diff model =
      diff("reference humming-cpu " + fixture("ct_int4_asym") + " --config " + policy);
  EXPECT_EQ(model.code, 0) << model.document;
  EXPECT_GE(model.pair()["skipped"]["UNSUPPORTED_BOTH"], 1);
  EXPECT_GE(model.pair()["passed"], 1);
  for (const json& row : model.rows()) {
    if (row["status"] != "skipped") continue;
    EXPECT_TRUE(says(row["text"], "inplace is not promised")) << row;
  }
  const Diff all = diff("reference " + kMine + " " + fixture("ct_int4_asym"));
  EXPECT_EQ(all.code, 3) << all.document;
  EXPECT_GE(all.pair()["skipped"]["UNSUPPORTED_B"], 1);
  for (const json& row : all.rows()) EXPECT_TRUE(says(row["text"], "mine")) << row;
}

TEST(Diff, OfAModelSaysWhichSideIsWrong) {
  const std::string wrong = mutant("gate_up_swapped");
  if (wrong.empty()) GTEST_SKIP() << "this build has no mutants";
  const Diff model = diff(wrong + " humming-cpu " + fixture("qwen3_moe") + " --layer '*.1.*'");
  EXPECT_EQ(model.code, 1);
  const json& failure = model.pair()["failures"][0];
  EXPECT_EQ(failure["wrong"], json::array({"a"})) << failure;
  EXPECT_TRUE(says(failure["reproducer"], "--layer 'model.layers.1.mlp.experts' --tokens 1"));
  EXPECT_EQ(perch_command(failure["reproducer"].get<std::string>().substr(6)).code, 1);
}

// ---- Refusals ----------------------------------------------------------------------------------

TEST(Diff, RefusesWithOneLineThatSaysWhy) {
  const std::string model = fixture("qwen3_moe");
  const struct {
    std::string arguments;
    const char* message;
  } rows[] = {
      {"reference", "B is required"},
      {"reference humming-gpu " + kBf16, "B: got \"humming-gpu\"; want one of:"},
      {"./no_such.so reference " + kBf16, "A: ./no_such.so"},
      {"reference humming-cpu 'moe t4'", "CASE: "},
      {"reference humming-cpu /no/such/model", "/no/such/model"},
      {"reference humming-cpu --suite nightmare", "--suite: got \"nightmare\""},
      {"reference humming-cpu " + model + " " + kBf16, "want cases, or one MODEL"},
      {"reference humming-cpu " + kBf16 + " --tokens 3", "--tokens: is for a MODEL"},
      {"reference humming-cpu " + model + " --layer nothing", "matches none of 2 layers"},
      {"reference humming-cpu " + model + " --backend reference", "--backend"},
  };
  for (const auto& row : rows) {
    const CommandResult result = perch_command("diff " + row.arguments);
    EXPECT_EQ(result.code, 2) << row.arguments << "\n" << result.out << result.err;
    EXPECT_TRUE(says(result.err, row.message)) << row.arguments;
  }
}

}  // namespace
}  // namespace perch::test
