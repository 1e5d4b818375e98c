// pack.h - canonical tensors of one expert into their part of the arena.
//
// A panel is 32 columns (output features) and all of K, in groups:
//   group   [scales 32][zeros 32, int4z only][codes], the last one short
//   codes   int4  a 64-byte line per 4 k: word c = four nibbles of column c, four of column 16 + c
//           bf16  two lines per 2 k: word c = k and k + 1 of column c; then of column 16 + c
// Of a gated w13, column c is a gate row and column 16 + c the up row that it multiplies. Pads are
// zero codes with zero scales.
#pragma once

#include "perch/backend.h"
#include "plan.h"

namespace humming_cpu {

// The tensors of one expert, found by name and checked.
struct ExpertTensors {
  struct Matrix {
    const uint8_t* codes = nullptr;
    const uint8_t* scale = nullptr;
    const uint8_t* zero = nullptr;
    const float* bias = nullptr;
  };
  Matrix matrix[2];
};

// INVALID_ARGUMENT with the tensor's name for one that is missing, not known, given twice or of
// another size, and for a zero point that is no 4-bit code. Nothing is written but `found`.
perch_status find_tensors(const LayerPlan& plan, const perch_named_tensor* tensors,
                          uint32_t num_tensors, ExpertTensors* found, perch_error* error);

// Writes the whole of plan.expert_bytes at `out`. Cannot fail.
void pack_expert(const LayerPlan& plan, const ExpertTensors& tensors, uint8_t* out);

}  // namespace humming_cpu
