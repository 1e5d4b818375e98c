#include "agree/quantize_input.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric/float_formats.h"

namespace perch {
namespace {

// The largest magnitude that a code of the type stands for.
float code_limit(uint32_t dtype) {
  if (dtype == PERCH_TYPE_INT8) return 127.0f;
  return dtype == PERCH_TYPE_E4M3FN ? 448.0f : 6.0f;
}

// The code nearest to `scaled`, ties to even, saturating, as a number.
float code_value(uint32_t dtype, float scaled) {
  if (dtype == PERCH_TYPE_INT8) return std::clamp(std::nearbyint(scaled), -127.0f, 127.0f);
  if (dtype == PERCH_TYPE_E4M3FN) return numeric::f32_from_e4m3(numeric::e4m3_from_f32(scaled));
  return numeric::f32_from_e2m1(numeric::e2m1_from_f32(scaled));
}

// From a code of this magnitude to its neighbour.
double code_spacing(uint32_t dtype, double magnitude) {
  if (dtype == PERCH_TYPE_INT8) return 1;
  const int mantissa_bits = dtype == PERCH_TYPE_E4M3FN ? 3 : 1;
  const int smallest_exponent = dtype == PERCH_TYPE_E4M3FN ? -6 : 0;
  const int exponent = magnitude == 0 ? smallest_exponent : std::ilogb(magnitude);
  return std::ldexp(1.0, std::max(exponent, smallest_exponent) - mantissa_bits);
}

// The smallest 2^e with limit * 2^e >= absmax, within e8m0's range.
float power_scale(float absmax, float limit) {
  int exponent = std::max(std::ilogb(absmax) - std::ilogb(limit) - 1, -127);
  while (std::ldexp(double{limit}, exponent) < double{absmax}) ++exponent;
  return std::ldexp(1.0f, exponent);
}

float group_scale(const perch_act_quant& act, float input_scale, float absmax) {
  if (act.mode == PERCH_ACT_STATIC) return input_scale;
  if (act.mode == PERCH_ACT_STATIC_GROUP) {
    const float coarse = absmax / (6.0f * input_scale);
    return numeric::f32_from_e4m3(numeric::e4m3_from_f32(coarse)) * input_scale;
  }
  if (absmax == 0) return 1.0f;
  const float limit = code_limit(act.dtype);
  if (act.scale_dtype == PERCH_TYPE_E8M0) return power_scale(absmax, limit);
  // So small that 1/s is infinite: all below 2^-126, which arithmetic may treat as 0.
  const float scale = absmax / limit;
  return std::isfinite(1.0f / scale) ? scale : 1.0f;
}

double quantize_group(const perch_act_quant& act, float input_scale, std::span<const float> x,
                      double* out) {
  float absmax = 0;
  for (const float value : x) {
    if (!std::isfinite(value)) {
      std::fill_n(out, x.size(), std::numeric_limits<double>::quiet_NaN());
      return 0;
    }
    absmax = std::max(absmax, std::fabs(value));
  }
  const float scale = group_scale(act, input_scale, absmax);
  if (scale == 0) {
    std::fill_n(out, x.size(), 0.0);
    return 0;
  }
  const float reciprocal = 1.0f / scale;
  double largest = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    const double code = double{code_value(act.dtype, x[k] * reciprocal)};
    out[k] = code * double{scale};
    largest = std::max(largest, std::fabs(code));
  }
  return code_spacing(act.dtype, largest) * double{scale};
}

}  // namespace

double quantize_input(const perch_act_quant& act, float input_scale, std::span<const float> x,
                      double* out) {
  const bool grouped = act.mode == PERCH_ACT_GROUP || act.mode == PERCH_ACT_STATIC_GROUP;
  const size_t group = grouped ? act.group : std::max<size_t>(x.size(), 1);
  double step = 0;
  for (size_t begin = 0; begin < x.size(); begin += group) {
    const size_t count = std::min(group, x.size() - begin);  // the last may be short
    step = std::max(step, quantize_group(act, input_scale, x.subspan(begin, count), out + begin));
  }
  return step;
}

}  // namespace perch
