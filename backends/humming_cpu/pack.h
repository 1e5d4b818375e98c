// pack.h - canonical tensors of one expert into their part of the arena.
//
// A panel is 32 columns (output features) and all of K. Of int4 and bf16, in groups:
//   group   [scales 32][zeros 32, int4z only][codes], the last one short
//   codes   int4  a 64-byte line per 4 k: word c = four nibbles of column c, four of column 16 + c
//           bf16  two lines per 2 k: word c = k and k + 1 of column c; then of column 16 + c
// Of `any`:
//   [scale2 32, f32], where there is one
//   group   [scales 32][zeros 32, u8 or f32][offsets 32, f32], all groups of the source
//   unit    8 k of codes in planes (kernels_any.h); of 16 and 32 bits a line of 32 numbers per k
// Of a gated w13, column c is a gate row and column 16 + c the up row that it multiplies. Pads are
// zero codes with zero scales.
#pragma once

#include "plan.h"
#include "tensors.h"

namespace humming_cpu {

// Writes the whole of plan.expert_bytes at `out`. Cannot fail.
void pack_expert(const LayerPlan& plan, const ExpertTensors& tensors, uint8_t* out);

}  // namespace humming_cpu
