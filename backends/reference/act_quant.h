// Quantization of one input row, as the table of contract.md §2 says: scale s, reciprocal r = 1/s
// rounded once in f32, codes to nearest even and saturating.
#pragma once

#include <perch/layer.h>

#include <cstdint>

#include "formats.h"

namespace reference {

class InputQuantizer {
 public:
  // input_scale is read only in the modes STATIC and STATIC_GROUP.
  InputQuantizer(const FormatSet& formats, const perch_act_quant& act, float input_scale)
      : formats_(formats), act_(act), input_scale_(input_scale) {}

  // out[k] = what the code of x[k] stands for, code * s, which double holds exactly. A group (or
  // row) with NaN or infinity becomes NaN as a whole. Without quantization out is x.
  void quantize(const float* x, int64_t k, double* out) const;

 private:
  float dynamic_scale(float absmax) const;
  float group_scale(const float* x, int64_t count) const;
  float code_value(float scaled) const;
  void quantize_group(const float* x, int64_t count, double* out) const;

  const FormatSet& formats_;
  const perch_act_quant& act_;
  float input_scale_;
};

}  // namespace reference
