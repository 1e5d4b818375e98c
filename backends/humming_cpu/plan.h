// plan.h - a layer as numbers: what is kept of a config, and where everything lies in the arena.
//
// Made once by make_plan from a config that check_support accepted; packing, description and
// execution read it and never the config. No pointer in it.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "perch/layer.h"

namespace humming_cpu {

// The sum over K folds into its total every kFoldK values at most: a running f32 sum over a long K
// would carry an error that grows with K.
inline constexpr int64_t kFoldK = 128;
inline constexpr int64_t kFoldKBf16 = 64;
// A K split of the `split` variant: the fewer rows, the more pieces, since threads want tasks.
// Chosen from the rows of the call alone, so that the result does not depend on the threads.
inline constexpr int64_t kSplitRowsMax = 4;
constexpr int64_t pieces_wanted(int64_t num_rows) { return num_rows == 1 ? 4 : 2; }
// Groups of a matrix: keeps every product below in 63 bits.
inline constexpr uint32_t kGroupsMax = uint32_t{1} << 24;
// Rows that go through the phases of a call together: bounds the workspace.
inline constexpr int64_t kChunkRows = 1024;

enum class Variant : uint32_t { ordered = 0, split = 1 };
inline constexpr uint32_t kNumVariants = 2;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// One weight matrix of one expert. pack.h draws a panel.
struct MatrixPlan {
  int64_t n = 0, k = 0;
  Weight weight = Weight::bf16;
  uint32_t type = PERCH_TYPE_BF16;  // of the codes
  int32_t bits = 16;
  bool gated = false;  // a panel is then 16 gate columns and the 16 up columns that belong to them
  bool has_bias = false;
  // The source's scales and zeros.
  Number scale = Number::none;
  uint32_t scale_kind = PERCH_SCALE_NONE, scale_type = PERCH_TYPE_NONE;
  int64_t source_group_k = 0, source_group_n = 0;
  int64_t source_groups = 1;
  // What `any` adds: types, zero points, offsets (kernels.h) and what an expert has once.
  AnyFormat any{};
  uint32_t zero_kind = PERCH_ZERO_NONE, scale2_kind = PERCH_SCALE2_NONE;
  bool has_order = false;  // g_idx
  InputQuant input{};      // PERCH_ACT_NONE and no pre_scale: x goes in as it is
  // Groups as packed: a divisor of the source's, at most kFoldK long where it can be halved so far.
  int64_t group_k = 0, groups = 0, k_end = 0;
  int64_t header_bytes = 0, group_bytes = 0, panel_bytes = 0;
  int64_t panels = 0;
  // Within the expert's part of the arena.
  int64_t weights_at = 0, bias_at = 0;
  int64_t order_at = 0;        // int32 [1 or 2][k_end]
  int64_t lut_at = 0;          // f32 [16]
  int64_t pre_scale_at = 0;    // f32 [k]
  int64_t input_scale_at = 0;  // f32 [1]

  int64_t columns() const { return panels * kPanel; }
  // The source row of a panel's column, or -1 for a pad column.
  int64_t source_row(int64_t panel, int32_t column) const;
  // Of a call of `num_rows` rows, at most kSplitRowsMax; each has at least one group.
  int32_t pieces(int64_t num_rows) const {
    const int64_t wanted = pieces_wanted(num_rows);
    return static_cast<int32_t>(groups < wanted ? groups : wanted);
  }
};

struct LayerPlan {
  bool moe = false;
  Isa isa = Isa::kPortable;
  Variant variant = Variant::ordered;
  Number in = Number::bf16, out = Number::bf16;
  int64_t max_tokens = 0;
  int32_t num_matrices = 1;
  MatrixPlan matrix[2];  // w13 and w2, or w
  int64_t experts = 1;   // 1 for a linear layer
  int64_t expert_bytes = 0;
  // MoE only.
  int64_t experts_global = 0, topk = 1, hidden = 0, intermediate = 0;
  uint32_t form = PERCH_FORM_STANDARD;
  bool weight_on_input = false;
  bool allow_nan = false;
  Activation activation{};

  const MatrixPlan& w13() const { return matrix[0]; }
  const MatrixPlan& w2() const { return matrix[1]; }
  // Rows of x and y that a call of `num_tokens` has, and slots of each.
  int64_t rows(int64_t num_tokens) const;
  int64_t slots() const { return form == PERCH_FORM_STANDARD ? topk : 1; }
  bool splits(int64_t num_rows) const {
    return variant == Variant::split && num_rows <= kSplitRowsMax;
  }
  int64_t arena_bytes() const { return experts * expert_bytes; }
};

// `config` has passed check_support.
LayerPlan make_plan(const perch_layer_config& config, Isa isa, Variant variant);

// 0 (Number::none) for what is not F32, F16 or BF16.
Number number_of(uint32_t type);
const char* number_name(Number number);
// Of a code of `type`; 0 for what is no weight type.
int32_t type_bits(uint32_t type);
bool type_is_integer(uint32_t type);
// Of a scale; 0 for PERCH_TYPE_NONE.
int64_t scale_bytes_of(uint32_t type);

int64_t number_bytes_of(Number number);

}  // namespace humming_cpu
