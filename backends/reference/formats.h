// Number formats of at most 16 bits, from first principles: what each code means, and which code is
// nearest to a value.
//
// Made apart from runtime/numeric on purpose, so that one wrong decoder cannot be right on both
// sides of a comparison. Nothing here is fast: a value is found in a sorted list.
#pragma once

#include <perch/layer.h>

#include <array>
#include <cstdint>
#include <vector>

namespace reference {

// Bits of one code of a PERCH_TYPE_*; 0 for NONE and for numbers that name no type.
int type_bits(uint32_t type);
// "f32", "int4", "e4m3": as the case line spells them.
const char* type_name(uint32_t type);
bool is_integer_type(uint32_t type);

class Format {
 public:
  Format() = default;
  // INTb and LUT4 mean their code itself here; F32 and NONE have no table.
  explicit Format(uint32_t type);

  // One value per code; empty where the type has more than 16 bits.
  const std::vector<float>& values() const { return values_; }
  float decode(uint32_t code) const { return values_[code]; }
  bool has_nan() const { return has_nan_; }

  // For f16, bf16, e4m3 and e2m1. To nearest, ties to the even code. Beyond the largest value f16
  // and bf16 round to infinity as IEEE says; e4m3 and e2m1 saturate. NaN gives the NaN code of the
  // format; e2m1 has none and must not be asked.
  uint32_t encode(float value) const;
  float round(float value) const { return decode(encode(value)); }

 private:
  void list_magnitudes(uint32_t type);

  std::vector<float> values_;
  std::vector<double> magnitudes_;  // of code 0, 1, 2 ...: ascending
  uint32_t sign_bit_ = 0;
  uint32_t nan_code_ = 0;
  bool has_nan_ = false;
};

// All formats, indexed by PERCH_TYPE_*.
class FormatSet {
 public:
  FormatSet();
  const Format& operator[](uint32_t type) const { return formats_[type]; }

 private:
  std::array<Format, PERCH_TYPE_E8M0 + 1> formats_;
};

}  // namespace reference
