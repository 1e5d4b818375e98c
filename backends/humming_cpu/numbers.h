// numbers.h - bf16, f16 and f32, one value at a time, exact in and round-to-nearest-even out.
//
// `static` on purpose: the per-ISA files include it too, and must not share a copy (kernels.h).
#pragma once

#include <stdint.h>
#include <string.h>

namespace humming_cpu {

static inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline float bf16_to_float(uint16_t code) { return bits_float((uint32_t)code << 16); }

static inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  // A NaN keeps its sign and becomes quiet: rounding could carry it into an infinity.
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float f16_to_float(uint16_t code) {
  const uint32_t sign = (uint32_t)(code & 0x8000u) << 16;
  const uint32_t rest = code & 0x7fffu;
  if (rest >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  // Subnormals too: the exponent is moved by an exact product with 2^112.
  return bits_float(sign | float_bits(bits_float(rest << 13) * 0x1p112f));
}

static inline uint16_t float_to_f16(float value) {
  const uint32_t bits = float_bits(value);
  const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the low bits, rounded once.
    return (uint16_t)(sign | (float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f)));
  }
  return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

}  // namespace humming_cpu
