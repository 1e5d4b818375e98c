// plan.cc - sizes and offsets. Nothing overflows here: check_support bounded every size.
#include "plan.h"

namespace humming_cpu {
namespace {

constexpr int64_t kLine = 64;

// int4 with float scales and bf16 without have kernels of their own; `any` takes the rest.
Weight weight_of(const perch_quant& quant) {
  const bool plain = quant.scale2_kind == PERCH_SCALE2_NONE &&
                     quant.offset_kind == PERCH_OFFSET_NONE && quant.k_order == PERCH_K_NATURAL;
  if (!plain) return Weight::any;
  if (quant.weight == PERCH_TYPE_BF16 && quant.scale_kind == PERCH_SCALE_NONE) return Weight::bf16;
  if (quant.weight != PERCH_TYPE_INT4 || number_of(quant.scale_dtype) == Number::none ||
      quant.group_k % 4 != 0) {
    return Weight::any;
  }
  if (quant.zero_kind == PERCH_ZERO_MIDPOINT) return Weight::int4;
  return quant.zero_kind == PERCH_ZERO_INT ? Weight::int4z : Weight::any;
}

// Groups that are a whole part of the source's groups, so that each has one scale.
int64_t packed_group(Weight weight, const perch_quant& quant) {
  if (weight == Weight::bf16) return kFoldKBf16;
  if (quant.group_k == 0) return kFoldK;
  int64_t group = quant.group_k;
  while (group > kFoldK && group % 8 == 0) group /= 2;
  return group;
}

// Panels of int4 and bf16: each group has its scales before its codes.
void place_groups(const perch_quant& quant, MatrixPlan* plan) {
  plan->group_k = packed_group(plan->weight, quant);
  plan->k_end = round_up(plan->k, 4);
  plan->groups = round_up(plan->k, plan->group_k) / plan->group_k;
  // 32 columns of 16 or 4 bits per k.
  const int64_t k_bytes = plan->weight == Weight::bf16 ? 2 * kPanel : kPanel / 2;
  if (plan->weight != Weight::bf16) {
    plan->header_bytes = kPanel * number_bytes_of(plan->scale);
    if (plan->weight == Weight::int4z) plan->header_bytes += kPanel;
  }
  plan->group_bytes = plan->header_bytes + plan->group_k * k_bytes;
  const int64_t last_k = plan->k_end - (plan->groups - 1) * plan->group_k;
  plan->panel_bytes = round_up(
      (plan->groups - 1) * plan->group_bytes + plan->header_bytes + last_k * k_bytes, kLine);
}

// Panels of `any`: scale2, the headers of all groups of the source, then all codes.
void place_any(const perch_quant& quant, MatrixPlan* plan) {
  AnyFormat& any = plan->any;
  any.type = quant.weight;
  any.scale_type = plan->scale_type;
  any.has_zero_int = quant.zero_kind == PERCH_ZERO_INT;
  any.has_zero_float = quant.zero_kind == PERCH_ZERO_FLOAT;
  any.has_offset = quant.offset_kind == PERCH_OFFSET_GROUP;
  any.has_scale2 = quant.scale2_kind != PERCH_SCALE2_NONE;
  if (quant.zero_kind == PERCH_ZERO_MIDPOINT) {
    any.zero = 0.5f * static_cast<float>(1u << plan->bits);
  }
  any.source_group_k = quant.group_k;
  any.headers_at = any.has_scale2 ? kPanel * int64_t{sizeof(float)} : 0;
  any.header_bytes = kPanel * scale_bytes_of(any.scale_type);
  if (any.has_zero_int) any.header_bytes += kPanel;
  if (any.has_zero_float) any.header_bytes += kPanel * int64_t{sizeof(float)};
  if (any.has_offset) any.header_bytes += kPanel * int64_t{sizeof(float)};
  any.codes_at = round_up(any.headers_at + plan->source_groups * any.header_bytes, kLine);
  any.unit_bytes = int64_t{kPanel} * plan->bits * kUnitK / 8;
  plan->has_order = quant.k_order == PERCH_K_G_IDX;
  plan->group_k = kAnyBlockK;
  plan->k_end = round_up(plan->k, kUnitK);
  plan->groups = round_up(plan->k, kAnyBlockK) / kAnyBlockK;
  plan->panel_bytes = round_up(any.codes_at + plan->k_end / kUnitK * any.unit_bytes, kLine);
}

InputQuant input_of(const perch_act_quant* act, const perch_quant& quant, Number round) {
  InputQuant input{};
  input.mode = PERCH_ACT_NONE;
  input.round = round;
  input.has_pre_scale = (quant.flags & PERCH_QUANT_HAS_PRE_SCALE) != 0;
  if (act == nullptr || act->mode == PERCH_ACT_NONE) return input;
  input.type = act->dtype;
  input.mode = act->mode;
  input.group = act->group;
  input.e8m0 = act->scale_dtype == PERCH_TYPE_E8M0;
  return input;
}

MatrixPlan plan_matrix(const perch_quant& quant, int64_t n, int64_t k, bool gated) {
  MatrixPlan plan;
  plan.n = n;
  plan.k = k;
  plan.weight = weight_of(quant);
  plan.type = quant.weight;
  plan.bits = type_bits(quant.weight);
  plan.gated = gated;
  plan.has_bias = (quant.flags & PERCH_QUANT_HAS_BIAS) != 0;
  plan.scale = number_of(quant.scale_dtype);
  plan.scale_kind = quant.scale_kind;
  plan.scale_type = quant.scale_kind == PERCH_SCALE_NONE ? PERCH_TYPE_NONE : quant.scale_dtype;
  plan.scale2_kind = quant.scale2_kind;
  plan.zero_kind = quant.zero_kind;
  plan.source_group_k = quant.group_k;
  plan.source_group_n = quant.group_n;
  if (quant.group_k != 0) plan.source_groups = round_up(k, quant.group_k) / quant.group_k;
  if (quant.num_groups != 0) plan.source_groups = quant.num_groups;
  if (plan.weight == Weight::any) {
    place_any(quant, &plan);
  } else {
    place_groups(quant, &plan);
  }
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
    constexpr int64_t kWord = sizeof(float);
    if (matrix.has_bias) at += round_up(matrix.columns() * kWord, kLine);
    matrix.order_at = at;
    if (matrix.has_order) at += round_up((matrix.gated ? 2 : 1) * matrix.k_end * kWord, kLine);
    matrix.lut_at = at;
    if (matrix.any.type == PERCH_TYPE_LUT4) at += kLine;
    matrix.pre_scale_at = at;
    if (matrix.input.has_pre_scale) at += round_up(matrix.k * kWord, kLine);
    matrix.input_scale_at = at;
    if (matrix.input.has_input_scale()) at += kLine;
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
  plan.allow_nan = (config.flags & PERCH_LAYER_ALLOW_NAN) != 0;
  if (config.kind == PERCH_KIND_LINEAR) {
    const perch_linear_config& linear = *config.linear;
    plan.matrix[0] =
        plan_matrix(*linear.weight, linear.out_features, linear.in_features, /*gated=*/false);
    plan.matrix[0].input = input_of(linear.act, *linear.weight, plan.in);
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
  plan.matrix[0].input = input_of(moe.act13, *moe.w13, plan.in);
  plan.matrix[1].input = input_of(moe.act2, *moe.w2, Number::f32);
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

int32_t type_bits(uint32_t type) {
  if (type_is_integer(type)) return static_cast<int32_t>(type - PERCH_TYPE_INT1) + 1;
  switch (type) {
    case PERCH_TYPE_F32:
      return 32;
    case PERCH_TYPE_F16:
    case PERCH_TYPE_BF16:
      return 16;
    case PERCH_TYPE_E4M3FN:
    case PERCH_TYPE_E5M2:
      return 8;
    case PERCH_TYPE_E3M2:
    case PERCH_TYPE_E2M3:
      return 6;
    case PERCH_TYPE_E2M1:
    case PERCH_TYPE_LUT4:
      return 4;
    default:
      return 0;
  }
}

bool type_is_integer(uint32_t type) { return type >= PERCH_TYPE_INT1 && type <= PERCH_TYPE_INT8; }

int64_t scale_bytes_of(uint32_t type) {
  if (type == PERCH_TYPE_NONE) return 0;
  const Number number = number_of(type);
  return number == Number::none ? 1 : number_bytes_of(number);
}

int64_t number_bytes_of(Number number) { return number == Number::f32 ? 4 : 2; }

}  // namespace humming_cpu
