// scratch.h - how a call divides its workspace. One function gives both the size and the places, so
// they cannot disagree.
#pragma once

#include "plan.h"

namespace humming_cpu {

// Offsets in bytes, each a multiple of 64; strides in floats.
struct Scratch {
  int64_t rows = 0;        // rows of x that are in work at once
  int64_t pairs = 0;       // rows * slots
  int64_t split_rows = 0;  // 0 where this call does not split K

  int64_t x = 0, x_stride = 0;    // f32 [rows, K of the first GEMM]
  int64_t xq = 0;                 // f32 [pairs, x_stride], in expert order: inputs that differ by
                                  // expert; none where x itself is quantized
  int64_t a = 0, a_stride = 0;    // f32 [pairs, I], in expert order
  int64_t ye = 0, ye_stride = 0;  // f32 [pairs, H], in slot order
  int64_t part = 0;               // f32 [pieces, pairs, columns] of the GEMM being split
  int64_t part_floats = 0;        // of one piece
  int64_t expert = 0;             // int32 [pairs]: local expert or -1
  int64_t order = 0;              // int32 [pairs]: pairs by expert
  int64_t weight = 0;             // f32 [pairs]
  int64_t begin = 0;              // int32 [E + 1]: an expert's part of order
  int64_t active = 0;             // int32 [E]: experts with rows
  int64_t bytes = 0;
};

Scratch make_scratch(const LayerPlan& plan, int64_t num_tokens);
// Never less for more tokens.
int64_t scratch_bytes(const LayerPlan& plan, int64_t num_tokens);

}  // namespace humming_cpu
