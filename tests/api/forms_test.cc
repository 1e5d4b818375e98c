// The three call forms and linear layers, on the same weights.
#include "api_rig.h"

namespace perch::test {
namespace {

class FormTest : public ::testing::TestWithParam<const char*> {
 protected:
  perch_runtime* runtime() const { return shared_runtime(GetParam()); }
};

constexpr MoeSizes kSizes{3, 1, 8, 6};

LayerConfig form_layer(uint32_t form) {
  LayerConfig config = moe_layer(kSizes, PERCH_ACTIVATION_SILU, PERCH_TYPE_BF16, PERCH_TYPE_F32);
  config.moe().form = form;
  return config;
}

// Rows 0..4 by expert 0, 0, 2, 2, 2: the standard form with weight 1.
struct Standard {
  explicit Standard(perch_runtime* runtime) {
    const LayerConfig config = form_layer(PERCH_FORM_STANDARD);
    experts = random_experts(config, 4);
    call = random_call(config, 5, 1);
    call.ids = i32({5, 1}, {0, 0, 2, 2, 2});
    call.weights = f32({5, 1}, std::vector<float>(5, 1.0F));
    const perch_host::Layer layer = build_layer(runtime, config, experts);
    y = to_floats(run(layer.get(), config, call));
  }
  std::vector<TensorMap> experts;
  Call call;
  std::vector<float> y;
};

TEST_P(FormTest, GroupedEqualsStandard) {
  const Standard standard(runtime());
  const LayerConfig config = form_layer(PERCH_FORM_GROUPED);
  const perch_host::Layer layer = build_layer(runtime(), config, standard.experts);
  Call call;
  call.x = standard.call.x;
  call.offsets = i64({4}, {0, 2, 2, 5});
  const std::vector<float> y = to_floats(run(layer.get(), config, call));
  for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], standard.y[i], 1e-5F) << i;

  for (const auto& [offsets, message] :
       {std::pair<std::vector<int64_t>, std::string>{{1, 2, 2, 5},
                                                     "expert_offsets[0]: value: got 1"},
        {{0, 3, 2, 5}, "expert_offsets[2]: value: got 2; want 3 to 5"},
        {{0, 2, 2, 6}, "expert_offsets[3]: value: got 6; want 2 to 5"}}) {
    call.offsets = i64({4}, offsets);
    EXPECT_TRUE(says(refusal([&] { run(layer.get(), config, call); }), message));
  }
}

TEST_P(FormTest, BatchedEqualsStandardAndLeavesOtherRowsAlone) {
  const Standard standard(runtime());
  const LayerConfig config = form_layer(PERCH_FORM_BATCHED);
  const perch_host::Layer layer = build_layer(runtime(), config, standard.experts);
  for (const bool wide : {false, true}) {
    Call call;
    // [3 experts, 3 rows, 8], rows beyond the count NaN: nothing of them may matter.
    std::vector<float> x(3 * 3 * 8, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> rows = to_floats(standard.call.x);
    std::copy_n(rows.begin(), 2 * 8, x.begin());
    std::copy_n(rows.begin() + 2 * 8, 3 * 8, x.begin() + 6 * 8);
    call.x = f32({3, 3, 8}, x);
    call.counts = wide ? i64({3}, {2, 0, 3}) : i32({3}, {2, 0, 3});
    const Tensor y = run(layer.get(), config, call);
    const std::vector<float> got = to_floats(y);
    for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(got[i], standard.y[i], 1e-5F) << i;
    for (size_t i = 0; i < 24; ++i) EXPECT_NEAR(got[48 + i], standard.y[16 + i], 1e-5F) << i;
    for (size_t i = 16 * 4; i < 48 * 4; ++i) ASSERT_EQ(y.bytes[i], 0xFF) << "was written";
    call.counts = i32({3}, {2, 0, 4});
    EXPECT_TRUE(says(refusal([&] { run(layer.get(), config, call); }),
                     "expert_counts[2]: value: got 4; want 0 to 3"));
    call.counts = i32({3}, {2, -1, 3});
    EXPECT_TRUE(says(refusal([&] { run(layer.get(), config, call); }),
                     "expert_counts[1]: value: got -1; want 0 to 3"));
  }
}

TEST_P(FormTest, TheFormOfACallIsTheConfigs) {
  const LayerConfig config = form_layer(PERCH_FORM_GROUPED);
  const perch_host::Layer layer = build_layer(runtime(), config, random_experts(config, 1));
  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = PERCH_FORM_STANDARD;
  shape.num_tokens = 1;
  perch_workspace_req request{};
  request.struct_size = sizeof(request);
  EXPECT_TRUE(says(
      refusal([&] { perch_host::check(perch_layer_workspace, layer.get(), &shape, &request); }),
      "shape.form: got 1; want 3"));
}

TEST_P(FormTest, LinearWithBias) {
  perch_quant quant = make_quant(PERCH_TYPE_BF16);
  quant.flags = PERCH_QUANT_HAS_BIAS;
  LayerConfig config = LayerConfig::make_linear("fc", 3, 2, quant);
  config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
  config.layer().max_tokens = 8;
  TensorMap tensors;
  tensors["w"] = floats(PERCH_TYPE_BF16, {3, 2}, {1, 2, 3, 4, -1, 0.5F});
  tensors["w.bias"] = f32({3}, {10, 20, 30});
  const perch_host::Layer layer = build_layer(runtime(), config, {tensors});
  Call call;
  call.x = f32({2, 2}, {1, 1, 2, -1});
  EXPECT_EQ(to_floats(run(layer.get(), config, call)),
            (std::vector<float>{13, 27, 29.5F, 10, 22, 27.5F}));
  call.x = f32({0, 2}, {});
  EXPECT_EQ(refusal([&] { run(layer.get(), config, call); }), "");
  const Tensor ids = i32({1, 1}, {0});
  call.x = f32({1, 2}, {1, 1});
  call.ids = ids;
  EXPECT_TRUE(says(refusal([&] { run(layer.get(), config, call); }),
                   "topk_ids: got a tensor; want NULL for a linear layer"));
}

INSTANTIATE_TEST_SUITE_P(Backends, FormTest, ::testing::Values("reference", "humming-cpu"),
                         [](const auto& row) { return std::string(row.param).substr(0, 7); });

}  // namespace
}  // namespace perch::test
