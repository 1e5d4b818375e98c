// kernels_quantize.h - the input of a GEMM as its codes say it: q(x) of the contract, in f32.
//
// Included by kernels_<isa>.cc behind kernels_impl.h, whose rules are the same; written for the
// compiler to vectorize. rintf rounds to nearest even: tasks run in the default float state.
#pragma once

#include <math.h>

#include "kernels.h"
#include "numbers.h"
#include "perch/layer.h"

// NOLINTBEGIN(misc-definitions-in-headers): one copy per ISA is what this file is for
namespace humming_cpu {
namespace {

// The magnitude is compared as an integer: the same order, and NaN and infinity come last.
PERCH_INLINE uint32_t largest_bits(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = float_bits(x[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// Beyond 448: 448. Below 2^-6 a code is a multiple of 2^-9, above it keeps three bits of mantissa.
PERCH_INLINE float round_e4m3(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const float small = rintf(bits_float(magnitude) * 512.0f) * (1.0f / 512.0f);
  const uint32_t kept = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) & 0xfff00000u;
  const float large = bits_float(kept < 0x43e00000u ? kept : 0x43e00000u);
  const float result = magnitude < 0x3c800000u ? small : large;
  return bits_float(float_bits(result) | (bits & 0x80000000u));
}

// 0 0.5 1 1.5 2 3 4 6: steps of a half up to 2, of 1 up to 4, of 2 behind; beyond 6: 6.
PERCH_INLINE float round_e2m1(float value) {
  const uint32_t bits = float_bits(value);
  const float magnitude = bits_float(bits & 0x7fffffffu);
  const float step = magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
  const float inverse = magnitude < 2.0f ? 2.0f : magnitude < 4.0f ? 1.0f : 0.5f;
  const float rounded = rintf((magnitude < 6.0f ? magnitude : 6.0f) * inverse) * step;
  const float result = rounded < 6.0f ? rounded : 6.0f;
  return bits_float(float_bits(result) | (bits & 0x80000000u));
}

PERCH_INLINE float round_int8(float value) {
  const float whole = rintf(value);
  return whole < -127.0f ? -127.0f : whole > 127.0f ? 127.0f : whole;
}

// The smallest 2^e that is not less than value, no less than 2^-127.
PERCH_INLINE float power_of_two_above(double value) {
  int exponent = 0;
  if (frexp(value, &exponent) == 0.5) --exponent;
  return ldexpf(1.0f, exponent < -127 ? -127 : exponent);
}

PERCH_INLINE float code_limit(uint32_t type) {
  return type == PERCH_TYPE_INT8 ? 127.0f : type == PERCH_TYPE_E4M3FN ? 448.0f : 6.0f;
}

// Scale 1 for a group of zeros, and for one so small that 1/scale would be infinite: its codes are
// all 0, as numbers below 2^-126 may be.
PERCH_INLINE float group_scale(const InputQuant& quant, float input_scale, float largest) {
  if (quant.mode == PERCH_ACT_STATIC) return input_scale;
  if (quant.mode == PERCH_ACT_STATIC_GROUP) {
    return round_e4m3(largest / (6.0f * input_scale)) * input_scale;
  }
  if (largest == 0.0f) return 1.0f;
  const float limit = code_limit(quant.type);
  if (quant.e8m0) {
    return power_of_two_above(static_cast<double>(largest) / static_cast<double>(limit));
  }
  const float scale = largest / limit;
  return float_bits(1.0f / scale) < 0x7f800000u ? scale : 1.0f;
}

PERCH_INLINE void quantize_group(const InputQuant& quant, float input_scale, int64_t count,
                                 float* x) {
  const uint32_t largest = largest_bits(x, count);
  const bool finite = largest < 0x7f800000u;
  const float scale = finite ? group_scale(quant, input_scale, bits_float(largest)) : 0.0f;
  if (!finite || scale == 0.0f) {
    const float all = finite ? 0.0f : bits_float(0x7fc00000u);
    for (int64_t i = 0; i < count; ++i) x[i] = all;
    return;
  }
  const float inverse = 1.0f / scale;
  if (quant.type == PERCH_TYPE_INT8) {
    for (int64_t i = 0; i < count; ++i) x[i] = round_int8(x[i] * inverse) * scale;
  } else if (quant.type == PERCH_TYPE_E4M3FN) {
    for (int64_t i = 0; i < count; ++i) x[i] = round_e4m3(x[i] * inverse) * scale;
  } else {
    for (int64_t i = 0; i < count; ++i) x[i] = round_e2m1(x[i] * inverse) * scale;
  }
}

void quantize_row(const InputQuant& quant, const float* pre_scale, float input_scale,
                  const float* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = pre_scale == nullptr ? in[i] : in[i] * pre_scale[i];
  if (!quant.is_quantized()) {
    for (int64_t i = 0; i < n; ++i) out[i] = round_to(quant.round, out[i]);
    return;
  }
  const bool grouped = quant.mode == PERCH_ACT_GROUP || quant.mode == PERCH_ACT_STATIC_GROUP;
  const int64_t group = grouped ? quant.group : n;
  for (int64_t begin = 0; begin < n; begin += group) {
    quantize_group(quant, input_scale, group < n - begin ? group : n - begin, out + begin);
  }
}

}  // namespace
}  // namespace humming_cpu
// NOLINTEND(misc-definitions-in-headers)
