// Field report D3: an NVFP4 checkpoint in which one input scale of one expert was never calibrated.
#include <cmath>
#include <cstring>
#include <limits>

#include "cli_rig.h"

namespace perch::test {
namespace {

const std::string kScale = "model.layers.0.mlp.experts.3.down_proj.input_global_scale";

class UncalibratedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(fixture("ct_nvfp4") + "/" + file, folder_ / file);
    }
  }
  std::string weights() const { return folder_ / "model.safetensors"; }
  CommandResult run() const { return perch_command("run --tokens 2 " + folder_.path()); }
  void expect_refused(const std::string& message) const {
    const CommandResult result = run();
    EXPECT_NE(result.code, 0) << result.out;
    EXPECT_TRUE(says(result.err, weights()));
    EXPECT_TRUE(says(result.err, message));
    EXPECT_EQ(result.out.find("GB/s"), std::string::npos) << "it ran: " << result.out;
  }

  TempDir folder_;
};

TEST_F(UncalibratedTest, D3AsItIsItRuns) { EXPECT_EQ(run().code, 0); }

TEST_F(UncalibratedTest, D3MissingIsRefusedByName) {
  std::string text = read_text(weights());
  const size_t at = text.find(kScale);
  ASSERT_NE(at, std::string::npos);
  text[at + kScale.find("experts")] = 'E';  // a name of no layer, as long as the other
  write_text(weights(), text);
  expect_refused("module \"model.layers.0.mlp.experts.3.down_proj\": input_global_scale: missing");
}

TEST_F(UncalibratedTest, D3ValuesThatAreNoScaleAreRefusedByName) {
  for (const float value : {0.0F, -1.0F, 1e-40F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    TensorFile file(weights());
    std::memcpy(file.data(kScale), &value, sizeof(value));
    file.save();
    expect_refused("tensor \"" + kScale + "\": got ");
  }
}

// Weight-only: inputs stay as they are, and the recipe says so.
TEST_F(UncalibratedTest, D3WeightOnlyRunsWithInputsOf16Bits) {
  const CommandResult result = perch_command("inspect --json " + fixture("ct_nvfp4a16"));
  const json document = result.document();
  for (const json& layer : document["layers"]) {
    EXPECT_EQ(layer["recipe"].get<std::string>().find(" a="), std::string::npos) << layer;
  }
  EXPECT_EQ(perch_command("run --tokens 2 " + fixture("ct_nvfp4a16")).code, 0);
}

}  // namespace
}  // namespace perch::test
