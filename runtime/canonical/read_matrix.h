// Reading one projection into its place in the canonical tensors.
//
// The one place where scales, zero points and biases are sliced, repeated and widened, for all
// formats: each cell of the canonical array takes the stored cell that its first element has. Exact
// by construction, as bytes are copied and never computed.
#pragma once

#include "base/status.h"
#include "canonical/format.h"

namespace perch {

// Where to write: each pointer is at the first of the slice's rows in its canonical tensor, or null
// where the layer's algebra has no such tensor. All bytes are 0 before.
struct MatrixTarget {
  std::byte* codes = nullptr;
  int64_t code_row_bytes = 0;
  std::byte* scale = nullptr;
  int64_t scale_row_bytes = 0;
  float* scale2 = nullptr;
  uint8_t* zero = nullptr;  // [rows, zero_columns]
  int64_t zero_columns = 0;
  int32_t* g_idx = nullptr;
  float* bias = nullptr;
  float* pre_scale = nullptr;
  float* input_scale = nullptr;
};

// `quant` is the layer's algebra (layer_algebra.h), which holds the plan's. *bytes_read grows by
// the stored bytes that were read.
Status read_matrix(const Projection& projection, const MatrixPlan& plan, const perch_quant& quant,
                   const MatrixSlice& slice, const MatrixTarget& target, int64_t* bytes_read);

}  // namespace perch
