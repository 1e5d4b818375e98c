// plan.cc - sizes and offsets. Nothing overflows here: check_support bounded every size.
#include "plan.h"

namespace humming_cpu {
namespace {

constexpr int64_t kLine = 64;

Weight weight_of(const perch_quant& quant) {
  if (quant.weight == PERCH_TYPE_BF16) return Weight::bf16;
  return quant.zero_kind == PERCH_ZERO_INT ? Weight::int4z : Weight::int4;
}

// Groups that are a whole part of the source's groups, so that each has one scale.
int64_t packed_group(const perch_quant& quant) {
  if (quant.weight == PERCH_TYPE_BF16) return kFoldKBf16;
  if (quant.group_k == 0) return kFoldK;
  int64_t group = quant.group_k;
  while (group > kFoldK && group % 8 == 0) group /= 2;
  return group;
}

MatrixPlan plan_matrix(const perch_quant& quant, int64_t n, int64_t k, bool gated) {
  MatrixPlan plan;
  plan.n = n;
  plan.k = k;
  plan.weight = weight_of(quant);
  plan.gated = gated;
  plan.has_bias = (quant.flags & PERCH_QUANT_HAS_BIAS) != 0;
  plan.scale = number_of(quant.scale_dtype);
  plan.scale_kind = quant.scale_kind;
  plan.source_group_k = quant.group_k;
  plan.source_group_n = quant.group_n;
  if (quant.group_k != 0) plan.source_groups = round_up(k, quant.group_k) / quant.group_k;
  plan.group_k = packed_group(quant);
  plan.k_end = round_up(k, 4);
  plan.groups = round_up(k, plan.group_k) / plan.group_k;
  // 32 columns of 16 or 4 bits per k.
  const int64_t k_bytes = plan.weight == Weight::bf16 ? 2 * kPanel : kPanel / 2;
  if (plan.weight != Weight::bf16) {
    plan.header_bytes = kPanel * number_bytes_of(plan.scale);
    if (plan.weight == Weight::int4z) plan.header_bytes += kPanel;
  }
  plan.group_bytes = plan.header_bytes + plan.group_k * k_bytes;
  const int64_t last_k = plan.k_end - (plan.groups - 1) * plan.group_k;
  plan.panel_bytes =
      round_up((plan.groups - 1) * plan.group_bytes + plan.header_bytes + last_k * k_bytes, kLine);
  const int64_t half = gated ? n / 2 : n;
  const int64_t width = gated ? kLanes : kPanel;
  plan.panels = round_up(half, width) / width;
  return plan;
}

// The parts of one expert, one after the other.
void place(LayerPlan* plan) {
  int64_t at = 0;
  for (int32_t i = 0; i < plan->num_matrices; ++i) {
    MatrixPlan& matrix = plan->matrix[i];
    matrix.weights_at = at;
    at += matrix.panels * matrix.panel_bytes;
    matrix.bias_at = at;
    if (matrix.has_bias) at += round_up(matrix.columns() * int64_t{sizeof(float)}, kLine);
  }
  plan->expert_bytes = at;
}

}  // namespace

int64_t MatrixPlan::source_row(int64_t panel, int32_t column) const {
  if (!gated) {
    const int64_t row = panel * kPanel + column;
    return row < n ? row : -1;
  }
  const int64_t intermediate = n / 2;
  const int64_t row = panel * kLanes + column % kLanes;
  if (row >= intermediate) return -1;
  return column < kLanes ? row : intermediate + row;
}

int64_t LayerPlan::rows(int64_t num_tokens) const {
  return form == PERCH_FORM_BATCHED ? experts * num_tokens : num_tokens;
}

LayerPlan make_plan(const perch_layer_config& config, Isa isa, Variant variant) {
  LayerPlan plan;
  plan.isa = isa;
  plan.variant = variant;
  plan.in = number_of(config.in_dtype);
  plan.out = number_of(config.out_dtype);
  plan.max_tokens = config.max_tokens;
  if (config.kind == PERCH_KIND_LINEAR) {
    const perch_linear_config& linear = *config.linear;
    plan.matrix[0] =
        plan_matrix(*linear.weight, linear.out_features, linear.in_features, /*gated=*/false);
    place(&plan);
    return plan;
  }
  const perch_moe_config& moe = *config.moe;
  const bool gated = perch_activation_is_gated(moe.activation) != 0;
  plan.moe = true;
  plan.num_matrices = 2;
  plan.experts = moe.num_experts;
  plan.experts_global = moe.num_experts_global;
  plan.topk = moe.topk;
  plan.hidden = moe.hidden;
  plan.intermediate = moe.intermediate;
  plan.form = moe.form;
  plan.weight_on_input = (moe.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) != 0;
  plan.activation = {moe.activation,
                     gated,
                     (moe.flags & PERCH_MOE_HAS_LIMIT) != 0,
                     (moe.flags & PERCH_MOE_HAS_ALPHA) != 0 ? moe.act_alpha : 0.0f,
                     (moe.flags & PERCH_MOE_HAS_BETA) != 0 ? moe.act_beta : 0.0f,
                     (moe.flags & PERCH_MOE_HAS_LIMIT) != 0 ? moe.act_limit : 0.0f};
  plan.matrix[0] = plan_matrix(*moe.w13, perch_gate_up_width(moe.activation, moe.intermediate),
                               moe.hidden, gated);
  plan.matrix[1] = plan_matrix(*moe.w2, moe.hidden, moe.intermediate, /*gated=*/false);
  place(&plan);
  return plan;
}

Number number_of(uint32_t type) {
  if (type == PERCH_TYPE_F32) return Number::f32;
  if (type == PERCH_TYPE_F16) return Number::f16;
  if (type == PERCH_TYPE_BF16) return Number::bf16;
  return Number::none;
}

const char* number_name(Number number) {
  switch (number) {
    case Number::f32:
      return "f32";
    case Number::f16:
      return "f16";
    case Number::bf16:
      return "bf16";
    default:
      return "none";
  }
}

int64_t number_bytes_of(Number number) { return number == Number::f32 ? 4 : 2; }

}  // namespace humming_cpu
