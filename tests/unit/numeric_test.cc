// runtime/numeric against formulas written independently here, over every code there is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "numeric/decode.h"
#include "numeric/float_formats.h"
#include "numeric/packed_codes.h"

namespace {

using namespace perch::numeric;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// An 8-bit-or-less format as the OCP papers define it.
struct Small {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  float (*decode)(uint8_t);
  uint8_t (*encode)(float);
  int max_code;  // of the largest finite value
  int nan_code;  // what NaN encodes to
  int width() const { return 1 + exponent_bits + mantissa_bits; }
  double value(int code) const {  // without inf and NaN
    const int sign = code >> (width() - 1);
    const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    const double value =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return sign != 0 ? -value : value;
  }
};

const Small kSmall[] = {
    {"e4m3", 4, 3, 7, f32_from_e4m3, e4m3_from_f32, 0x7E, 0x7F},
    {"e5m2", 5, 2, 15, f32_from_e5m2, e5m2_from_f32, 0x7B, 0x7F},
    {"e3m2", 3, 2, 3, f32_from_e3m2, e3m2_from_f32, 0x1F, 0x1F},
    {"e2m3", 2, 3, 1, f32_from_e2m3, e2m3_from_f32, 0x1F, 0x1F},
    {"e2m1", 2, 1, 1, f32_from_e2m1, e2m1_from_f32, 0x07, 0x07},
};

class SmallFormat : public testing::TestWithParam<Small> {};
INSTANTIATE_TEST_SUITE_P(Numeric, SmallFormat, testing::ValuesIn(kSmall),
                         [](const auto& one) { return one.param.name; });

TEST_P(SmallFormat, DecodesEveryCode) {
  const Small& format = GetParam();
  const int sign = 1 << (format.width() - 1);
  for (int code = 0; code < 2 * sign; ++code) {
    const float got = format.decode(static_cast<uint8_t>(code));
    if ((code & (sign - 1)) <= format.max_code) {
      EXPECT_EQ(bits_of(got), bits_of(static_cast<float>(format.value(code)))) << code;
    } else if (code == 0x7C || code == 0xFC) {  // only e5m2 comes here with these
      EXPECT_EQ(bits_of(got), bits_of(code == 0x7C ? kInf : -kInf));
    } else {
      EXPECT_TRUE(std::isnan(got)) << code;
    }
  }
}

TEST_P(SmallFormat, EncodesEveryValueToItsCode) {
  const Small& format = GetParam();
  const int sign = 1 << (format.width() - 1);
  for (int code = 0; code < 2 * sign; ++code) {
    if ((code & (sign - 1)) > format.max_code) continue;
    EXPECT_EQ(format.encode(format.decode(static_cast<uint8_t>(code))), code);
  }
}

// Both sides of every border between two codes, to the last f32 bit, and the border itself.
TEST_P(SmallFormat, RoundsToNearestEven) {
  const Small& format = GetParam();
  const int sign = 1 << (format.width() - 1);
  for (int code = 0; code < format.max_code; ++code) {
    const float middle = static_cast<float>((format.value(code) + format.value(code + 1)) / 2);
    const int even = code % 2 == 0 ? code : code + 1;
    for (const int s : {0, sign}) {
      const float side = s == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(format.encode(side * middle), s + even) << middle;
      EXPECT_EQ(format.encode(side * std::nextafter(middle, 0.0f)), s + code) << middle;
      EXPECT_EQ(format.encode(side * std::nextafter(middle, kInf)), s + code + 1) << middle;
    }
  }
}

TEST_P(SmallFormat, Saturates) {
  const Small& format = GetParam();
  const int sign = 1 << (format.width() - 1);
  const float largest = static_cast<float>(format.value(format.max_code));
  for (const float x :
       {std::nextafter(largest, kInf), 1.05f * largest, 2 * largest, 1e6f, 3e38f, kInf}) {
    EXPECT_EQ(format.encode(x), format.max_code) << x;
    EXPECT_EQ(format.encode(-x), format.max_code + sign) << x;
  }
}

TEST_P(SmallFormat, NanHasOneCodeWhateverItsSign) {
  const Small& format = GetParam();
  EXPECT_EQ(format.encode(kNan), format.nan_code);
  EXPECT_EQ(format.encode(-kNan), format.nan_code);
  EXPECT_EQ(format.encode(std::bit_cast<float>(0x7F800001u)), format.nan_code);
}

TEST_P(SmallFormat, TinyNumbersBecomeZeroWithTheirSign) {
  const Small& format = GetParam();
  const int sign = 1 << (format.width() - 1);
  for (const float x : {0.0f, 1e-45f, 1e-40f, 1e-38f, 1e-20f, 1e-8f}) {
    EXPECT_EQ(format.encode(x), 0) << x;
    EXPECT_EQ(format.encode(-x), sign) << x;
  }
}

// The list of field_reports.md D1: casts without a clamp, software casts off by a binade.
TEST(Numeric, E4m3FieldReport) {
  const std::pair<float, int> cases[] = {{0.0f, 0x00},
                                         {-0.0f, 0x80},
                                         {1.0f, 0x38},
                                         {17.0f, 0x58},
                                         {19.0f, 0x5A},
                                         {0.3f, 0x2A},
                                         {300.0f, 0x79},
                                         {304.0f, 0x7A},
                                         {447.9f, 0x7E},
                                         {448.0f, 0x7E},
                                         {464.0f, 0x7E},
                                         {480.0f, 0x7E},
                                         {1e6f, 0x7E},
                                         {-1e6f, 0xFE},
                                         {kNan, 0x7F},
                                         {std::ldexp(1.0f, -9), 0x01},
                                         {kInf, 0x7E},
                                         {-kInf, 0xFE},
                                         {std::ldexp(1.0f, -10), 0x00},
                                         {std::ldexp(1.5f, -9), 0x02}};
  for (const auto& [x, code] : cases) EXPECT_EQ(e4m3_from_f32(x), code) << x;
}

TEST(Numeric, SumsOfAllFiniteValues) {  // facts/checkpoints.md §3.0
  double e4m3 = 0;
  double e5m2 = 0;
  for (int code = 0; code < 256; ++code) {
    const float a = f32_from_e4m3(static_cast<uint8_t>(code));
    const float b = f32_from_e5m2(static_cast<uint8_t>(code));
    if (std::isfinite(a)) e4m3 += std::fabs(a);
    if (std::isfinite(b)) e5m2 += std::fabs(b);
  }
  EXPECT_EQ(e4m3, 10815.75);
  EXPECT_EQ(e5m2, 720895.9995117188);
}

TEST(Numeric, EncodingRunsAtCompileTime) {
  static_assert(e4m3_from_f32(300.0f) == 0x79 && f16_from_f32(1.0f) == 0x3C00);
  static_assert(bf16_from_f32(1.0f) == 0x3F80 && f32_from_e2m1(7) == 6.0f);
  static_assert(f32_from_f16(0x0001) == 0x1p-24f && e8m0_ceil_from_f32(1.5f) == 128);
}

TEST(Numeric, Bf16EveryCodeSurvives) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float x = f32_from_bf16(static_cast<uint16_t>(code));
    EXPECT_EQ(bits_of(x), code << 16);
    const uint32_t quiet = std::isnan(x) ? code | 0x40u : code;
    ASSERT_EQ(bf16_from_f32(x), quiet) << code;
  }
}

