// Rows of x and y in the caller's dtype, and the rounding between it and f32.
#pragma once

#include <perch/layer.h>

#include <cstdint>

#include "formats.h"

namespace reference {

// The address of row i of a tensor [rows, width], or of row (i / rows, i % rows) of one
// [E, rows, width]. Rows may lie apart by any stride; elements of a row are adjacent.
uint8_t* row_address(const DLTensor& tensor, int64_t i);

// An integer of a 1-D or 2-D int32 or int64 tensor, counted over its elements in order.
int64_t integer_at(const DLTensor& tensor, int64_t i);
// Likewise of an f32 tensor.
float float_at(const DLTensor& tensor, int64_t i);

// f32 unchanged; f16 and bf16 to nearest even.
float round_to(const FormatSet& formats, uint32_t dtype, float value);

struct RowFormat {
  const FormatSet& formats;
  uint32_t dtype;  // F32 F16 BF16
  void load(const uint8_t* row, int64_t width, float* out) const;
  // The one rounding of an output.
  void store(const float* values, int64_t width, uint8_t* row) const;
};

}  // namespace reference
