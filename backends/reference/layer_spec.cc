// The sizes of everything a layer holds, each said once.
#include "layer_spec.h"

#include "formats.h"

namespace reference {
namespace {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

perch_act_quant act_or_none(const perch_act_quant* act) {
  perch_act_quant copy{};
  copy.dtype = PERCH_TYPE_NONE;
  copy.mode = PERCH_ACT_NONE;
  copy.scale_dtype = PERCH_TYPE_NONE;
  if (act != nullptr) copy = *act;
  copy.next = nullptr;
  return copy;
}

MatrixSpec make_matrix(const char* name, int64_t n, int64_t k, const perch_quant& quant,
                       const perch_act_quant* act) {
  MatrixSpec matrix{};
  matrix.name = name;
  matrix.n = n;
  matrix.k = k;
  matrix.groups = group_count(quant, k);
  matrix.input_dtype = PERCH_TYPE_F32;
  matrix.quant = quant;
  matrix.quant.next = nullptr;
  matrix.act = act_or_none(act);
  return matrix;
}

}  // namespace

int64_t group_count(const perch_quant& quant, int64_t k) {
  if (quant.num_groups != 0) return quant.num_groups;
  return quant.group_k == 0 ? 1 : ceil_div(k, quant.group_k);
}

PlaneShape MatrixSpec::scale_shape() const {
  switch (quant.scale_kind) {
    case PERCH_SCALE_CHANNEL:
      return {n, 1, 1};
    case PERCH_SCALE_GROUP:
      return {n, 1, groups};
    case PERCH_SCALE_BLOCK:
      return {ceil_div(n, quant.group_n), quant.group_n, groups};
    default:  // TENSOR, and NONE as a stored 1
      return {1, n, 1};
  }
}

PlaneShape MatrixSpec::scale2_shape() const {
  if (quant.scale2_kind == PERCH_SCALE2_CHANNEL) return {n, 1, 1};
  return {1, n, 1};
}

PlaneShape MatrixSpec::zero_shape() const {
  const bool stored = quant.zero_kind == PERCH_ZERO_INT || quant.zero_kind == PERCH_ZERO_FLOAT;
  if (stored) return {n, 1, groups};
  return {1, n, 1};
}

PlaneShape MatrixSpec::offset_shape() const {
  if (quant.offset_kind == PERCH_OFFSET_GROUP) return {n, 1, groups};
  return {1, n, 1};
}

int64_t MatrixSpec::code_row_bytes() const { return ceil_div(k * type_bits(quant.weight), 8); }

bool MatrixSpec::has_input_scale() const {
  return act.mode == PERCH_ACT_STATIC || act.mode == PERCH_ACT_STATIC_GROUP;
}

uint64_t MatrixSpec::stored_bytes() const {
  int64_t floats = scale_shape().count() + scale2_shape().count() + zero_shape().count() +
                   offset_shape().count() + n;  // n: the bias, 0 where there is none
  if (quant.weight == PERCH_TYPE_LUT4) floats += 16;
  if (quant.flags & PERCH_QUANT_HAS_PRE_SCALE) floats += k;
  const int64_t group_indices = k * (gate_and_up && quant.k_order == PERCH_K_G_IDX ? 2 : 1);
  return static_cast<uint64_t>(n * code_row_bytes() + 1 + 4 * (floats + group_indices));
}

LayerSpec::LayerSpec(const perch_layer_config& config)
    : kind(config.kind),
      in_dtype(config.in_dtype),
      out_dtype(config.out_dtype),
      allow_nan((config.flags & PERCH_LAYER_ALLOW_NAN) != 0),
      num_experts(1),
      num_matrices(1),
      matrices{},
      moe{} {
  if (!is_moe()) {
    const perch_linear_config& linear = *config.linear;
    matrices[0] =
        make_matrix("w", linear.out_features, linear.in_features, *linear.weight, linear.act);
    matrices[0].input_dtype = in_dtype;
    return;
  }
  moe = *config.moe;
  num_experts = moe.num_experts;
  num_matrices = 2;
  const int64_t gate_up = perch_gate_up_width(moe.activation, moe.intermediate);
  matrices[0] = make_matrix("w13", gate_up, moe.hidden, *moe.w13, moe.act13);
  matrices[0].input_dtype = in_dtype;
  matrices[0].gate_and_up = perch_activation_is_gated(moe.activation) != 0;
  matrices[1] = make_matrix("w2", moe.hidden, moe.intermediate, *moe.w2, moe.act2);
  moe.w13 = moe.w2 = nullptr;
  moe.act13 = moe.act2 = nullptr;
  moe.next = nullptr;
}

uint64_t LayerSpec::packed_bytes() const {
  uint64_t bytes = 0;
  for (int i = 0; i < num_matrices; ++i) bytes += matrices[i].stored_bytes();
  if (num_experts == 0) return 0;  // a rank without experts
  const auto experts = static_cast<uint64_t>(num_experts);
  return bytes > kTooManyBytes / experts ? kTooManyBytes : bytes * experts;
}

}  // namespace reference
