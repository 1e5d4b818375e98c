// Decode: sign, exponent and mantissa put together with ldexp. Encode: the nearest entry.
#include "formats.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace reference {
namespace {

enum class Specials {
  kNone,     // every code is a number: the MX formats below 8 bits
  kNanOnly,  // all ones is NaN, there is no infinity: e4m3fn
  kIeee      // the top exponent holds infinity (mantissa 0) and NaN
};

struct FloatLayout {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Specials specials;
};

bool float_layout(uint32_t type, FloatLayout* layout) {
  switch (type) {
    case PERCH_TYPE_F16:
      *layout = {5, 10, 15, Specials::kIeee};
      return true;
    case PERCH_TYPE_BF16:
      *layout = {8, 7, 127, Specials::kIeee};
      return true;
    case PERCH_TYPE_E4M3FN:
      *layout = {4, 3, 7, Specials::kNanOnly};
      return true;
    case PERCH_TYPE_E5M2:
      *layout = {5, 2, 15, Specials::kIeee};
      return true;
    case PERCH_TYPE_E3M2:
      *layout = {3, 2, 3, Specials::kNone};
      return true;
    case PERCH_TYPE_E2M3:
      *layout = {2, 3, 1, Specials::kNone};
      return true;
    case PERCH_TYPE_E2M1:
      *layout = {2, 1, 1, Specials::kNone};
      return true;
    default:
      return false;
  }
}

float decode_float(const FloatLayout& layout, uint32_t code) {
  const uint32_t mantissa_ones = (1u << layout.mantissa_bits) - 1;
  const uint32_t exponent_ones = (1u << layout.exponent_bits) - 1;
  const uint32_t mantissa = code & mantissa_ones;
  const uint32_t exponent = (code >> layout.mantissa_bits) & exponent_ones;
  const bool negative = (code >> (layout.mantissa_bits + layout.exponent_bits)) != 0;

  double magnitude = 0;
  if (layout.specials == Specials::kIeee && exponent == exponent_ones) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (layout.specials == Specials::kNanOnly && exponent == exponent_ones &&
             mantissa == mantissa_ones) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {  // subnormal: 0.mantissa at the smallest exponent
    magnitude = std::ldexp(mantissa, 1 - layout.bias - layout.mantissa_bits);
  } else {  // 1.mantissa
    magnitude = std::ldexp(mantissa + mantissa_ones + 1,
                           static_cast<int>(exponent) - layout.bias - layout.mantissa_bits);
  }
  return static_cast<float>(negative ? -magnitude : magnitude);  // exact: f32 holds them all
}

float decode_e8m0(uint32_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(std::ldexp(1.0, static_cast<int>(code) - 127));
}

}  // namespace

int type_bits(uint32_t type) {
  if (is_integer_type(type)) return static_cast<int>(type - PERCH_TYPE_INT1) + 1;
  if (type == PERCH_TYPE_F32) return 32;
  if (type == PERCH_TYPE_LUT4) return 4;
  if (type == PERCH_TYPE_E8M0) return 8;
  FloatLayout layout{};
  return float_layout(type, &layout) ? 1 + layout.exponent_bits + layout.mantissa_bits : 0;
}

const char* type_name(uint32_t type) {
  static constexpr const char* kNames[] = {
      "0 (not set)", "none", "f32",  "f16",  "bf16", "int1", "int2", "int3", "int4", "int5",
      "int6",        "int7", "int8", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "lut4", "e8m0"};
  return type <= PERCH_TYPE_E8M0 ? kNames[type] : "an unknown type";
}

bool is_integer_type(uint32_t type) { return type >= PERCH_TYPE_INT1 && type <= PERCH_TYPE_INT8; }

Format::Format(uint32_t type) {
  const int bits = type_bits(type);
  if (bits == 0 || bits > 16) return;
  FloatLayout layout{};
  const bool is_float = float_layout(type, &layout);
  for (uint32_t code = 0; code < (1u << bits); ++code) {
    float value = static_cast<float>(code);
    if (is_float) value = decode_float(layout, code);
    if (type == PERCH_TYPE_E8M0) value = decode_e8m0(code);
    values_.push_back(value);
    has_nan_ = has_nan_ || std::isnan(value);
  }
  if (is_float) list_magnitudes(type);
}

void Format::list_magnitudes(uint32_t type) {
  FloatLayout layout{};
  float_layout(type, &layout);
  sign_bit_ = static_cast<uint32_t>(values_.size() / 2);
  for (uint32_t code = 0; code < sign_bit_ && std::isfinite(values_[code]); ++code) {
    magnitudes_.push_back(values_[code]);
  }
  if (layout.specials == Specials::kNanOnly) nan_code_ = sign_bit_ - 1;
  if (layout.specials != Specials::kIeee) return;
  // Infinity is the code after the largest number. A value rounds to it as to the number that would
  // stand there: one more step of the same size.
  const size_t count = magnitudes_.size();
  magnitudes_.push_back(2 * magnitudes_[count - 1] - magnitudes_[count - 2]);
  nan_code_ = static_cast<uint32_t>(count) + (1u << (layout.mantissa_bits - 1));
}

uint32_t Format::encode(float value) const {
  if (std::isnan(value)) return nan_code_;
  const uint32_t sign = std::signbit(value) ? sign_bit_ : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto above = std::upper_bound(magnitudes_.begin(), magnitudes_.end(), magnitude);
  const auto upper = static_cast<uint32_t>(above - magnitudes_.begin());
  const uint32_t lower = upper - 1;  // exists: the magnitude of code 0 is 0
  if (above == magnitudes_.end()) return sign | lower;
  const double to_lower = magnitude - magnitudes_[lower];
  const double to_upper = magnitudes_[upper] - magnitude;
  const bool up = to_upper < to_lower || (to_upper == to_lower && upper % 2 == 0);
  return sign | (up ? upper : lower);
}

FormatSet::FormatSet() {
  for (uint32_t type = PERCH_TYPE_F32; type <= PERCH_TYPE_E8M0; ++type) {
    formats_[type] = Format(type);
  }
}

}  // namespace reference
