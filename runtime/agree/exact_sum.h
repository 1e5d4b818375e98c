// Which sums f32 computes without a rounding, whatever their order.
//
// Numbers that are all multiples of one power of two q, and whose absolute values add up to at most
// 2^24 q, have only partial sums that f32 holds. q of a sum of products is the smallest product of
// the factors' lowest set bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "numeric/float_formats.h"
#include "perch/layer.h"

namespace perch {

// The exponent of a number's lowest set bit; a product's is the sum of its factors'.
using LowBit = int16_t;
constexpr LowBit kZeroBit = 16000;  // of 0: whatever the other factor, the product does not count
constexpr LowBit kRoundedBit = -6000;  // of a number that is not known to the last bit
constexpr int kNothing = 5000;         // above: one of the factors is 0

inline LowBit lowest_bit(double x) {
  if (x == 0) return kZeroBit;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int field = static_cast<int>(bits >> 52 & 0x7FF);
  if (field == 0 || field == 0x7FF) return kRoundedBit;  // no product of f32 numbers; inf, NaN
  const uint64_t significand = (bits & 0xFFFFFFFFFFFFFull) | 0x10000000000000ull;
  return static_cast<LowBit>(field - 1075 + std::countr_zero(significand));
}

// `lowest` is the least exponent of all terms, `absolute` the sum of their absolute values. Below
// 2^-126 terms may be flushed to zero.
inline bool is_exact_sum(int lowest, double absolute) {
  if (lowest > kNothing) return true;
  return lowest >= -126 && absolute <= std::ldexp(1.0, 24 + lowest);
}

// Does F32, F16 or BF16 hold x?
inline bool holds(uint32_t type, double x) {
  const auto narrow = static_cast<float>(x);
  if (double{narrow} != x) return false;
  if (type == PERCH_TYPE_BF16) {
    return numeric::f32_from_bf16(numeric::bf16_from_f32(narrow)) == narrow;
  }
  return type != PERCH_TYPE_F16 || numeric::f32_from_f16(numeric::f16_from_f32(narrow)) == narrow;
}

inline float round_once(uint32_t type, float x) {
  if (type == PERCH_TYPE_BF16) return numeric::f32_from_bf16(numeric::bf16_from_f32(x));
  return type == PERCH_TYPE_F16 ? numeric::f32_from_f16(numeric::f16_from_f32(x)) : x;
}

}  // namespace perch