TEST(Numeric, Bf16RoundsToNearestEven) {
  const std::pair<uint32_t, int> cases[] = {
      {0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x3F808001, 0x3F81}, {0x3F817FFF, 0x3F81},
      {0x7F7F7FFF, 0x7F7F}, {0x7F7F8000, 0x7F80}, {0x00008000, 0x0000}, {0x00018000, 0x0002},
      {0x80008001, 0x8001}, {0x7F800001, 0x7FC0}, {0xFFFFFFFF, 0xFFFF}, {0xFF800000, 0xFF80}};
  for (const auto& [bits, code] : cases) {
    EXPECT_EQ(bf16_from_f32(std::bit_cast<float>(bits)), code) << std::hex << bits;
  }
}

double f16_value(uint32_t code) {
  const int exponent = static_cast<int>(code >> 10 & 31);
  const double mantissa = code & 1023;
  return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Numeric, F16EveryCodeSurvives) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float x = f32_from_f16(static_cast<uint16_t>(code));
    const uint32_t magnitude = code & 0x7FFF;
    if (magnitude < 0x7C00) {
      ASSERT_EQ(std::fabs(x), f16_value(magnitude)) << code;
      ASSERT_EQ(std::signbit(x), code > 0x7FFF) << code;
    } else {
      ASSERT_EQ(std::isnan(x), magnitude > 0x7C00) << code;
    }
    const uint32_t quiet = std::isnan(x) ? code | 0x200u : code;
    ASSERT_EQ(f16_from_f32(x), quiet) << code;
  }
}

TEST(Numeric, F16RoundsToNearestEven) {
  for (uint32_t code = 0; code < 0x7BFF; ++code) {
    const float middle = static_cast<float>((f16_value(code) + f16_value(code + 1)) / 2);
    ASSERT_EQ(f16_from_f32(middle), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(f16_from_f32(-std::nextafter(middle, 0.0f)), 0x8000 + code);
    ASSERT_EQ(f16_from_f32(std::nextafter(middle, kInf)), code + 1);
  }
  EXPECT_EQ(f16_from_f32(65519.996f), 0x7BFF);
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7C00);
  EXPECT_EQ(f16_from_f32(-kInf), 0xFC00);
  EXPECT_EQ(f16_from_f32(1e-45f), 0x0000);
}

