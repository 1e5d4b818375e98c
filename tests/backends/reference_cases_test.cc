// The reference on the cases of the field reports: the right values are those of the reports.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "backend_harness.h"
#include "numbers.h"

namespace perch::test {
namespace {

const char kLibrary[] = PERCH_BUILD_DIR "/lib/perch/backends/libperch_reference.so";
const float kNan = std::nanf("");

struct Sizes {
  uint32_t experts, topk;
  int64_t hidden, intermediate;
};

LayerConfig moe_config(const Sizes& sizes, uint32_t activation, uint32_t dtype = PERCH_TYPE_F32) {
  LayerConfig config =
      LayerConfig::make_moe("case", make_quant(PERCH_TYPE_F32), make_quant(PERCH_TYPE_F32));
  config.layer().in_dtype = config.layer().out_dtype = dtype;
  config.layer().max_tokens = 64;
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = sizes.experts;
  moe.topk = sizes.topk;
  moe.hidden = sizes.hidden;
  moe.intermediate = sizes.intermediate;
  moe.activation = activation;
  return config;
}

TensorMap weights(const LayerConfig& config, const std::vector<float>& w13,
                  const std::vector<float>& w2) {
  TensorMap tensors;
  tensors["w13"] = f32({config.rows(0), config.columns(0)}, w13);
  tensors["w2"] = f32({config.rows(1), config.columns(1)}, w2);
  return tensors;
}

// A layer with f32 tensors and its harness.
struct Bench {
  explicit Bench(const LayerConfig& config, const std::vector<TensorMap>& experts)
      : harness(kLibrary), layer(harness, config) {
    harness.prepare(experts, &layer);
    EXPECT_TRUE(layer.ok()) << layer.message;
  }
  std::vector<float> run(const Call& call) {
    const Result result = layer.run(call);
    EXPECT_EQ(result.status, PERCH_OK) << result.message;
    EXPECT_TRUE(result.guards_intact);
    return to_floats(result.y);
  }
  BackendHarness harness;
  Layer layer;
};

Call standard(Tensor x, const std::vector<int32_t>& ids, const std::vector<float>& router) {
  Call call;
  const int64_t tokens = x.shape[0];
  const int64_t topk = tokens == 0 ? 1 : static_cast<int64_t>(ids.size()) / tokens;
  call.x = std::move(x);
  call.ids = i32({tokens, topk}, ids);
  call.weights = f32({tokens, topk}, router);
  return call;
}

// E experts of one number: f_e(x) = ((e+1) x)^2.
Bench squares(uint32_t experts, uint32_t topk) {
  const LayerConfig config = moe_config({experts, topk, 1, 1}, PERCH_ACTIVATION_RELU2_NO_MUL);
  std::vector<TensorMap> all;
  for (uint32_t e = 0; e < experts; ++e) {
    all.push_back(weights(config, {static_cast<float>(e + 1)}, {1}));
  }
  return Bench(config, all);
}

TEST(ReferenceCase, A1NonGated) {
  const LayerConfig config = moe_config({1, 1, 4, 3}, PERCH_ACTIVATION_RELU2_NO_MUL);
  Bench bench(config, {weights(config, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0},
                               {1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1})});
  const Call call = standard(f32({1, 4}, {1, 2, -1, 0.5f}), {0}, {1});
  EXPECT_EQ(bench.run(call), (std::vector<float>{5, 1, 4, 0}));
}

TEST(ReferenceCase, A3IntermediateOfTen) {
  const LayerConfig config = moe_config({1, 1, 1, 10}, PERCH_ACTIVATION_SILU);
  std::vector<float> w13(20, 1);
  std::fill(w13.begin() + 10, w13.end(), 2.0f);
  Bench bench(config, {weights(config, w13, std::vector<float>(10, 1))});
  EXPECT_FLOAT_EQ(bench.run(standard(f32({1, 1}, {1}), {0}, {1}))[0], 14.62117157f);
}

TEST(ReferenceCase, A5GateThenUp) {
  const LayerConfig config = moe_config({1, 1, 1, 2}, PERCH_ACTIVATION_SILU);
  Bench bench(config, {weights(config, {1, 2, 3, 5}, {1, 10})});
  EXPECT_FLOAT_EQ(bench.run(standard(f32({1, 1}, {1}), {0}, {1}))[0], 90.27288353f);
}

TEST(ReferenceCase, A5PerRowScales) {
  LayerConfig config = moe_config({1, 1, 1, 2}, PERCH_ACTIVATION_SILU);
  config.first().scale_kind = PERCH_SCALE_CHANNEL;
  config.first().scale_dtype = PERCH_TYPE_F32;
  TensorMap tensors = weights(config, {1, 1, 1, 1}, {1, 10});
  tensors["w13.scale"] = f32({4}, {1, 2, 3, 5});
  Bench bench(config, {tensors});
  EXPECT_FLOAT_EQ(bench.run(standard(f32({1, 1}, {1}), {0}, {1}))[0], 90.27288353f);
}

TEST(ReferenceCase, B3GroupSums) {
  perch_quant quant = make_quant(PERCH_TYPE_INT4);
  quant.scale_kind = PERCH_SCALE_GROUP;
  quant.scale_dtype = PERCH_TYPE_F32;
  quant.group_k = 4;
  quant.zero_kind = PERCH_ZERO_NONE;
  LayerConfig config = LayerConfig::make_linear("b3", 1, 12, quant);
  config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
  TensorMap tensors;
  tensors["w"] = pack_codes(4, 1, 12, std::vector<uint32_t>(12, 1));
  tensors["w.scale"] = f32({1, 3}, {1, 10, 100});
  Bench bench(config, {tensors});
  Call call;
  call.x = f32({1, 12}, std::vector<float>(12, 1));
  EXPECT_EQ(bench.run(call), std::vector<float>{444});
}

TEST(ReferenceCase, C1ZeroTokens) {
  Bench bench = squares(6, 1);
  Call none = standard(empty_tensor({kDLFloat, 32, 1}, {0, 1}), {}, {});
  EXPECT_TRUE(bench.run(none).empty());
  EXPECT_EQ(bench.run(standard(f32({1, 1}, {1}), {2}, {1})), std::vector<float>{9});
}

TEST(ReferenceCase, C3Ids) {
  Bench bench = squares(4, 2);
  const Tensor one = f32({1, 1}, {1});
  EXPECT_EQ(bench.run(standard(one, {2, 2}, {0.25f, 0.75f}))[0], 9);
  EXPECT_EQ(bench.run(standard(one, {0, -1}, {0.5f, 0.5f}))[0], 0.5f);
  const float nothing = bench.run(standard(one, {-1, -1}, {0.5f, 0.5f}))[0];
  EXPECT_EQ(nothing, 0);
  EXPECT_FALSE(std::signbit(nothing));
  EXPECT_EQ(bench.run(standard(one, {0, -7}, {1, kNan}))[0], 1);
  for (const int32_t id : {4, 2147483647}) {
    EXPECT_EQ(bench.layer.run(standard(one, {0, id}, {1, 1})).status, PERCH_E_INVALID_ARGUMENT);
  }
  Call wide = standard(one, {0, 0}, {0.5f, 0.5f});
  wide.ids = i64({1, 2}, {3, -9000000000});
  EXPECT_EQ(bench.run(wide)[0], 8);
}

TEST(ReferenceCase, C3ExpertMap) {
  LayerConfig config = moe_config({2, 2, 1, 1}, PERCH_ACTIVATION_RELU2_NO_MUL);
  config.moe().num_experts_global = 4;
  Bench bench(config, {weights(config, {3}, {1}), weights(config, {1}, {1})});
  Call call = standard(f32({2, 1}, {1, 1}), {2, 0, 1, 3}, {1, 2, 4, 8});
  call.map = i32({4}, {1, -1, 0, -1});
  EXPECT_EQ(bench.run(call), (std::vector<float>{9 + 2, 0}));
}

TEST(ReferenceCase, C7WeightOnInput) {
  for (const bool on_input : {true, false}) {
    LayerConfig config = moe_config({1, 1, 1, 1}, PERCH_ACTIVATION_SILU);
    if (on_input) config.moe().flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
    Bench bench(config, {weights(config, {1, 1}, {1})});
    const float y = bench.run(standard(f32({1, 1}, {2}), {0}, {0.5f}))[0];
    EXPECT_FLOAT_EQ(y, on_input ? 0.73105858f : 1.76159416f);
  }
}

TEST(ReferenceCase, C7WeightedInputIsRoundedOnce) {
  LayerConfig config = moe_config({1, 1, 1, 1}, PERCH_ACTIVATION_RELU2_NO_MUL, PERCH_TYPE_BF16);
  config.layer().out_dtype = PERCH_TYPE_F32;
  config.moe().flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
  Bench bench(config, {weights(config, {1}, {1})});
  // 1.0078125 * 0.3 = 0.30234375.. -> bf16 0.302734375
  const Call call = standard(floats(PERCH_TYPE_BF16, {1, 1}, {1.0078125f}), {0}, {0.3f});
  EXPECT_EQ(bench.run(call)[0], 0.302734375f * 0.302734375f);
}

TEST(ReferenceCase, D6TopkSumIsNotRoundedOnTheWay) {
  const auto sum = [](const std::vector<float>& outputs) {
    const auto count = static_cast<uint32_t>(outputs.size());
    const LayerConfig config =
        moe_config({count, count, 1, 1}, PERCH_ACTIVATION_RELU2_NO_MUL, PERCH_TYPE_BF16);
    std::vector<TensorMap> experts;
    std::vector<int32_t> ids;
    for (uint32_t e = 0; e < count; ++e) {
      experts.push_back(weights(config, {1}, {outputs[e]}));
      ids.push_back(static_cast<int32_t>(e));
    }
    Bench bench(config, experts);
    const std::vector<float> ones(count, 1);
    return bench.run(standard(floats(PERCH_TYPE_BF16, {1, 1}, {1}), ids, ones))[0];
  };
  EXPECT_EQ(sum({1, 0.001953125f, -1}), 0.001953125f);
  EXPECT_EQ(sum({256, 1, 1, 1, 1, 1, 1, 1}), 264);
}

TEST(ReferenceCase, D6DownProjectionBeyondF16) {
  const LayerConfig config =
      moe_config({1, 1, 1, 2}, PERCH_ACTIVATION_RELU2_NO_MUL, PERCH_TYPE_F16);
  Bench bench(config, {weights(config, {14, 14}, {178, 180})});
  // 196 * 358 * 0.5 = 35084, and f16 has steps of 32 there: 35072
  EXPECT_EQ(bench.run(standard(floats(PERCH_TYPE_F16, {1, 1}, {1}), {0}, {0.5f}))[0], 35072);
}

LayerConfig linear_config(int64_t n, int64_t k, uint32_t type, uint32_t dtype) {
  LayerConfig config = LayerConfig::make_linear("case", n, k, make_quant(type));
  config.layer().in_dtype = config.layer().out_dtype = dtype;
  return config;
}

TEST(ReferenceCase, D6F16Linear) {
  const LayerConfig config = linear_config(1, 4096, PERCH_TYPE_F32, PERCH_TYPE_F16);
  TensorMap tensors;
  tensors["w"] = f32({1, 4096}, std::vector<float>(4096, 1));
  Bench bench(config, {tensors});
  Call call;
  call.x = floats(PERCH_TYPE_F16, {1, 4096}, std::vector<float>(4096, 1));
  EXPECT_EQ(bench.run(call)[0], 4096);
}

perch_act_quant per_token(uint32_t dtype) {
  perch_act_quant act = make_act_none();
  act.dtype = dtype;
  act.mode = PERCH_ACT_TOKEN;
  act.scale_dtype = PERCH_TYPE_F32;
  return act;
}

TEST(ReferenceCase, E1ScalesArePerToken) {
  LayerConfig config = linear_config(1, 2, PERCH_TYPE_E4M3FN, PERCH_TYPE_F32);
  config.act_first() = per_token(PERCH_TYPE_E4M3FN);
  TensorMap tensors;
  tensors["w"] = u8({1, 2}, {0x00, 0x38});  // 0, 1
  Bench bench(config, {tensors});
  Call alone;
  alone.x = f32({1, 2}, {1, 0.3f});
  Call crowded;
  crowded.x = f32({2, 2}, {1, 0.3f, 1000, 0});
  const float y = bench.run(alone)[0];
  EXPECT_FLOAT_EQ(y, 0.28571429f);
  EXPECT_EQ(bench.run(crowded)[0], y);
}

TEST(ReferenceCase, F3InputsAreReallyQuantized) {
  LayerConfig config = linear_config(1, 2, PERCH_TYPE_INT8, PERCH_TYPE_F32);
  config.first().zero_kind = PERCH_ZERO_NONE;
  config.act_first() = per_token(PERCH_TYPE_INT8);
  TensorMap tensors;
  tensors["w"] = u8({1, 2}, {0, 1});
  Bench bench(config, {tensors});
  Call call;
  call.x = f32({1, 2}, {100.4f, 0.3f});
  EXPECT_EQ(bench.run(call)[0], 0.0f);
}

TEST(ReferenceCase, D1Conversions) {
  LayerConfig config = linear_config(1, 1, PERCH_TYPE_F32, PERCH_TYPE_F32);
  config.act_first() = per_token(PERCH_TYPE_E4M3FN);
  config.act_first().mode = PERCH_ACT_STATIC;
  TensorMap tensors;
  tensors["w"] = f32({1, 1}, {1});
  tensors["w.input_scale"] = f32({1}, {1});
  Bench bench(config, {tensors});
  Call call;
  const float sub = 0.001953125f;  // 2^-9
  call.x = f32({19, 1}, {0, 1, 17, 19, 0.3f, 300, 304, 447.9f, 448, 464, 480, 1e6f, -1e6f, kNan,
                         sub, sub / 2, 1.5f * sub, INFINITY, -INFINITY});
  const std::vector<float> want{0,   1,   16,   20,   0.3125f, 288, 320,     448,  448, 448,
                                448, 448, -448, kNan, sub,     0,   2 * sub, kNan, kNan};
  const std::vector<float> y = bench.run(call);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(y[i] == want[i] || (std::isnan(y[i]) && std::isnan(want[i]))) << i << ": " << y[i];
  }
}

TEST(ReferenceCase, NanStaysInItsRow) {
  for (const uint32_t dtype : {PERCH_TYPE_INT8, PERCH_TYPE_E4M3FN}) {
    LayerConfig config = linear_config(2, 2, PERCH_TYPE_F32, PERCH_TYPE_F32);
    config.act_first() = per_token(dtype);
    TensorMap tensors;
    tensors["w"] = f32({2, 2}, {1, 0, 0, 1});
    Bench bench(config, {tensors});
    Call call;
    call.x = f32({4, 2}, {1, 0, kNan, 1, 1, INFINITY, 0, 1});
    const std::vector<float> y = bench.run(call);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(std::isnan(y[i]), i >= 2 && i < 6) << i;
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[7], 1);
  }
}

}  // namespace
}  // namespace perch::test
