// The reference against a second, independent evaluation, over every part of the algebra.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend_harness.h"
#include "mini_reference.h"
#include "numbers.h"
#include "random_layer.h"

namespace perch::test {
namespace {

const char kLibrary[] = PERCH_BUILD_DIR "/lib/perch/backends/libperch_reference.so";

struct Recipe {
  std::string name;
  uint32_t weight = PERCH_TYPE_F32;
  uint32_t scale_kind = PERCH_SCALE_NONE;
  uint32_t scale_dtype = PERCH_TYPE_NONE;
  uint32_t group = 0;
  uint32_t zero = 0;  // 0: the default of the type
  uint32_t scale2 = PERCH_SCALE2_NONE;
  bool offset = false;
  bool g_idx = false;
  uint32_t flags = 0;
  perch_act_quant act = make_act_none();
  uint32_t activation = PERCH_ACTIVATION_SILU;
  float alpha = 0, beta = 0, limit = 0;
  uint32_t in = PERCH_TYPE_F32, out = PERCH_TYPE_F32;
};

perch_act_quant act_of(uint32_t dtype, uint32_t mode, uint32_t group, uint32_t scale) {
  perch_act_quant act = make_act_none();
  act.dtype = dtype;
  act.mode = mode;
  act.group = group;
  act.scale_dtype = scale;
  return act;
}

perch_quant quant_of(const Recipe& recipe) {
  perch_quant quant = make_quant(recipe.weight);
  quant.scale_kind = recipe.scale_kind;
  quant.scale_dtype = recipe.scale_dtype;
  const bool block = recipe.scale_kind == PERCH_SCALE_BLOCK;
  if (block || recipe.scale_kind == PERCH_SCALE_GROUP) quant.group_k = recipe.group;
  if (block) quant.group_n = recipe.group / 2;
  if (recipe.zero != 0) quant.zero_kind = recipe.zero;
  quant.scale2_kind = recipe.scale2;
  if (recipe.offset) quant.offset_kind = PERCH_OFFSET_GROUP;
  if (recipe.g_idx) quant.k_order = PERCH_K_G_IDX;
  quant.flags = recipe.flags;
  return quant;
}

std::vector<Recipe> weight_recipes() {
  std::vector<Recipe> recipes;
  const uint32_t kinds[] = {PERCH_SCALE_TENSOR, PERCH_SCALE_CHANNEL, PERCH_SCALE_GROUP,
                            PERCH_SCALE_BLOCK};
  const uint32_t dtypes[] = {PERCH_TYPE_F32,    PERCH_TYPE_F16,  PERCH_TYPE_BF16,
                             PERCH_TYPE_E4M3FN, PERCH_TYPE_E5M2, PERCH_TYPE_E8M0};
  // Every weight type with every scale kind; the scale dtypes and group sizes take turns.
  uint32_t turn = 0;
  for (uint32_t type = PERCH_TYPE_F32; type <= PERCH_TYPE_LUT4; ++type) {
    Recipe plain{std::string(type_name(type)) + "_none", type};
    recipes.push_back(plain);
    for (const uint32_t kind : kinds) {
      Recipe recipe{std::string(type_name(type)) + "_kind" + std::to_string(kind), type, kind};
      recipe.scale_dtype = dtypes[turn % 6];
      recipe.group = (turn % 2 == 0) ? 8 : 5;
      ++turn;
      recipes.push_back(recipe);
    }
  }
  return recipes;
}

std::vector<Recipe> extra_recipes() {
  const uint32_t group = PERCH_SCALE_GROUP;
  std::vector<Recipe> recipes;
  for (uint32_t type = PERCH_TYPE_INT1; type <= PERCH_TYPE_INT8; ++type) {
    for (const uint32_t zero : {PERCH_ZERO_NONE, PERCH_ZERO_INT, PERCH_ZERO_FLOAT}) {
      Recipe recipe{std::string(type_name(type)) + "_zero" + std::to_string(zero),
                    type,
                    group,
                    PERCH_TYPE_BF16,
                    8,
                    zero};
      recipe.offset = zero == PERCH_ZERO_FLOAT;
      recipes.push_back(recipe);
    }
  }
  Recipe act_order{"int4_g_idx", PERCH_TYPE_INT4, group, PERCH_TYPE_F16, 8, PERCH_ZERO_INT};
  act_order.g_idx = true;
  recipes.push_back(act_order);
  Recipe channel_zero{"int8_channel_zero", PERCH_TYPE_INT8, PERCH_SCALE_CHANNEL, PERCH_TYPE_F32};
  channel_zero.zero = PERCH_ZERO_INT;
  recipes.push_back(channel_zero);
  Recipe nvfp4{"nvfp4", PERCH_TYPE_E2M1, group, PERCH_TYPE_E4M3FN, 16};
  nvfp4.scale2 = PERCH_SCALE2_TENSOR;
  recipes.push_back(nvfp4);
  nvfp4.name = "nvfp4_channel_scale2";
  nvfp4.scale2 = PERCH_SCALE2_CHANNEL;
  recipes.push_back(nvfp4);
  Recipe bias{"bf16_bias_pre", PERCH_TYPE_BF16};
  bias.flags = PERCH_QUANT_HAS_BIAS | PERCH_QUANT_HAS_PRE_SCALE;
  recipes.push_back(bias);
  bias.name = "bf16_bias_pre_in_bf16";
  bias.in = bias.out = PERCH_TYPE_BF16;
  recipes.push_back(bias);
  bias.name = "f16_in_f16_out";
  bias.in = bias.out = PERCH_TYPE_F16;
  recipes.push_back(bias);
  Recipe lut{"lut4_zero_float", PERCH_TYPE_LUT4, group, PERCH_TYPE_F32, 5, PERCH_ZERO_FLOAT};
  recipes.push_back(lut);
  return recipes;
}

std::vector<Recipe> act_recipes() {
  const perch_act_quant acts[] = {
      act_of(PERCH_TYPE_INT8, PERCH_ACT_TOKEN, 0, PERCH_TYPE_F32),
      act_of(PERCH_TYPE_INT8, PERCH_ACT_TOKEN, 0, PERCH_TYPE_E8M0),
      act_of(PERCH_TYPE_INT8, PERCH_ACT_GROUP, 8, PERCH_TYPE_F32),
      act_of(PERCH_TYPE_INT8, PERCH_ACT_GROUP, 7, PERCH_TYPE_E8M0),
      act_of(PERCH_TYPE_INT8, PERCH_ACT_STATIC, 0, PERCH_TYPE_F32),
      act_of(PERCH_TYPE_E4M3FN, PERCH_ACT_TOKEN, 0, PERCH_TYPE_F32),
      act_of(PERCH_TYPE_E4M3FN, PERCH_ACT_TOKEN, 0, PERCH_TYPE_E8M0),
      act_of(PERCH_TYPE_E4M3FN, PERCH_ACT_GROUP, 16, PERCH_TYPE_F32),
      act_of(PERCH_TYPE_E4M3FN, PERCH_ACT_GROUP, 8, PERCH_TYPE_E8M0),
      act_of(PERCH_TYPE_E4M3FN, PERCH_ACT_STATIC, 0, PERCH_TYPE_F32),
      act_of(PERCH_TYPE_E2M1, PERCH_ACT_GROUP, 32, PERCH_TYPE_E8M0),
      act_of(PERCH_TYPE_E2M1, PERCH_ACT_GROUP, 6, PERCH_TYPE_E8M0),
      act_of(PERCH_TYPE_E2M1, PERCH_ACT_STATIC_GROUP, 16, PERCH_TYPE_E4M3FN)};
  std::vector<Recipe> recipes;
  for (const perch_act_quant& act : acts) {
    Recipe recipe{"act" + std::to_string(recipes.size()), PERCH_TYPE_E4M3FN, PERCH_SCALE_BLOCK,
                  PERCH_TYPE_F32, 8};
    recipe.act = act;
    recipes.push_back(recipe);
    recipe.name += "_pre_bf16";
    recipe.in = PERCH_TYPE_BF16;
    recipe.flags = PERCH_QUANT_HAS_PRE_SCALE;
    recipes.push_back(recipe);
  }
  return recipes;
}

std::vector<Recipe> activation_recipes() {
  std::vector<Recipe> recipes;
  const auto add = [&](uint32_t activation, float alpha, float beta, float limit) {
    Recipe recipe{"activation" + std::to_string(activation) + "_" + std::to_string(recipes.size())};
    recipe.activation = activation;
    recipe.alpha = alpha;
    recipe.beta = beta;
    recipe.limit = limit;
    recipes.push_back(recipe);
  };
  for (uint32_t activation = PERCH_ACTIVATION_SILU; activation <= PERCH_ACTIVATION_RELU2_NO_MUL;
       ++activation) {
    if (activation == PERCH_ACTIVATION_SWIGLUOAI) {
      add(activation, 1.702f, 1, 0.5f);
    } else if (activation == PERCH_ACTIVATION_SWIGLUSTEP) {
      add(activation, 0, 0, 0.25f);
    } else if (activation == PERCH_ACTIVATION_SITU) {
      add(activation, 0, 0.7f, 0);
      add(activation, 0.6f, 1.3f, 0);
    } else {
      add(activation, 0, 0, 0);
    }
  }
  add(PERCH_ACTIVATION_SILU, 0, 0, 0.4f);
  return recipes;
}

LayerConfig moe_config(const Recipe& recipe) {
  const perch_quant quant = quant_of(recipe);
  LayerConfig config = LayerConfig::make_moe(recipe.name, quant, quant);
  config.layer().in_dtype = recipe.in;
  config.layer().out_dtype = recipe.out;
  config.layer().max_tokens = 8;
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = 3;
  moe.topk = 2;
  moe.hidden = 37;
  moe.intermediate = 22;
  moe.activation = recipe.activation;
  moe.act_alpha = recipe.alpha;
  moe.act_beta = recipe.beta;
  moe.act_limit = recipe.limit;
  if (recipe.alpha != 0) moe.flags |= PERCH_MOE_HAS_ALPHA;
  if (recipe.beta != 0) moe.flags |= PERCH_MOE_HAS_BETA;
  if (recipe.limit != 0) moe.flags |= PERCH_MOE_HAS_LIMIT;
  config.act_first() = recipe.act;
  config.act_second() = recipe.act;
  return config;
}

// What |got - want| may be: f32 noise against the row's size, and one rounding to the output.
double allowed(const Recipe& recipe, double want, double row_size) {
  const double unit =
      recipe.out == PERCH_TYPE_F32 ? 0 : (recipe.out == PERCH_TYPE_F16 ? 5e-4 : 4e-3);
  return 4e-6 * row_size + unit * std::fabs(want) + 1e-30;
}

double largest(const Row& row) {
  double size = 0;
  for (const double value : row) size = std::max(size, std::fabs(value));
  return size;
}

class ReferenceRecipe : public testing::TestWithParam<Recipe> {};

TEST_P(ReferenceRecipe, MoeAgreesWithASecondEvaluation) {
  const Recipe& recipe = GetParam();
  BackendHarness harness(kLibrary);
  const LayerConfig config = moe_config(recipe);
  ASSERT_TRUE(harness.query(config.abi()).yes()) << harness.query(config.abi()).print();
  std::vector<TensorMap> experts;
  for (uint32_t e = 0; e < 3; ++e) experts.push_back(random_tensors(config, 100 + e));
  Layer layer(harness, config);
  harness.prepare(experts, &layer);
  ASSERT_TRUE(layer.ok()) << layer.message;
  const Answer answer = harness.query(config.abi());
  EXPECT_EQ(static_cast<int64_t>(answer.support.packed_bytes), harness.host.live_bytes.load());

  std::mt19937 rng(7);
  Call call;
  call.x = random_floats(recipe.in, {4, 37}, -2, 2, rng);
  const std::vector<int32_t> ids{0, 1, 2, -1, 1, 1, 0, 2};
  const std::vector<float> weights{0.5f, 0.25f, 1.5f, 3, 0.125f, 0.75f, -1, 0.3f};
  call.ids = i32({4, 2}, ids);
  call.weights = f32({4, 2}, weights);
  const Result result = layer.run(call);
  ASSERT_EQ(result.status, PERCH_OK) << result.message;
  EXPECT_TRUE(result.guards_intact);

  const std::vector<float> x = to_floats(call.x);
  const std::vector<float> y = to_floats(result.y);
  for (size_t t = 0; t < 4; ++t) {
    Row want(37, 0.0);
    double size = 0;
    for (size_t slot = 0; slot < 2; ++slot) {
      if (ids[2 * t + slot] < 0) continue;
      const Row row(x.begin() + static_cast<int64_t>(37 * t),
                    x.begin() + static_cast<int64_t>(37 * (t + 1)));
      const Row y_e = mini_expert(config, experts[static_cast<size_t>(ids[2 * t + slot])], row);
      const double weight = static_cast<double>(weights[2 * t + slot]);
      size += std::fabs(weight) * largest(y_e);
      for (size_t h = 0; h < 37; ++h) want[h] += weight * y_e[h];
    }
    for (size_t h = 0; h < 37; ++h) {
      ASSERT_NEAR(static_cast<double>(y[37 * t + h]), want[h], allowed(recipe, want[h], size))
          << "token " << t << " element " << h;
    }
  }
}

TEST_P(ReferenceRecipe, LinearAgreesWithASecondEvaluation) {
  const Recipe& recipe = GetParam();
  BackendHarness harness(kLibrary);
  LayerConfig config = LayerConfig::make_linear(recipe.name, 19, 45, quant_of(recipe));
  config.layer().in_dtype = recipe.in;
  config.layer().out_dtype = recipe.out;
  config.act_first() = recipe.act;
  const TensorMap tensors = random_tensors(config, 11);
  Layer layer(harness, config);
  harness.prepare({tensors}, &layer);
  ASSERT_TRUE(layer.ok()) << layer.message;
  std::mt19937 rng(8);
  Call call;
  call.x = random_floats(recipe.in, {3, 45}, -2, 2, rng);
  const Result result = layer.run(call);
  ASSERT_EQ(result.status, PERCH_OK) << result.message;
  const std::vector<float> x = to_floats(call.x);
  const std::vector<float> y = to_floats(result.y);
  for (size_t t = 0; t < 3; ++t) {
    const Row row(x.begin() + static_cast<int64_t>(45 * t),
                  x.begin() + static_cast<int64_t>(45 * (t + 1)));
    const Row want = MiniMatrix(config, 0, tensors).multiply(row);
    for (size_t n = 0; n < 19; ++n) {
      ASSERT_NEAR(static_cast<double>(y[19 * t + n]), want[n],
                  allowed(recipe, want[n], largest(want)))
          << "row " << t << " element " << n;
    }
  }
}

std::string recipe_name(const testing::TestParamInfo<Recipe>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Weights, ReferenceRecipe, testing::ValuesIn(weight_recipes()),
                         recipe_name);
INSTANTIATE_TEST_SUITE_P(Extras, ReferenceRecipe, testing::ValuesIn(extra_recipes()), recipe_name);
INSTANTIATE_TEST_SUITE_P(Inputs, ReferenceRecipe, testing::ValuesIn(act_recipes()), recipe_name);
INSTANTIATE_TEST_SUITE_P(Activations, ReferenceRecipe, testing::ValuesIn(activation_recipes()),
                         recipe_name);

}  // namespace
}  // namespace perch::test
