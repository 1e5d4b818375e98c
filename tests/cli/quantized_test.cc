// `perch run --expect` and `perch inspect` on checkpoints that the quantizing packages wrote: what
// those packages compute from their own files, and what their config.json says.
#include <filesystem>

#include "../fixtures/quantized_fixtures.h"
#include "cli_rig.h"

namespace perch::test {
namespace {

class QuantizedTest : public ::testing::TestWithParam<QuantizedFixture> {
 protected:
  void expect_agreement(const std::string& backend) const {
    const std::string name = GetParam().name;
    const TempDir folder;
    std::string command = "run " + fixture(name) + " --json --repeat 1 --expect " +
                          expectation(name) + " --backend " + backend;
    if (GetParam().plain_input) {
      write_text(folder / "plain.yaml",
                 "version: 1\nselect:\n  rules:\n    - match: {}\n      act: none\n");
      command += " --config " + (folder / "plain.yaml");
    }
    const CommandResult result = perch_command(command);
    ASSERT_EQ(result.code, 0) << result.err << result.out;
    const json layers = result.document()["layers"];
    EXPECT_EQ(layers.size(), TensorFile(expectation(name)).names_ending(".output").size());
    for (const json& layer : layers) {
      EXPECT_EQ(layer["backend"], backend);
      EXPECT_EQ(layer["error"]["ok"], true) << layer.dump();
    }
  }
};

TEST_P(QuantizedTest, ReferenceAgreesWithThePackage) { expect_agreement("reference"); }

TEST_P(QuantizedTest, HummingCpuAgreesWithThePackage) { expect_agreement("humming-cpu"); }

TEST_P(QuantizedTest, InspectFindsTheRecipe) {
  const json layers =
      perch_command("inspect --json " + fixture(GetParam().name)).document()["layers"];
  size_t with_experts = 0;
  for (const json& layer : layers) {
    if (layer["kind"] != "moe") continue;
    ++with_experts;
    EXPECT_EQ(layer["recipe"], GetParam().recipe);
  }
  EXPECT_EQ(with_experts, *GetParam().recipe == '\0' ? 0 : 1);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, QuantizedTest, ::testing::ValuesIn(quantized_fixtures()),
                         [](const auto& row) { return std::string(row.param.name); });

// The table here is all that there is.
TEST(QuantizedFixtures, AreAllInTheTable) {
  std::set<std::string> found;
  for (const auto& folder : std::filesystem::directory_iterator(PERCH_FIXTURES_DIR "/hf")) {
    const json config = json::parse(read_text(folder.path() / "config.json"));
    if (config.contains("quantization_config")) found.insert(folder.path().filename());
  }
  std::set<std::string> known = {"ct_int4", "ct_int4_asym"};  // fixtures() has these
  for (const QuantizedFixture& row : quantized_fixtures()) known.insert(row.name);
  EXPECT_EQ(found, known);
}

// ---- inspect against config.json, on every fixture ---------------------------------------------

// What model types call one number, and the fixtures' exceptions.
json first_of(const json& config, const std::vector<const char*>& keys) {
  for (const char* key : keys) {
    if (config.contains(key) && !config[key].is_null()) return config[key];
  }
  return nullptr;
}

class InspectTest : public ::testing::TestWithParam<std::string> {};

TEST_P(InspectTest, SizesAreThoseOfTheConfig) {
  json config = json::parse(read_text(fixture(GetParam()) + "/config.json"));
  if (config.contains("text_config")) config = config["text_config"];
  const json layers = perch_command("inspect --json " + fixture(GetParam())).document()["layers"];
  size_t checked = 0;
  for (const json& layer : layers) {
    if (layer["kind"] != "moe") continue;
    ++checked;
    const json& sizes = layer["sizes"];
    EXPECT_EQ(sizes["experts_global"], first_of(config, {"num_experts", "num_local_experts",
                                                         "n_routed_experts", "moe_num_experts"}));
    EXPECT_EQ(sizes["hidden"], first_of(config, {"moe_latent_size", "hidden_size"}));
    EXPECT_EQ(
        sizes["intermediate"],
        first_of(config, {"moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"}));
    json topk = first_of(config, {"num_experts_per_tok", "moe_k", "num_experts_per_token",
                                  "top_k_experts", "moe_topk", "moe_top_k"});
    // HunYuan has one for each layer, in order.
    if (topk.is_array()) topk = topk[checked - 1];
    EXPECT_EQ(sizes["topk"], topk);
  }
  const std::string name = GetParam();
  EXPECT_EQ(checked == 0, name == "ct_bits_dense" || name == "ct_bits_floor");
}

std::vector<std::string> folders() {
  std::vector<std::string> names;
  for (const auto& folder : std::filesystem::directory_iterator(PERCH_FIXTURES_DIR "/hf")) {
    names.push_back(folder.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, InspectTest, ::testing::ValuesIn(folders()),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace perch::test
