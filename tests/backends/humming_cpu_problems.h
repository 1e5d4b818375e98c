// Random problems for the tests of humming-cpu.
#pragma once

#include "humming_cpu_rig.h"

namespace perch::test::humming {

struct Problem {
  LayerConfig config;
  std::vector<TensorMap> experts;
};

inline perch_quant bf16_weight(bool bias) {
  perch_quant quant = make_quant(PERCH_TYPE_BF16);
  if (bias) quant.flags |= PERCH_QUANT_HAS_BIAS;
  return quant;
}

inline perch_quant int4_weight(uint32_t group, uint32_t scale_dtype, bool zero, bool bias) {
  perch_quant quant = make_quant(PERCH_TYPE_INT4);
  quant.scale_kind = group == 0 ? PERCH_SCALE_CHANNEL : PERCH_SCALE_GROUP;
  quant.group_k = group;
  quant.scale_dtype = scale_dtype;
  if (zero) quant.zero_kind = PERCH_ZERO_INT;
  if (bias) quant.flags |= PERCH_QUANT_HAS_BIAS;
  return quant;
}

struct MoeSize {
  uint32_t experts, topk;
  int64_t hidden, intermediate;
};

inline Problem moe_problem(MoeSize size, uint32_t activation, const perch_quant& w13,
                           const perch_quant& w2, uint32_t seed) {
  Problem problem{LayerConfig::make_moe("moe", w13, w2), {}};
  perch_moe_config& moe = problem.config.moe();
  moe.num_experts = moe.num_experts_global = size.experts;
  moe.topk = size.topk;
  moe.hidden = size.hidden;
  moe.intermediate = size.intermediate;
  moe.activation = activation;
  if (activation == PERCH_ACTIVATION_SWIGLUOAI) {
    moe.flags = PERCH_MOE_HAS_ALPHA | PERCH_MOE_HAS_BETA | PERCH_MOE_HAS_LIMIT;
    moe.act_alpha = 1.702f;
    moe.act_beta = 1.0f;
    moe.act_limit = 1.5f;
  }
  if (activation == PERCH_ACTIVATION_SWIGLUSTEP) {
    moe.flags = PERCH_MOE_HAS_LIMIT;
    moe.act_limit = 0.7f;
  }
  if (activation == PERCH_ACTIVATION_SITU) {
    moe.flags = PERCH_MOE_HAS_BETA | (seed % 2 == 0 ? PERCH_MOE_HAS_ALPHA : 0u);
    moe.act_alpha = seed % 2 == 0 ? 1.25f : 0.0f;
    moe.act_beta = 2.0f;
  }
  problem.config.layer().max_tokens = 4096;
  for (uint32_t e = 0; e < size.experts; ++e) {
    problem.experts.push_back(random_tensors(problem.config, seed * 100 + e));
  }
  return problem;
}

inline Problem linear_problem(int64_t n, int64_t k, const perch_quant& weight, uint32_t seed) {
  Problem problem{LayerConfig::make_linear("linear", n, k, weight), {}};
  problem.config.layer().max_tokens = 4096;
  problem.experts.push_back(random_tensors(problem.config, seed));
  return problem;
}

inline Input random_input(const LayerConfig& config, int64_t tokens, uint32_t seed) {
  std::mt19937 rng(seed);
  Input input;
  input.x = random_floats(config.abi().in_dtype, {tokens, config.columns(0)}, -1, 1, rng);
  if (!config.is_moe()) return input;
  const int64_t topk = config.moe().topk;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens * topk; ++i) {
    const int32_t id = static_cast<int32_t>(rng() % config.moe().num_experts);
    ids.push_back(rng() % 8 == 0 ? -1 : id);
  }
  input.ids = i32({tokens, topk}, ids);
  input.weights = random_floats(PERCH_TYPE_F32, {tokens, topk}, -1, 1, rng);
  return input;
}

}  // namespace perch::test::humming
