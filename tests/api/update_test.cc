// perch_layer_update (field reports J7, H6): one expert of several is replaced, in place.
#include "api_rig.h"
#include "base/recipe.h"

namespace perch::test {
namespace {

struct Row {
  const char* backend;
  const char* weight;
  const char* name;
};

class UpdateTest : public ::testing::TestWithParam<Row> {
 protected:
  LayerConfig config() const {
    LayerConfig made =
        moe_layer({8, 2, 16, 24}, PERCH_ACTIVATION_SILU, PERCH_TYPE_BF16, PERCH_TYPE_BF16);
    made.first() = made.second() = *parse_weight(GetParam().weight);
    return made;
  }
  static perch_status update(perch_layer* layer, int32_t expert, const TensorMap& tensors,
                             std::string* message = nullptr) {
    const std::vector<perch_named_tensor> named = BackendHarness::name_tensors(tensors);
    perch_error error = PERCH_ERROR_INIT;
    const perch_status status = perch_layer_update(layer, expert, named.data(),
                                                   static_cast<uint32_t>(named.size()), &error);
    if (message != nullptr) *message = error.message;
    return status;
  }
};

TEST_P(UpdateTest, ChangesOnlyRowsRoutedToTheExpert) {
  const LayerConfig layer_config = config();
  std::vector<TensorMap> experts = random_experts(layer_config, 1);
  perch_runtime* runtime = shared_runtime(GetParam().backend);
  const perch_host::Layer layer = build_layer(runtime, layer_config, experts);
  const Call call = random_call(layer_config, 40, 2);
  const Tensor before = run(layer.get(), layer_config, call);
  experts[3] = random_tensors(layer_config, 77);
  std::string message;
  const perch_status status = update(layer.get(), 3, experts[3], &message);
  ASSERT_EQ(status, PERCH_OK) << message;
  const Tensor after = run(layer.get(), layer_config, call);
  const std::vector<int32_t> ids = call.ids.as<int32_t>();
  int touched = 0;
  for (size_t t = 0; t < 40; ++t) {
    const bool routed = ids[2 * t] == 3 || ids[2 * t + 1] == 3;
    touched += routed;
    EXPECT_EQ(std::memcmp(&before.bytes[t * 32], &after.bytes[t * 32], 32) == 0, !routed) << t;
  }
  EXPECT_GT(touched, 0);
  // And equals a layer that was built with the new weights.
  const perch_host::Layer fresh = build_layer(runtime, layer_config, experts);
  EXPECT_EQ(run(fresh.get(), layer_config, call).bytes, after.bytes);
}

TEST_P(UpdateTest, BadTensorsLeaveTheOldAnswers) {
  const LayerConfig layer_config = config();
  const std::vector<TensorMap> experts = random_experts(layer_config, 1);
  const perch_host::Layer layer =
      build_layer(shared_runtime(GetParam().backend), layer_config, experts);
  const Call call = random_call(layer_config, 40, 2);
  const Tensor before = run(layer.get(), layer_config, call);
  std::string message;

  TensorMap missing = random_tensors(layer_config, 77);
  missing.erase("w2");
  EXPECT_EQ(update(layer.get(), 3, missing, &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(message, "perch_layer_update: weights[\"w2\"]: missing"));

  TensorMap short_rows = random_tensors(layer_config, 77);
  short_rows["w2"].shape[0] = 15;
  EXPECT_EQ(update(layer.get(), 3, short_rows, &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(message, "weights[\"w2\"]: shape: got [15,"));

  TensorMap stranger = random_tensors(layer_config, 77);
  stranger["w3"] = stranger["w2"];
  EXPECT_EQ(update(layer.get(), 3, stranger, &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(message, "weights[\"w3\"]: name: not called for"));

  const TensorMap good = random_tensors(layer_config, 77);
  EXPECT_EQ(update(layer.get(), 8, good, &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(message, "expert: got 8; want 0 to 7"));
  EXPECT_EQ(update(layer.get(), -1, good, &message), PERCH_E_INVALID_ARGUMENT);

  EXPECT_EQ(run(layer.get(), layer_config, call).bytes, before.bytes);
}

const Row kRows[] = {{"reference", "bf16", "reference_bf16"},
                     {"reference", "int4g8:bf16", "reference_int4"},
                     {"humming-cpu", "bf16", "humming_cpu_bf16"},
                     {"humming-cpu", "int4g8:bf16", "humming_cpu_int4"}};
INSTANTIATE_TEST_SUITE_P(Backends, UpdateTest, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace perch::test
