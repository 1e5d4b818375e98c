// What loading took, beside what the machine could give: perch run --limits.
#include "bench/limits/disk.h"
#include "cli_rig.h"

namespace perch::test {
namespace {

json run_with_limits(const std::string& model) {
  const CommandResult result = perch_command("run --json --limits --repeat 1 " + model);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.document();
}

TEST(Load, IsAShareOfMemoryAndDiskBandwidth) {
  const TempDir folder;
  const std::string model = folder / "model";
  ASSERT_EQ(perch_command("synth 'qwen3_moe layers=1 e=8 top=2 h=1024 i=512 seed=3' " + model).code,
            0);
  const json document = run_with_limits(model);
  const json& machine = document["machine"];
  const json& load = document["layers"][0]["load"];
  const double gbps = load["gbps"];
  EXPECT_GE(load["bytes_read"], 8 * 3 * 1024 * 512 * 2);
  EXPECT_NEAR(gbps, load["bytes_read"].get<double>() / load["ms"].get<double>() / 1e6, 1e-6 * gbps);
  EXPECT_GT(machine["read_gbps"].get<double>(), 0);
  EXPECT_GT(load["share_of_read_bandwidth"].get<double>(), 0);
  if (machine["disk_gbps"].is_null()) GTEST_SKIP() << "the file system has no way past its cache";
  EXPECT_NEAR(load["share_of_disk"].get<double>(), gbps / machine["disk_gbps"].get<double>(), 1e-9);
}

// Too little to measure, and nothing to open: not a number, and no failure.
TEST(Load, WithoutADiskToMeasureHasNoShareOfIt) {
  const json document = run_with_limits(fixture("mixtral"));
  EXPECT_TRUE(document["machine"]["disk_gbps"].is_null());
  EXPECT_FALSE(document["layers"][0]["load"].contains("share_of_disk"));
  EXPECT_EQ(perch_bench::disk_read_gbps("/nowhere"), 0);
}

}  // namespace
}  // namespace perch::test
