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

// What x * r is as a code times its scale. Scale 0 has only codes 0.
double quantized_value(uint32_t dtype, float x, float scale) {
  if (scale == 0) return 0;
  return double{code_value(dtype, x * (1.0f / scale))} * double{scale};
}

bool all_finite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

float largest_of(std::span<const float> x) {
  float absmax = 0;
  for (const float value : x) absmax = std::max(absmax, std::fabs(value));
  return absmax;
}

// Calls visit(begin, count) for each run of numbers with a scale of their own.
template <typename Visit>
void for_each_group(const perch_act_quant& act, size_t size, Visit visit) {
  const bool grouped = act.mode == PERCH_ACT_GROUP || act.mode == PERCH_ACT_STATIC_GROUP;
  const size_t group = grouped ? act.group : std::max<size_t>(size, 1);
  for (size_t begin = 0; begin < size; begin += group) {
    visit(begin, std::min(group, size - begin));  // the last may be short
  }
}

// One group with the scales that it may have.
class UncertainGroup {
 public:
  UncertainGroup(const perch_act_quant& act, float input_scale, std::span<const float> x,
                 std::span<const double> errors)
      : dtype_(act.dtype) {
    largest_ = largest_of(x);
    for (size_t k = 0; k < x.size(); ++k) {
      lowest_largest_ = std::max(lowest_largest_, std::fabs(double{x[k]}) - errors[k]);
      highest_largest_ = std::max(highest_largest_, std::fabs(double{x[k]}) + errors[k]);
    }
    scale_ = group_scale(act, input_scale, largest_);
    low_ = group_scale(act, input_scale, static_cast<float>(lowest_largest_));
    high_ = group_scale(act, input_scale, static_cast<float>(highest_largest_));
    dynamic_ = act.mode == PERCH_ACT_TOKEN || act.mode == PERCH_ACT_GROUP;
    continuous_ = dynamic_ && act.scale_dtype == PERCH_TYPE_F32;
  }

  double step() const {
    if (scale_ == 0) return 0;
    const double code = std::fabs(double{code_value(dtype_, largest_ * (1.0f / scale_))});
    return code_spacing(dtype_, code) * double{scale_};
  }

  QuantizedError error_of(float x, double error) const {
    const double value = quantized_value(dtype_, x, scale_);
    // Where all may be 0, a scale may be anything that the group's errors lead to.
    if (dynamic_ && lowest_largest_ <= 0) {
      return {0, std::fabs(value) + 2 * (std::fabs(double{x}) + error)};
    }
    QuantizedError result;
    double relative = std::ldexp(4.0, -24);  // s, r and x * r are rounded
    if (continuous_) {
      const double spread = (highest_largest_ - lowest_largest_) / double{largest_};
      relative += spread;
      result.scale = std::fabs(value) * spread;
    } else {
      for (const float scale : {low_, high_}) {
        const double other = scale == scale_ ? value : quantized_value(dtype_, x, scale);
        result.scale = std::max(result.scale, std::fabs(other - value));
      }
    }
    if (scale_ == 0) return result;
    const double scaled = double{x} / double{scale_};
    const double reach = error / double{scale_} + std::fabs(scaled) * relative;
    const double above = double{code_value(dtype_, static_cast<float>(scaled + reach))};
    const double below = double{code_value(dtype_, static_cast<float>(scaled - reach))};
    result.tie = (above - below) * double{scale_};
    return result;
  }

 private:
  uint32_t dtype_;
  float largest_ = 0;
  double lowest_largest_ = 0, highest_largest_ = 0;
  float scale_ = 0, low_ = 0, high_ = 0;  // of these three
  bool dynamic_ = false;
  bool continuous_ = false;  // the scale moves with the largest, not in steps
};

}  // namespace

void quantize_input(const perch_act_quant& act, float input_scale, std::span<const float> x,
                    double* out) {
  for_each_group(act, x.size(), [&](size_t begin, size_t count) {
    const std::span<const float> group = x.subspan(begin, count);
    if (!all_finite(group)) {
      std::fill_n(out + begin, count, std::numeric_limits<double>::quiet_NaN());
      return;
    }
    const float scale = group_scale(act, input_scale, largest_of(group));
    for (size_t k = 0; k < count; ++k) {
      out[begin + k] = quantized_value(act.dtype, group[k], scale);
    }
  });
}

void quantized_errors(const perch_act_quant& act, float input_scale, std::span<const float> x,
                      std::span<const double> errors, QuantizedError* out, double* step) {
  *step = 0;
  for_each_group(act, x.size(), [&](size_t begin, size_t count) {
    if (!all_finite(x.subspan(begin, count))) return;  // NaN, whatever it is near
    const UncertainGroup group(act, input_scale, x.subspan(begin, count),
                               errors.subspan(begin, count));
    *step = std::max(*step, group.step());
    for (size_t k = begin; k < begin + count; ++k) out[k] = group.error_of(x[k], errors[k]);
  });
}

}  // namespace perch
