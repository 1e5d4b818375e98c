// What differs between the layers of one model, and what runs beside them: config values that are
// lists, shared experts.
#include "model_variants.h"

namespace perch::test {
namespace {

// ---- Values by layer ---------------------------------------------------------------------------

Checkpoint hunyuan_by_layer() {
  Checkpoint checkpoint;
  checkpoint.config = base_config(
      "hunyuan_v1_moe",
      {{"num_experts", {2, 4}}, {"moe_topk", {1, 3}}, {"moe_intermediate_size", {8, 4}}});
  put_experts(&checkpoint, "model.layers.0.mlp.experts", Names::kQwen, {2, 8});
  put_experts(&checkpoint, "model.layers.1.mlp.experts", Names::kQwen, {4, 4});
  put_router(&checkpoint, "model.layers.0.mlp", "gate.wg", {}, 2);
  put_router(&checkpoint, "model.layers.1.mlp", "gate.wg", {}, 4);
  return checkpoint;
}

TEST(ByLayer, SizesAndRouting) {
  const Checkpoint checkpoint = hunyuan_by_layer();
  const perch_host::Model model = checkpoint.open(shared_runtime("reference"));
  const json layers = inspect(model)["layers"];
  ASSERT_EQ(layers.size(), 2U);
  const auto sizes = [&](size_t i) {
    return std::vector<int64_t>{layers[i]["sizes"]["experts"], layers[i]["sizes"]["topk"],
                                layers[i]["sizes"]["intermediate"]};
  };
  EXPECT_EQ(sizes(0), (std::vector<int64_t>{2, 1, 8}));
  EXPECT_EQ(sizes(1), (std::vector<int64_t>{4, 3, 4}));
  EXPECT_EQ(perch_model_route_config(model.get(), 0)->topk, 1U);
  EXPECT_EQ(perch_model_route_config(model.get(), 1)->topk, 3U);
}

TEST(ByLayer, TheIndexIsTheLayersNumber) {
  Checkpoint checkpoint = hunyuan_by_layer();
  std::map<std::string, Tensor> second;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name.find("layers.1.") != std::string::npos) second[name] = tensor;
  }
  checkpoint.tensors = second;
  const json layers = inspect(checkpoint.open(shared_runtime("reference")))["layers"];
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_EQ(layers[0]["sizes"]["topk"], 3);
}

TEST(ByLayer, AListThatIsTooShortIsRefused) {
  Checkpoint checkpoint = hunyuan_by_layer();
  checkpoint.config["moe_topk"] = {1};
  checkpoint.config["moe_intermediate_size"] = {8, 4};
  checkpoint.tensors.erase("model.layers.1.mlp.gate.wg.weight");
  // A list of one value says it of all layers.
  EXPECT_EQ(inspect(checkpoint.open(shared_runtime("reference")))["layers"][1]["sizes"]["topk"], 1);
  for (const auto& [name, tensor] : std::map(checkpoint.tensors)) {
    if (name.rfind("model.layers.1.", 0) != 0) continue;
    checkpoint.tensors["model.layers.7." + name.substr(15)] = tensor;
  }
  EXPECT_TRUE(says(refusal([&] { checkpoint.open(shared_runtime("reference")); }),
                   "got a list of 2; want an entry for layer 7 too"));
}

TEST(ByLayer, AListOfOtherThingsIsRefused) {
  Checkpoint checkpoint = hunyuan_by_layer();
  checkpoint.config["moe_topk"] = {1, "3"};
  EXPECT_TRUE(says(refusal([&] { checkpoint.open(shared_runtime("reference")); }),
                   "config.json: moe_topk: got \"3\"; want a positive integer"));
}

TEST(ByLayer, LimitsOfStep3p5) {
  const auto activation = [](const json& limits) {
    const Checkpoint checkpoint = build("step3p5", {{"swiglu_limits", limits}});
    const json layer = inspect(checkpoint.open(shared_runtime("reference")))["layers"][0];
    return layer["activation"].get<std::string>();
  };
  EXPECT_EQ(activation({0, 0, 0, 0, 7.0, 5.0}), "swiglustep:-:-:7");
  EXPECT_EQ(activation({7.0, 7.0, 7.0, 7.0, 0.0}), "silu");
  EXPECT_EQ(activation({7.0, 7.0, 7.0, 7.0, nullptr}), "silu");
  EXPECT_EQ(activation({16, 16}), "swiglustep:-:-:16");
  EXPECT_EQ(activation(nullptr), "silu");
}

TEST(ByLayer, ZeroExpertsAreNone) {
  Checkpoint checkpoint;
  checkpoint.config =
      base_config("granitemoehybrid", {{"num_local_experts", 0}, {"num_experts_per_tok", 0}});
  checkpoint.tensors["model.embed_tokens.weight"] = filled({4, kHidden});
  EXPECT_EQ(inspect(checkpoint.open(shared_runtime("reference")))["layers"], json::array());
}

// ---- Neighbours --------------------------------------------------------------------------------

TEST(Neighbours, NoneNoKeys) {
  const json layer = inspect(build("mixtral").open(shared_runtime("reference")))["layers"][0];
  EXPECT_FALSE(layer.contains("shared_expert"));
  EXPECT_FALSE(layer.contains("latent"));
}

TEST(Neighbours, SharedExpertWithItsGate) {
  Checkpoint checkpoint = build("qwen2_moe");
  const std::string module = "model.layers.1.mlp.shared_expert";
  checkpoint.tensors[module + ".gate_proj.weight"] = filled({6, kHidden});
  checkpoint.tensors[module + ".up_proj.weight"] = filled({6, kHidden});
  checkpoint.tensors[module + ".down_proj.weight"] = filled({kHidden, 6});
  checkpoint.tensors[module + "_gate.weight"] = filled({1, kHidden});
  const json layer = inspect(checkpoint.open(shared_runtime("reference")))["layers"][0];
  const json want = {{"module", module}, {"width", 6}, {"gate", module + "_gate.weight"}};
  EXPECT_EQ(layer["shared_expert"], want);
}

// Beside the module that holds the experts, not in it; the width is the config's where the tensors
// are packed so that it is not theirs to tell.
TEST(Neighbours, ShareExpertOfStep) {
  Checkpoint checkpoint = build("step3p5");
  const std::string module = "model.layers.4.share_expert";
  checkpoint.tensors[module + ".norm.weight"] = filled({kHidden});
  checkpoint.config["share_expert_dim"] = 24;
  const json layer = inspect(checkpoint.open(shared_runtime("reference")))["layers"][0];
  const json want = {{"module", module}, {"width", 24}, {"gate", nullptr}};
  EXPECT_EQ(layer["shared_expert"], want);
}

}  // namespace
}  // namespace perch::test
