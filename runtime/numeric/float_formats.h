// The number formats of contract §2 in software: bf16, f16, e4m3fn, e5m2, e3m2, e2m3, e2m1, e8m0.
//
// Decoding is exact. Encoding rounds to nearest, ties to even, and works on the bits of the f32, so
// it does not depend on the rounding mode or on flush-to-zero and may run at compile time. Shared
// by the runtime and the backends that want it; the reference backend has decoders of its own.
//
// What encoding does at the edges, the same on every path:
//   bf16, f16                 overflow becomes inf, as IEEE has it; NaN stays NaN, made quiet
//   e4m3, e5m2                overflow and inf saturate to +-448 and +-57344; NaN -> 0x7F
//   e3m2, e2m3, e2m1          overflow and inf saturate; NaN, which they lack, -> the largest value
// "Why 0x7F for a negative NaN too?" x86 makes its own NaNs negative and CUDA's conversion makes
// them positive, so the sign of a NaN carries nothing; one code keeps all paths alike.
#pragma once

#include <bit>
#include <cstdint>

namespace perch::numeric {

static_assert(sizeof(float) == 4, "f32 is IEEE binary32");

// A sign bit, then exponent, then mantissa; subnormals at exponent 0.
struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  uint32_t max_code;       // of the largest finite value
  uint32_t overflow_code;  // what anything larger encodes to
  uint32_t nan_code;
  bool ieee_specials;  // the largest exponent holds inf and NaN

  constexpr uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
};

inline constexpr FloatFormat kF16{5, 10, 15, 0x7BFF, 0x7C00, 0x7E00, true};
inline constexpr FloatFormat kE4m3{4, 3, 7, 0x7E, 0x7E, 0x7F, false};
inline constexpr FloatFormat kE5m2{5, 2, 15, 0x7B, 0x7B, 0x7F, true};
inline constexpr FloatFormat kE3m2{3, 2, 3, 0x1F, 0x1F, 0x1F, false};
inline constexpr FloatFormat kE2m3{2, 3, 1, 0x1F, 0x1F, 0x1F, false};
inline constexpr FloatFormat kE2m1{2, 1, 1, 0x7, 0x7, 0x7, false};

// 2^exponent for the exponents of normal f32 numbers, -126..127.
constexpr float pow2(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

template <FloatFormat F>
constexpr float decode(uint32_t code) {
  const uint32_t sign = (code & F.sign_bit()) != 0 ? 0x80000000u : 0u;
  const uint32_t magnitude = code & (F.sign_bit() - 1);
  const uint32_t mantissa = magnitude & ((1u << F.mantissa_bits) - 1);
  const int exponent = static_cast<int>(magnitude >> F.mantissa_bits);
  if (F.ieee_specials && exponent == (1 << F.exponent_bits) - 1) {
    return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << (23 - F.mantissa_bits)));
  }
  if (F.max_code != F.nan_code && !F.ieee_specials && magnitude == F.nan_code) {
    return std::bit_cast<float>(sign | 0x7FC00000u);
  }
  const uint32_t significand = exponent == 0 ? mantissa : mantissa | (1u << F.mantissa_bits);
  const int scale = (exponent == 0 ? 1 : exponent) - F.bias - F.mantissa_bits;
  // Both factors are exact and the product is a normal f32 or 0.
  const float absolute = static_cast<float>(significand) * pow2(scale);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(absolute));
}

template <FloatFormat F>
constexpr uint32_t encode(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 31) != 0 ? F.sign_bit() : 0u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return F.nan_code;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  // Every format here has its smallest subnormal far above the f32 subnormals.
  if (exponent == -127) return sign;
  const int below_normal = exponent < 1 - F.bias ? 1 - F.bias - exponent : 0;
  const int dropped = 23 - F.mantissa_bits + below_normal;
  if (dropped > 24) return sign;
  const uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
  const uint32_t remainder = significand & ((1u << dropped) - 1);
  const uint32_t half = 1u << (dropped - 1);
  uint32_t kept = significand >> dropped;
  if (remainder > half || (remainder == half && (kept & 1u) != 0)) ++kept;
  // `kept` holds the hidden bit, which counts as one step of the exponent; so does a carry.
  const int steps = below_normal > 0 ? 0 : exponent + F.bias - 1;
  const uint32_t code = (static_cast<uint32_t>(steps) << F.mantissa_bits) + kept;
  return sign | (code > F.max_code ? F.overflow_code : code);
}

