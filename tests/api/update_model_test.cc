// perch_model_update (field reports H6, J7): all weights of a prepared layer, by those of another
// checkpoint, in place.
#include <cmath>

#include "api_rig.h"
#include "checkpoint_rig.h"

namespace perch::test {
namespace {

constexpr MoeSizes kSizes{4, 2, 16, 24};

class UpdateModel : public ::testing::TestWithParam<const char*> {
 protected:
  static Checkpoint weights(uint32_t seed, const MoeSizes& sizes = kSizes) {
    return store(Storage::kP, sizes, random_weights(sizes, seed));
  }
  static perch_host::Model open(const Checkpoint& checkpoint) {
    return checkpoint.open(shared_runtime(GetParam()));
  }
  static Tensor output(const perch_host::Layer& layer, const perch_host::Model& model) {
    const LayerConfig config(*perch_model_layer_config(model.get(), 0));
    return run(layer.get(), config, random_call(config, 9, 2));
  }
  static std::string update(const perch_host::Model& model, const perch_host::Layer& layer) {
    return refusal([&] { perch_host::check(perch_model_update, model.get(), 0U, layer.get()); });
  }
};

TEST_P(UpdateModel, AnswersAsAFreshLayerDoes) {
  const Checkpoint old_weights = weights(1);
  const Checkpoint new_weights = weights(2);
  const perch_host::Model first = open(old_weights);
  const perch_host::Model second = open(new_weights);
  const perch_host::Layer layer = perch_host::make_layer(first, 0);
  const Tensor before = output(layer, first);
  EXPECT_EQ(update(second, layer), "");
  const Tensor after = output(layer, first);
  EXPECT_NE(before.bytes, after.bytes);
  EXPECT_EQ(after.bytes, output(perch_host::make_layer(second, 0), second).bytes);
  // And back again.
  EXPECT_EQ(update(first, layer), "");
  EXPECT_EQ(before.bytes, output(layer, first).bytes);
}

// mxfp4, whose scale 255 is NaN: a backend refuses it, and no shape or name gives it away before.
Checkpoint mxfp4(uint8_t code, uint8_t last_scale) {
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", {4, 2, 32, 64});
  const json weights = {{"num_bits", 4},
                        {"type", "float"},
                        {"strategy", "group"},
                        {"group_size", 32},
                        {"symmetric", true}};
  checkpoint.config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", "mxfp4-pack-quantized"},
      {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  for (int e = 0; e < 4; ++e) {
    const std::string expert = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
    const auto put = [&](const std::string& part, int64_t n, int64_t k) {
      Tensor packed = empty_tensor({kDLUInt, 8, 1}, {n, k / 2});
      std::fill(packed.bytes.begin(), packed.bytes.end(), code);
      Tensor scales = empty_tensor({kDLUInt, 8, 1}, {n, k / 32});
      std::fill(scales.bytes.begin(), scales.bytes.end(), uint8_t{127});
      if (e == 3 && part == "down_proj") scales.bytes.back() = last_scale;
      checkpoint.tensors[expert + part + ".weight_packed"] = std::move(packed);
      checkpoint.tensors[expert + part + ".weight_scale"] = std::move(scales);
    };
    put("gate_proj", 64, 32);
    put("up_proj", 64, 32);
    put("down_proj", 32, 64);
  }
  return checkpoint;
}

// The bad tensor is in the last expert, behind three that would have been taken.
TEST_P(UpdateModel, ABadTensorLeavesEverythingAsItWas) {
  const Checkpoint good = mxfp4(0x21, 127);
  const Checkpoint bad = mxfp4(0x43, 255);
  const perch_host::Model first = open(good);
  const LayerConfig config(*perch_model_layer_config(first.get(), 0));
  if (!accepts(config, shared_runtime(GetParam()))) GTEST_SKIP() << "no mxfp4 in this backend";
  const perch_host::Model second = open(bad);
  const perch_host::Layer layer = perch_host::make_layer(first, 0);
  const Tensor before = output(layer, first);
  EXPECT_TRUE(says(update(second, layer), "expert 3"));
  EXPECT_EQ(before.bytes, output(layer, first).bytes);
}

TEST_P(UpdateModel, RefusesAnotherShapeAndFormat) {
  const Checkpoint old_weights = weights(1);
  const perch_host::Model first = open(old_weights);
  const perch_host::Layer layer = perch_host::make_layer(first, 0);
  const Tensor before = output(layer, first);
  const Checkpoint wider = weights(2, {4, 2, 16, 40});
  EXPECT_TRUE(says(update(open(wider), layer), "intermediate 40"));
  Checkpoint other = store(Storage::kP, kSizes, random_weights(kSizes, 2), PERCH_TYPE_F32);
  EXPECT_TRUE(says(update(open(other), layer), "w=f32"));
  EXPECT_EQ(before.bytes, output(layer, first).bytes);
}

INSTANTIATE_TEST_SUITE_P(Backends, UpdateModel, ::testing::Values("reference", "humming-cpu"),
                         [](const auto& row) {
                           return row.param == std::string("reference") ? "reference"
                                                                        : "humming_cpu";
                         });

}  // namespace
}  // namespace perch::test
