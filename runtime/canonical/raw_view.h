// RawView: a strided window on one raw tensor, read as a matrix.
//
// How a fused, transposed or interleaved tensor becomes "the gate rows of expert 3" without being
// copied. Strides and offset are in elements of the tensor's dtype.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/raw_tensor.h"

namespace perch {

struct RawView {
  const RawTensor* tensor = nullptr;
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 1;
  int64_t row_stride = 0;
  int64_t column_stride = 0;

  // Address of element (row, column); may be unaligned. Types of 8 bits and more only.
  const std::byte* at(int64_t row, int64_t column) const {
    const int64_t element = offset + row * row_stride + column * column_stride;
    return tensor->data + element * (raw_dtype_bits(tensor->dtype) / 8);
  }
};

// The whole tensor: [] and [N] as a column, [N,K] as it stands; of a higher rank, all but the first
// dimension as columns.
inline RawView whole_view(const RawTensor& tensor) {
  RawView view;
  view.tensor = &tensor;
  view.rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  for (size_t i = 1; i < tensor.shape.size(); ++i) view.columns *= tensor.shape[i];
  view.row_stride = view.columns;
  view.column_stride = 1;
  return view;
}

// One weight matrix of one expert, or of a linear layer: its parts by suffix ("weight", "bias",
// "weight_packed", "weight_scale").
struct Projection {
  std::string module;  // "model.layers.0.mlp.experts.3.gate_proj"
  // Rows of a fused matrix that lie before this half. A grid of blocks over the whole fused matrix
  // is then seen whole, as a row of blocks may belong to both halves.
  int64_t fused_rows_before = 0;
  std::vector<std::pair<std::string, RawView>> parts;

  const RawView* find(std::string_view suffix) const {
    for (const auto& [name, view] : parts) {
      if (name == suffix) return &view;
    }
    return nullptr;
  }
};

// How a message about a module begins: `<path>: module "<name>"`, with every file that has a part
// of it; without a path for a host's own tensors.
std::string print_module(const Projection& projection);

// "[4, 96, 48]"
std::string print_shape(const std::vector<int64_t>& shape);

}  // namespace perch
