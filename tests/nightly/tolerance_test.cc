// A limit that nobody comes near is no limit. For each class of outputs the worst element that
// right kernels produce must be at least an eighth of what is allowed; among them is one that
// rounds wherever the contract lets it (mutants/legal.edit).
#include <gtest/gtest.h>

#include <map>

#include "../cli/cli_rig.h"
#include "base/case_line.h"

namespace perch::test {
namespace {

// "moe f32", "linear bf16", "moe bf16, second input quantized".
std::string class_of(const std::string& line) {
  const auto parsed = parse_case(line);
  EXPECT_TRUE(parsed.ok()) << line;
  const LayerConfig& config = parsed->config;
  std::string name = config.is_moe() ? "moe " : "linear ";
  name += type_name(config.abi().out_dtype);
  const bool quantized = config.is_moe() && config.act_second().mode != PERCH_ACT_NONE;
  return quantized ? name + ", second input quantized" : name;
}

struct Worst {
  double ratio = 0;
  std::string line, backend;
};

TEST(Tolerance, IsAtMostEightTimesTheWorstEverSeen) {
  std::map<std::string, Worst> worst;
  for (const std::string which : {"--backend reference", "--backend humming-cpu",
                                  "--plugin " PERCH_BUILD_DIR "/mutants/libperch_legal.so"}) {
    const CommandResult ran =
        perch_command("check " + which + " --suite nightly --check numbers --json -q");
    const json report = ran.document();
    EXPECT_EQ(report["failed"], 0) << which << ": " << report["failures"].dump(2);
    for (const json& one : report["cases"]) {
      if (!one.contains("worst_ratio") || one["worst_ratio"].is_null()) continue;
      Worst& so_far = worst[class_of(one["case"])];
      if (one["worst_ratio"] <= so_far.ratio) continue;
      so_far = {one["worst_ratio"], one["case"], which};
    }
  }
  EXPECT_GE(worst.size(), 6U);
  for (const auto& [name, found] : worst) {
    std::printf("%-36s %.3f of what is allowed: %s, %s\n", name.c_str(), found.ratio,
                found.backend.c_str(), found.line.c_str());
    EXPECT_GE(found.ratio, 1.0 / 8) << name << ": the limit is too loose";
  }
}

}  // namespace
}  // namespace perch::test