// ---- bf16: the upper half of an f32 ------------------------------------------------------------
constexpr float f32_from_bf16(uint16_t code) {
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
}

constexpr uint16_t bf16_from_f32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  // Rounding up could turn a NaN into inf or -0; its quiet bit keeps it a NaN.
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// ---- f16 ---------------------------------------------------------------------------------------
constexpr float f32_from_f16(uint16_t code) { return decode<kF16>(code); }

constexpr uint16_t f16_from_f32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {  // NaN: keep its sign and the top of its payload
    return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | 0x7E00u | ((bits >> 13) & 0x3FFu));
  }
  return static_cast<uint16_t>(encode<kF16>(x));
}

// ---- 8, 6 and 4 bits ---------------------------------------------------------------------------
// All values of a format of up to 8 bits; a look-up is what decoding a matrix spends its time on.
struct CodeTable {
  float values[256];
};

template <FloatFormat F>
constexpr CodeTable make_code_table() {
  CodeTable table{};
  for (uint32_t code = 0; code < 256; ++code) {
    table.values[code] = decode<F>(code & (2 * F.sign_bit() - 1));
  }
  return table;
}

template <FloatFormat F>
inline constexpr CodeTable kCodeTable = make_code_table<F>();

// Bits above the format's width are ignored.
constexpr float f32_from_e4m3(uint8_t code) { return kCodeTable<kE4m3>.values[code]; }
constexpr float f32_from_e5m2(uint8_t code) { return kCodeTable<kE5m2>.values[code]; }
constexpr float f32_from_e3m2(uint8_t code) { return kCodeTable<kE3m2>.values[code]; }
constexpr float f32_from_e2m3(uint8_t code) { return kCodeTable<kE2m3>.values[code]; }
constexpr float f32_from_e2m1(uint8_t code) { return kCodeTable<kE2m1>.values[code]; }

constexpr uint8_t e4m3_from_f32(float x) { return static_cast<uint8_t>(encode<kE4m3>(x)); }
constexpr uint8_t e5m2_from_f32(float x) { return static_cast<uint8_t>(encode<kE5m2>(x)); }
constexpr uint8_t e3m2_from_f32(float x) { return static_cast<uint8_t>(encode<kE3m2>(x)); }
constexpr uint8_t e2m3_from_f32(float x) { return static_cast<uint8_t>(encode<kE2m3>(x)); }
constexpr uint8_t e2m1_from_f32(float x) { return static_cast<uint8_t>(encode<kE2m1>(x)); }

// ---- e8m0: 2^(code - 127), a scale -------------------------------------------------------------
inline constexpr uint8_t kE8m0One = 127;
inline constexpr uint8_t kE8m0Nan = 255;

constexpr float f32_from_e8m0(uint8_t code) {
  if (code == kE8m0Nan) return std::bit_cast<float>(0x7FC00000u);
  // Code 0 is 2^-127, an f32 subnormal: made from its bits, so that flush-to-zero cannot lose it.
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  return pow2(code - 127);
}

// The code of the smallest power of two >= x. 0 gives scale 1, since an all-zero group needs some
// scale (contract §2); above 2^127 the largest code; NaN, inf and negative numbers give NaN.
constexpr uint8_t e8m0_ceil_from_f32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) == 0) return kE8m0One;
  if (bits >= 0x7F800000u) return kE8m0Nan;
  const uint32_t exponent = bits >> 23;
  const uint32_t mantissa = bits & 0x7FFFFFu;
  if (exponent == 0) return mantissa <= 0x400000u ? 0 : 1;
  const uint32_t code = exponent + (mantissa != 0 ? 1 : 0);
  return static_cast<uint8_t>(code > 254 ? 254 : code);
}

}  // namespace perch::numeric