TEST(Numeric, E8m0) {
  for (int code = 0; code < 255; ++code) {
    const float x = f32_from_e8m0(static_cast<uint8_t>(code));
    EXPECT_EQ(x, std::ldexp(1.0, code - 127));
    EXPECT_EQ(e8m0_ceil_from_f32(x), code);
    EXPECT_EQ(e8m0_ceil_from_f32(std::nextafter(x, 0.0f)), code);
    const int above = code == 254 ? 254 : code + 1;
    EXPECT_EQ(e8m0_ceil_from_f32(std::nextafter(x, kInf)), above);
  }
  EXPECT_EQ(bits_of(f32_from_e8m0(0)), 0x00400000u);
  EXPECT_TRUE(std::isnan(f32_from_e8m0(255)));
  EXPECT_EQ(e8m0_ceil_from_f32(0.0f), 127);
  EXPECT_EQ(e8m0_ceil_from_f32(1e-45f), 0);
  for (const float x : {kNan, kInf, -kInf, -1.0f}) EXPECT_EQ(e8m0_ceil_from_f32(x), 255) << x;
}

class Packed : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Numeric, Packed, testing::Range(1, 9));

TEST_P(Packed, CodesComeBackAtEveryLength) {
  const int bits = GetParam();
  std::mt19937 random(7);
  for (int64_t columns = 1; columns <= 33; ++columns) {
    // Exactly as long as it must be: a read or write beyond it is a sanitizer's find.
    std::vector<uint8_t> row(static_cast<std::size_t>(packed_row_bytes(columns, bits)), 0xA5);
    std::vector<uint32_t> codes;
    for (int64_t k = 0; k < columns; ++k) {
      codes.push_back(static_cast<uint32_t>(random()) & ((1u << bits) - 1));
      put_code(row.data(), k, bits, codes.back());
    }
    CodeReader reader(row.data(), bits);
    for (int64_t k = 0; k < columns; ++k) {
      EXPECT_EQ(get_code(row.data(), k, bits), codes[static_cast<std::size_t>(k)]);
      EXPECT_EQ(reader.next(), codes[static_cast<std::size_t>(k)]);
    }
  }
}

TEST(Numeric, PackedBitsAreLittleEndianAlongK) {
  const uint8_t nibbles[] = {0x21, 0x43};
  EXPECT_EQ(get_code(nibbles, 0, 4), 1u);
  EXPECT_EQ(get_code(nibbles, 3, 4), 4u);
  const uint8_t threes[] = {0b10'001'000, 0b1'100'011'0, 0b00000'10};  // 0 1 2 3 4 5 at 3 bits
  for (int64_t k = 0; k < 6; ++k) EXPECT_EQ(get_code(threes, k, 3), static_cast<uint32_t>(k));
}

perch_quant quant_of(uint32_t weight, uint32_t scale_kind, uint32_t scale_dtype) {
  perch_quant quant{};
  quant.struct_size = sizeof(quant);
  quant.weight = weight;
  quant.scale_kind = scale_kind;
  quant.scale_dtype = scale_dtype;
  quant.scale2_kind = PERCH_SCALE2_NONE;
  quant.zero_kind = PERCH_ZERO_NONE;
  quant.offset_kind = PERCH_OFFSET_NONE;
  quant.k_order = PERCH_K_NATURAL;
  return quant;
}

std::vector<float> decode_row(const perch_quant& quant, const MatrixTensors& tensors, int64_t k,
                              int64_t row) {
  std::vector<float> out(static_cast<std::size_t>(k));
  decode_weight_row(quant, tensors, k, row, out.data());
  return out;
}

// Row 1 of int4 [2,5] in groups of 2, the last one short, with zeros, a second scale and offsets.
TEST(Numeric, DecodesInt4Groups) {
  perch_quant quant = quant_of(PERCH_TYPE_INT4, PERCH_SCALE_GROUP, PERCH_TYPE_BF16);
  quant.group_k = 2;
  quant.zero_kind = PERCH_ZERO_INT;
  quant.scale2_kind = PERCH_SCALE2_CHANNEL;
  quant.offset_kind = PERCH_OFFSET_GROUP;
  const uint8_t w[] = {0, 0, 0, 0x21, 0x43, 0x0F};
  const uint16_t scale[] = {0, 0, 0, 0x3F80, 0x4000, 0x3F00};  // 1, 2, 0.5
  const uint8_t zero[] = {9, 9, 9, 1, 8, 0};
  const float scale2[] = {9, 10};
  const float offset[] = {9, 9, 9, 0, 0.5f, -1};
  const MatrixTensors tensors{w, scale, scale2, zero, offset, nullptr, nullptr};
  EXPECT_EQ(decode_row(quant, tensors, 5, 1), (std::vector<float>{0, 10, -99.5f, -79.5f, 74}));
}

