// Number formats for the tests: by formula, without a table and apart from both the runtime's and
// the backends' own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend_harness.h"
#include "base/layer_config.h"
#include "perch/layer.h"

namespace perch::test {

struct FloatSpec {
  int exponent_bits, mantissa_bits, bias;
  double largest;  // finite
};
inline FloatSpec float_spec(uint32_t type) {
  switch (type) {
    case PERCH_TYPE_F16:
      return {5, 10, 15, 65504};
    case PERCH_TYPE_BF16:
      return {8, 7, 127, 3.3895313892515355e38};
    case PERCH_TYPE_E4M3FN:
      return {4, 3, 7, 448};
    case PERCH_TYPE_E5M2:
      return {5, 2, 15, 57344};
    case PERCH_TYPE_E3M2:
      return {3, 2, 3, 28};
    case PERCH_TYPE_E2M3:
      return {2, 3, 1, 7.5};
    default:
      return {2, 1, 1, 6};  // e2m1
  }
}

// What a code means; integers and lut4 mean their code.
inline double decode(uint32_t type, uint32_t code) {
  if (type == PERCH_TYPE_E8M0) return code == 255 ? std::nan("") : std::exp2(int(code) - 127);
  if (type_bits(type) <= 8 && type >= PERCH_TYPE_INT1 && type <= PERCH_TYPE_INT8) return code;
  if (type == PERCH_TYPE_LUT4) return code;
  const FloatSpec spec = float_spec(type);
  const int bits = spec.exponent_bits + spec.mantissa_bits;
  const uint32_t magnitude_code = code & ((1u << bits) - 1);
  const double sign = (code >> bits) != 0 ? -1 : 1;
  const uint32_t exponent = magnitude_code >> spec.mantissa_bits;
  const double fraction =
      (magnitude_code & ((1u << spec.mantissa_bits) - 1)) / std::exp2(spec.mantissa_bits);
  const double magnitude = exponent == 0 ? fraction * std::exp2(1 - spec.bias)
                                         : (1 + fraction) * std::exp2(int(exponent) - spec.bias);
  if (magnitude <= spec.largest) return sign * magnitude;
  const bool has_infinity = type != PERCH_TYPE_E4M3FN;
  return has_infinity && fraction == 0 ? sign * INFINITY : std::nan("");
}

// The multiple of the local spacing nearest to `value`, ties to even. Beyond the largest: infinity
// for f16 and bf16, the largest itself for the others.
inline double round_to_format(uint32_t type, double value) {
  if (type == PERCH_TYPE_F32) return static_cast<float>(value);
  if (!std::isfinite(value) || value == 0) return value;
  const FloatSpec spec = float_spec(type);
  const int exponent = std::max(std::ilogb(value), 1 - spec.bias);
  const double spacing = std::exp2(exponent - spec.mantissa_bits);
  const double rounded = std::nearbyint(value / spacing) * spacing;
  if (std::fabs(rounded) <= spec.largest) return rounded;
  const bool ieee = type == PERCH_TYPE_F16 || type == PERCH_TYPE_BF16;
  return std::copysign(ieee ? INFINITY : spec.largest, value);
}

// The 16-bit code of a value that the format holds.
inline uint16_t code_of(uint32_t type, double value) {
  const FloatSpec spec = float_spec(type);
  const uint32_t sign = std::signbit(value) ? 0x8000u : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(type == PERCH_TYPE_F16 ? 0x7E00 : 0x7FC0);
  if (std::isinf(value)) {
    return static_cast<uint16_t>(sign | (type == PERCH_TYPE_F16 ? 0x7C00u : 0x7F80u));
  }
  const double magnitude = std::fabs(value);
  const int exponent =
      magnitude == 0 ? 1 - spec.bias : std::max(std::ilogb(magnitude), 1 - spec.bias);
  const double units = magnitude / std::exp2(exponent - spec.mantissa_bits);
  // units < 2^mantissa_bits is subnormal: exponent field 0, which the carry below turns into 1.
  const auto field = static_cast<uint32_t>(exponent + spec.bias - 1) << spec.mantissa_bits;
  return static_cast<uint16_t>(sign | (field + static_cast<uint32_t>(units)));
}

// A tensor of activations: values rounded to `type`.
inline Tensor floats(uint32_t type, std::vector<int64_t> shape, const std::vector<float>& values) {
  if (type == PERCH_TYPE_F32) return f32(std::move(shape), values);
  std::vector<uint16_t> codes;
  for (const float value : values) codes.push_back(code_of(type, round_to_format(type, value)));
  return make_tensor(dl_float_dtype(type), std::move(shape), codes);
}
inline std::vector<float> to_floats(const Tensor& tensor) {
  if (tensor.dtype.bits == 32) return tensor.as<float>();
  const uint32_t type = tensor.dtype.code == kDLBfloat ? PERCH_TYPE_BF16 : PERCH_TYPE_F16;
  std::vector<float> values;
  for (const uint16_t code : tensor.as<uint16_t>()) {
    values.push_back(static_cast<float>(decode(type, code)));
  }
  return values;
}

// Codes [n,k] of at most 8 bits as they cross: a dense stream per row, low bits first.
inline Tensor pack_codes(int bits, int64_t n, int64_t k, const std::vector<uint32_t>& codes) {
  const int64_t row_bytes = (k * bits + 7) / 8;
  std::vector<uint8_t> packed(static_cast<size_t>(n * row_bytes), 0);
  for (int64_t i = 0; i < n * k; ++i) {
    for (int bit = 0; bit < bits; ++bit) {
      if ((codes[static_cast<size_t>(i)] >> bit & 1u) == 0) continue;
      const int64_t position = i % k * bits + bit;
      const auto byte = static_cast<size_t>(i / k * row_bytes + position / 8);
      packed[byte] = static_cast<uint8_t>(packed[byte] | 1u << position % 8);
    }
  }
  return u8({n, row_bytes}, packed);
}
inline uint32_t unpack_code(int bits, const Tensor& packed, int64_t n, int64_t k) {
  uint32_t code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const int64_t position = k * bits + bit;
    const auto byte = static_cast<size_t>(n * packed.shape[1] + position / 8);
    code |= (packed.bytes[byte] >> position % 8 & 1u) << bit;
  }
  return code;
}

}  // namespace perch::test
