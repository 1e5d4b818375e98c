// One group at a time; a row is a group where the mode is TOKEN or STATIC.
#include "act_quant.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace reference {
namespace {

// The largest magnitude that a code of the type stands for.
float code_limit(uint32_t dtype) {
  if (dtype == PERCH_TYPE_INT8) return 127;
  if (dtype == PERCH_TYPE_E4M3FN) return 448;
  return 6;  // e2m1
}

float largest_magnitude(const float* x, int64_t count) {
  float absmax = 0;
  for (int64_t i = 0; i < count; ++i) absmax = std::max(absmax, std::fabs(x[i]));
  return absmax;
}

bool all_finite(const float* x, int64_t count) {
  return std::all_of(x, x + count, [](float value) { return std::isfinite(value); });
}

// The smallest 2^e that is not less than `bound`, within e8m0's range.
float power_of_two_above(double bound) {
  int exponent = 0;
  const double mantissa = std::frexp(bound, &exponent);  // bound = mantissa * 2^exponent
  if (mantissa == 0.5) --exponent;                       // bound is a power of two itself
  return std::ldexp(1.0f, std::max(exponent, -127));
}

}  // namespace

void InputQuantizer::quantize(const float* x, int64_t k, double* out) const {
  if (act_.mode == PERCH_ACT_NONE) {
    for (int64_t i = 0; i < k; ++i) out[i] = x[i];
    return;
  }
  const bool grouped = act_.mode == PERCH_ACT_GROUP || act_.mode == PERCH_ACT_STATIC_GROUP;
  const int64_t group = grouped ? act_.group : k;
  for (int64_t begin = 0; begin < k; begin += group) {
    quantize_group(x + begin, std::min(group, k - begin), out + begin);  // the last may be short
  }
}

void InputQuantizer::quantize_group(const float* x, int64_t count, double* out) const {
  if (!all_finite(x, count)) {
    std::fill(out, out + count, std::numeric_limits<double>::quiet_NaN());
    return;
  }
  const float scale = group_scale(x, count);
  if (scale == 0) {
    std::fill(out, out + count, 0.0);
    return;
  }
  const float reciprocal = 1.0f / scale;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<double>(code_value(x[i] * reciprocal)) * static_cast<double>(scale);
  }
}

float InputQuantizer::group_scale(const float* x, int64_t count) const {
  if (act_.mode == PERCH_ACT_STATIC) return input_scale_;
  const float absmax = largest_magnitude(x, count);
  if (act_.mode != PERCH_ACT_STATIC_GROUP) return dynamic_scale(absmax);
  // nvfp4: s = g * t, and g is itself an e4m3 number.
  const float g = formats_[PERCH_TYPE_E4M3FN].round(absmax / (6.0f * input_scale_));
  return g * input_scale_;
}

// absmax 0 leads to scale 1. So does an absmax so small that 1/scale would be infinite: all codes
// are then 0, which is the allowed treatment of numbers below 2^-126.
float InputQuantizer::dynamic_scale(float absmax) const {
  if (absmax == 0) return 1;
  const float limit = code_limit(act_.dtype);
  if (act_.scale_dtype == PERCH_TYPE_E8M0) {
    return power_of_two_above(static_cast<double>(absmax) / static_cast<double>(limit));
  }
  const float scale = absmax / limit;
  return std::isfinite(1.0f / scale) ? scale : 1.0f;
}

float InputQuantizer::code_value(float scaled) const {
  if (act_.dtype == PERCH_TYPE_INT8) return std::clamp(std::nearbyint(scaled), -127.0f, 127.0f);
  return formats_[act_.dtype].round(scaled);
}

}  // namespace reference