TEST(Numeric, DecodesMidpointAndChannelScale) {
  const perch_quant symmetric = [] {
    perch_quant quant = quant_of(PERCH_TYPE_INT3, PERCH_SCALE_CHANNEL, PERCH_TYPE_F16);
    quant.zero_kind = PERCH_ZERO_MIDPOINT;
    return quant;
  }();
  const uint8_t w[] = {0b10'001'000, 0b1'100'011'0, 0b00000'10};
  const uint16_t scale[] = {0x3800};  // 0.5
  const MatrixTensors tensors{w, scale, nullptr, nullptr, nullptr, nullptr, nullptr};
  EXPECT_EQ(decode_row(symmetric, tensors, 6, 0),
            (std::vector<float>{-2, -1.5f, -1, -0.5f, 0, 0.5f}));
}

TEST(Numeric, DecodesActOrder) {
  perch_quant quant = quant_of(PERCH_TYPE_INT8, PERCH_SCALE_GROUP, PERCH_TYPE_F32);
  quant.group_k = 2;
  quant.k_order = PERCH_K_G_IDX;
  quant.num_groups = 3;  // a slice of K: more groups than ceil(4 / 2)
  quant.zero_kind = PERCH_ZERO_FLOAT;
  const uint8_t w[] = {10, 20, 30, 40};
  const float scale[] = {1, 2, 3};
  const float zero[] = {0, 0.5f, 10};
  const int32_t g_idx[] = {2, 0, 1, 2};
  const MatrixTensors tensors{w, scale, nullptr, zero, nullptr, nullptr, g_idx};
  EXPECT_EQ(decode_row(quant, tensors, 4, 0), (std::vector<float>{0, 20, 59, 90}));
}

TEST(Numeric, DecodesBlocksAndE8m0Zero) {
  perch_quant quant = quant_of(PERCH_TYPE_E4M3FN, PERCH_SCALE_BLOCK, PERCH_TYPE_E8M0);
  quant.group_n = 2;
  quant.group_k = 2;
  const uint8_t w[9] = {0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0xC0, 0x80};
  const uint8_t scale[] = {127, 128, 0, 130};
  const MatrixTensors tensors{w, scale, nullptr, nullptr, nullptr, nullptr, nullptr};
  EXPECT_EQ(decode_row(quant, tensors, 3, 1), (std::vector<float>{1, 1, 2}));
  const std::vector<float> last = decode_row(quant, tensors, 3, 2);
  EXPECT_EQ(bits_of(last[0]), 0x00400000u);
  EXPECT_EQ(bits_of(last[1]), bits_of(-0x1p-126f));
  EXPECT_EQ(bits_of(last[2]), 0x80000000u);
}

TEST(Numeric, DecodesLookUpTable) {
  const perch_quant quant = quant_of(PERCH_TYPE_LUT4, PERCH_SCALE_TENSOR, PERCH_TYPE_F32);
  float lut[16];
  for (int i = 0; i < 16; ++i) lut[i] = static_cast<float>(i * i);
  const uint8_t w[] = {0x3F};
  const float scale[] = {-2};
  const MatrixTensors tensors{w, scale, nullptr, nullptr, nullptr, lut, nullptr};
  EXPECT_EQ(decode_row(quant, tensors, 2, 0), (std::vector<float>{-450, -18}));
}

TEST(Numeric, DecodesWideFloatsWithoutScaleFromAnyAddress) {
  const uint32_t values[] = {0x3F800000, 0xC0000000};
  uint8_t shifted[9];
  std::memcpy(shifted + 1, values, 8);
  const MatrixTensors f32{shifted + 1, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  EXPECT_EQ(decode_row(quant_of(PERCH_TYPE_F32, PERCH_SCALE_NONE, PERCH_TYPE_NONE), f32, 1, 1),
            (std::vector<float>{-2}));
  const uint16_t bf16[] = {0x3F80, 0x4040};
  const MatrixTensors b{bf16, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  EXPECT_EQ(decode_row(quant_of(PERCH_TYPE_BF16, PERCH_SCALE_NONE, PERCH_TYPE_NONE), b, 2, 0),
            (std::vector<float>{1, 3}));
}

}  // namespace
