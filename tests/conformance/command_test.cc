// `perch check` as its users meet it: what it prints, how it ends, what it refuses.
#include "../cli/cli_rig.h"

namespace perch::test {
namespace {

std::string plugin(const std::string& name) {
  return "check --plugin " PERCH_BUILD_DIR "/check_fixtures/libperch_" + name + ".so ";
}
const std::string kCase = "'linear t5 n24 k40 w=bf16'";

TEST(CheckCommand, ARightPluginPasses) {
  const CommandResult ran = perch_command(plugin("right") + "--json " + kCase);
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  const json report = ran.document();
  EXPECT_EQ(report["backend"], "right");
  EXPECT_EQ(report["device"], "cpu:0");
  EXPECT_EQ(report["passed"], 1);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["untrusted"], 0);
  EXPECT_TRUE(report["skipped"].empty());
  EXPECT_TRUE(report["failures"].empty());
  EXPECT_GE(report["checks"]["numbers"]["passed"], 1);
  EXPECT_EQ(report["checks"]["strided"]["skipped"]["NOT_PROMISED"], 1);
}

TEST(CheckCommand, AWrongOneFailsWithItsSmallestCase) {
  const CommandResult ran =
      perch_command(plugin("wrong") + "--json --check exact,numbers " + kCase);
  EXPECT_EQ(ran.code, 1) << ran.err;
  const json report = ran.document();
  EXPECT_EQ(report["failed"], 1);
  ASSERT_EQ(report["failures"].size(), 2U);
  for (const json& failure : report["failures"]) {
    EXPECT_EQ(failure["case"], "linear t5 n24 k40 w=bf16");
    const std::string reproducer = failure["reproducer"];
    // One row, one column, and the few terms that the defect needs.
    EXPECT_TRUE(says(reproducer, "linear t1 n1 k"));
    EXPECT_TRUE(says(failure["where"], "row 0, column 0"));
    const CommandResult again = perch_command(reproducer.substr(reproducer.find("check")));
    EXPECT_EQ(again.code, 1) << again.out;
    EXPECT_TRUE(says(again.out, "repro: " + reproducer));
  }
}

TEST(CheckCommand, ACrashIsAStatusAndTheRestGoesOn) {
  const CommandResult ran =
      perch_command(plugin("crashes") + "--no-shrink --check numbers,poison,claims " + kCase);
  EXPECT_EQ(ran.code, 1);
  EXPECT_TRUE(says(ran.out, "CRASHED numbers"));
  EXPECT_TRUE(says(ran.out, "CRASHED poison"));
  EXPECT_TRUE(says(ran.out, "Aborted"));
}

TEST(CheckCommand, AHangIsATimeoutAndTheRestGoesOn) {
  const CommandResult ran = perch_command(
      plugin("hangs") + "--no-shrink --timeout 0.5 --check numbers,determinism,errors " + kCase);
  EXPECT_EQ(ran.code, 1);
  EXPECT_TRUE(says(ran.out, "TIMEOUT determinism"));  // whose other process hangs as well
  EXPECT_TRUE(says(ran.out, "TIMEOUT numbers"));
  EXPECT_TRUE(says(ran.out, "no answer within 0.5 s"));
  EXPECT_TRUE(says(ran.out, "errors"));
}

TEST(CheckCommand, KeepsRegressionsAsSuites) {
  const TempDir folder;
  perch_command(plugin("wrong") + "--check numbers --regressions " + folder.path() + " " + kCase);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files.push_back(entry.path().string());
  }
  ASSERT_EQ(files.size(), 1U);
  const CommandResult again = perch_command(plugin("wrong") + "--suite " + files[0]);
  EXPECT_EQ(again.code, 1);
  EXPECT_EQ(perch_command(plugin("right") + "--suite " + files[0]).code, 0);
}

TEST(CheckCommand, RunsInThisProcessWhenAsked) {
  EXPECT_EQ(perch_command(plugin("right") + "--no-isolate " + kCase).code, 0);
  EXPECT_EQ(perch_command(plugin("wrong") + "--no-isolate " + kCase).code, 1);
}

TEST(CheckCommand, ACaseThatNobodyTakesEndsWithThree) {
  const CommandResult ran = perch_command(plugin("right") + "'linear t1 n8 k8 w=int4c:f32'");
  EXPECT_EQ(ran.code, 3);
  EXPECT_TRUE(says(ran.out, "1 UNSUPPORTED"));
}

// One case at each level of a backend's own choosing.
TEST(CheckCommand, AnOptionReachesTheLayer) {
  const std::string any_case = " --check exact 'linear t1 n8 k8 w=int3c:f32'";
  const CommandResult ran =
      perch_command("check --backend humming-cpu --option isa=portable" + any_case);
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_TRUE(says(ran.out, "_portable"));
  const CommandResult refused =
      perch_command("check --backend humming-cpu --option isa=avx9" + any_case);
  EXPECT_EQ(refused.code, 3) << refused.out;
  EXPECT_TRUE(says(refused.out, "UNSUPPORTED"));
}

struct Refusal {
  const char* arguments;
  const char* says;
};

TEST(CheckCommand, RefusesWithWords) {
  for (const Refusal& one : std::vector<Refusal>{
           {"check", "--backend ID or --plugin FILE"},
           {"check --backend refrence", "did you mean reference?"},
           {"check --backend reference --check number", "numbers"},
           {"check --backend reference --suite smok", "smoke"},
           {"check --backend reference --suite /tmp", "has no case"},
           {"check --backend reference --check ''", "want of:"},
           {"check --backend reference --device cuda", "want cpu"},
           {"check --backend reference --option isa", "want KEY=VALUE"},
           {"check --backend reference 'moe t1'", "e<int>"},
           {"check --backend reference 'linear t{1 n1 k1 w=bf16'", "without }"},
           {"check --plugin /nowhere.so", "/nowhere.so: No such file"},
           {"check --plugin " PERCH_BUILD_DIR "/lib/libperch.so", "perch_backend_entry_v1"}}) {
    const CommandResult ran = perch_command(one.arguments);
    EXPECT_EQ(ran.code, 2) << one.arguments;
    EXPECT_TRUE(says(ran.err, one.says)) << one.arguments;
    EXPECT_EQ(ran.out, "") << one.arguments;
  }
}

TEST(CheckCommand, ListsASuite) {
  const CommandResult ran = perch_command("check --suite smoke --list");
  EXPECT_EQ(ran.code, 0);
  for (const char* name : {"gated:", "non-gated:", "gated-batched:", "non-gated-batched:",
                           "gated-grouped:", "non-gated-grouped:"}) {
    EXPECT_TRUE(says(ran.out, name));
  }
}

}  // namespace
}  // namespace perch::test
