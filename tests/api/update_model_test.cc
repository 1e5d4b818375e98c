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

// The bad tensor is in the last expert, behind three that would have been taken.
TEST_P(UpdateModel, ABadTensorLeavesEverythingAsItWas) {
  const Checkpoint old_weights = weights(1);
  Checkpoint bad = weights(2);
  bad.config["quantization_config"] = packed_config(4, "group", 8);
  Checkpoint good = bad;
  for (Checkpoint* checkpoint : {&good, &bad}) {
    checkpoint->tensors.clear();
    for (uint32_t e = 0; e < kSizes.experts; ++e) {
      const std::string expert = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
      const auto put = [&](const char* part, int64_t n, int64_t k) {
        std::vector<int> codes(static_cast<size_t>(n * k), checkpoint == &good ? 1 : 2);
        std::vector<float> scales(static_cast<size_t>(n * k / 8), 0.5F);
        const bool last = e + 1 == kSizes.experts && std::string(part) == "down_proj";
        if (last && checkpoint == &bad) scales.back() = NAN;
        store_packed(expert + part, 4, n, k, codes, scales, checkpoint);
      };
      put("gate_proj", kSizes.intermediate, kSizes.hidden);
      put("up_proj", kSizes.intermediate, kSizes.hidden);
      put("down_proj", kSizes.hidden, kSizes.intermediate);
    }
  }
  const perch_host::Model first = open(good);
  const perch_host::Model second = open(bad);
  const perch_host::Layer layer = perch_host::make_layer(first, 0);
  const Tensor before = output(layer, first);
  const std::string refused = update(second, layer);
  if (refused.empty()) {
    GTEST_SKIP() << "this backend does not look at scales";
  }
  EXPECT_TRUE(says(refused, "expert 3"));
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
                         [](const auto& info) {
                           return info.param == std::string("reference") ? "reference"
                                                                         : "humming_cpu";
                         });

}  // namespace
}  // namespace perch::test
