// gemm.h - one GEMM of one expert, seen as tiles of up to 64 rows and 4 panels.
#pragma once

#include "kernels.h"
#include "plan.h"

namespace humming_cpu {

// Panels per task: a task reads one to some hundred KiB of weights, enough to hide its start.
inline constexpr int64_t kTaskPanels = kPanelsMax;

inline int64_t task_blocks(const MatrixPlan& matrix) {
  return (matrix.panels + kTaskPanels - 1) / kTaskPanels;
}

// Which part of K: piece `index` of `count` that are as even as whole groups allow.
struct Piece {
  int32_t index = 0;
  int32_t count = 1;
};

// The weights of one task: a block of panels and a piece of K.
struct GemmBlock {
  const MatrixPlan& matrix;
  GemmKernel kernel;
  GemmTile tile;
  int64_t panel;    // the first
  int64_t columns;  // of all its panels

  // `expert` is the expert's part of the arena.
  GemmBlock(const LayerPlan& plan, int32_t index, const uint8_t* expert, int64_t block,
            const Piece& piece)
      : matrix(plan.matrix[index]),
        kernel(find_kernel(matrix.weight, plan.isa)->gemm),
        tile{},
        panel(block * kTaskPanels) {
    const int64_t left = matrix.panels - panel;
    tile.num_panels = static_cast<int32_t>(left < kTaskPanels ? left : kTaskPanels);
    columns = int64_t{tile.num_panels} * kPanel;
    tile.panels = expert + matrix.weights_at + panel * matrix.panel_bytes;
    tile.panel_bytes = matrix.panel_bytes;
    tile.group_bytes = matrix.group_bytes;
    tile.group_k = matrix.group_k;
    tile.k_end = matrix.k_end;
    tile.group_begin = matrix.groups * piece.index / piece.count;
    tile.group_end = matrix.groups * (piece.index + 1) / piece.count;
    tile.scale = matrix.scale;
    tile.any = &matrix.any;
    if (matrix.has_order) {
      const int32_t* order = reinterpret_cast<const int32_t*>(expert + matrix.order_at);
      tile.group_of[0] = order;
      tile.group_of[1] = matrix.gated ? order + matrix.k_end : order;
    }
    tile.lut = reinterpret_cast<const float*>(expert + matrix.lut_at);
  }

  // Runs rows [begin, end), kRowsMax at a time: x(row) gives an input row, out(row) where its
  // columns go, done(row) is told when they are there.
  template <class X, class Out, class Done>
  void run(int64_t begin, int64_t end, const X& x, const Out& out, const Done& done) {
    for (int64_t row = begin; row < end; row += kRowsMax) {
      tile.num_rows = static_cast<int32_t>(end - row < kRowsMax ? end - row : kRowsMax);
      for (int32_t r = 0; r < tile.num_rows; ++r) {
        tile.x[r] = x(row + r);
        tile.out[r] = out(row + r);
      }
      kernel(tile);
      for (int32_t r = 0; r < tile.num_rows; ++r) done(row + r);
    }
  }
};

// in -> out (they may be one row): what the GEMM of this matrix and expert is given.
inline void quantize_input(const RowKernels& rows, const MatrixPlan& matrix, const uint8_t* expert,
                           const float* in, float* out) {
  const auto floats = [&](int64_t at) { return reinterpret_cast<const float*>(expert + at); };
  const InputQuant& input = matrix.input;
  rows.quantize(input, input.has_pre_scale ? floats(matrix.pre_scale_at) : nullptr,
                input.has_input_scale() ? *floats(matrix.input_scale_at) : 0.0f, in, matrix.k, out);
}

// The biases of a matrix in panel order, from a panel on; null without.
inline const float* bias_of(const MatrixPlan& matrix, const uint8_t* expert, int64_t panel) {
  if (!matrix.has_bias) return nullptr;
  return reinterpret_cast<const float*>(expert + matrix.bias_at) + panel * kPanel;
}

}  // namespace humming_cpu
