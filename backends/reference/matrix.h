// Matrix: one expert's weights, kept as they came, and what each of them means.
//
//   value(n,k) = (code(n,k) - zero(n,g)) * scale(n,g) * scale2(n) + offset(n,g)
//
// in f32, each operation rounded. g is the group of column k. A field that the layer does not have
// is stored as the one number that changes nothing, so there is one formula and no special case.
#pragma once

#include <cstdint>

#include "formats.h"
#include "host_memory.h"
#include "layer_spec.h"
#include "status.h"
#include "tensors.h"

namespace reference {

// One f32 per block of rows and per group.
struct Plane {
  explicit Plane(const perch_host_api* host) : values(HostAllocator<float>(host)) {}
  // The values of row n: those of all groups, or the one for all of them.
  const float* row(int64_t n) const {
    return values.data() + n / shape.rows_per_value * shape.columns;
  }
  float at(const float* row, int32_t group) const { return row[shape.columns == 1 ? 0 : group]; }

  PlaneShape shape{};
  Buffer<float> values;
};

class Matrix {
 public:
  explicit Matrix(const perch_host_api* host);

  // Takes the tensors "<name>", "<name>.scale" ... from `tensors`. On refusal this matrix is not to
  // be used.
  Status load(const MatrixSpec& spec, const FormatSet& formats, bool allow_nan, TensorSet* tensors);

  // The values of row n, `spec.k` of them. `spec` and `formats` are those it was loaded with.
  void decode_row(const MatrixSpec& spec, const FormatSet& formats, int64_t n, float* row) const;

  float bias(int64_t n) const { return bias_[static_cast<size_t>(n)]; }
  const float* pre_scale() const { return pre_scale_.data(); }
  float input_scale() const { return input_scale_; }

 private:
  Status load_codes(const MatrixSpec& spec, TensorSet* tensors);
  Status load_planes(const MatrixSpec& spec, const FormatSet& formats, TensorSet* tensors);
  Status load_group_indices(const MatrixSpec& spec, TensorSet* tensors);
  Status load_input_scale(const MatrixSpec& spec, TensorSet* tensors);
  Status refuse_nan(const MatrixSpec& spec, const FormatSet& formats) const;
  void decode_codes(const MatrixSpec& spec, const FormatSet& formats, int64_t n, float* row) const;

  Buffer<uint8_t> codes_;
  Buffer<int32_t> group_of_;  // [K], or [2,K]: gate rows, up rows
  Plane scale_;
  Plane scale2_;
  Plane zero_;
  Plane offset_;
  Buffer<float> lut_;
  Buffer<float> bias_;
  Buffer<float> pre_scale_;
  float input_scale_ = 0;
};

}  // namespace reference
