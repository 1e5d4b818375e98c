// LayerSpec: what this backend keeps of a perch_layer_config, in a form without pointers.
//
// Made only from a config that query_support said yes to, so nothing is checked here again.
#pragma once

#include <perch/layer.h>

#include <cstdint>

namespace reference {

inline constexpr uint64_t kTooManyBytes = uint64_t{1} << 62;

// How many values a scale, zero or offset has: one per `rows_per_value` rows and per group.
struct PlaneShape {
  int64_t rows;
  int64_t rows_per_value;
  int64_t columns;  // G, or 1 where the groups share the value
  int64_t count() const { return rows * columns; }
};

// One GEMM of the layer: y[n] = sum over k of x[k] * value(n,k), plus bias[n].
struct MatrixSpec {
  const char* name;  // "w13" "w2" "w"
  bool gate_and_up;  // rows 0..n/2 are the gate, the rest the up half
  int64_t n;
  int64_t k;
  int64_t groups;        // G
  uint32_t input_dtype;  // what x * pre_scale is rounded to: in_dtype, or F32 between two GEMMs
  perch_quant quant;
  perch_act_quant act;

  PlaneShape scale_shape() const;
  PlaneShape scale2_shape() const;
  PlaneShape zero_shape() const;
  PlaneShape offset_shape() const;
  int64_t code_row_bytes() const;
  bool has_input_scale() const;
  // Bytes that one expert's copy of this matrix takes.
  uint64_t stored_bytes() const;
};

struct LayerSpec {
  explicit LayerSpec(const perch_layer_config& config);

  bool is_moe() const { return kind == PERCH_KIND_MOE; }
  // kTooManyBytes also stands for all that is more.
  uint64_t packed_bytes() const;

  uint32_t kind;
  uint32_t in_dtype;
  uint32_t out_dtype;
  bool allow_nan;
  int64_t num_experts;  // 1 for a linear layer
  int num_matrices;     // 1 linear, 2 MoE
  MatrixSpec matrices[2];
  perch_moe_config moe;  // its pointers are cleared; all zero for a linear layer
};

// G of a quant over `k` columns.
int64_t group_count(const perch_quant& quant, int64_t k);

}  // namespace reference
