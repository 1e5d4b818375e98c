// Golden vectors of the checkpoint formats: words that the formats' own packages wrote, and the
// codes and values that they stand for.
#include <cmath>
#include <functional>

#include "projection_rig.h"

namespace perch {
namespace {

using Words = std::vector<uint32_t>;

Scheme compressed(int64_t bits, Strategy strategy, int64_t group, const std::string& version) {
  Scheme scheme;
  scheme.quantized = true;
  scheme.method = "compressed-tensors";
  scheme.version = version;
  scheme.where = "config";
  scheme.bits = bits;
  scheme.strategy = strategy;
  scheme.group = group;
  scheme.act = make_act_none();
  return scheme;
}

constexpr uint16_t kBf16One = 0x3F80;

ProjectionRig packed_row(const Words& words, int64_t k) {
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kI32, {1, static_cast<int64_t>(words.size())}, words)
      .add("weight_scale", RawDtype::kBF16, {1, 1}, std::vector<uint16_t>{kBf16One})
      .add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{1, k});
  return rig;
}

struct PackRow {
  int64_t bits;
  int64_t k;
  const char* version;
  Words words;
};

// Codes (5k + 3) mod 2^b.
const PackRow kPacked[] = {
    {1, 32, "0.18.0", {0x55555555}},
    {2, 32, "0.18.0", {0x93939393, 0x93939393}},
    {3, 32, "0.18.0", {0x43c67543, 0x7543c675, 0xc67543c6}},
    {4, 32, "0.18.0", {0x61c72d83, 0xe94fa50b, 0x61c72d83, 0xe94fa50b}},
    {5, 32, "0.18.0", {0x79793503, 0xfd560b30, 0x77137249, 0x1bb45871, 0xf668f514}},
    {6, 32, "0.18.0", {0x1748d203, 0x5c2b9a17, 0x38913feb, 0x2789d613, 0x503bdb1b, 0x79950f28}},
    {7,
     32,
     "0.18.0",
     {0x72434403, 0x2b4c84e1, 0x23f74d58, 0x6c539d26, 0xc7667c57, 0x41407bed, 0x3c64a0f1}},
    {8,
     32,
     "0.18.0",
     {0x120d0803, 0x26211c17, 0x3a35302b, 0x4e49443f, 0x625d5853, 0x76716c67, 0x8a85807b,
      0x9e99948f}},
    {3, 10, "0.18.0", {0x03c67543}},
    {3, 11, "0.18.0", {0x43c67543, 0x00000001}},
    {6, 16, "0.18.0", {0x1748d203, 0x5c2b9a17, 0x38913feb}},
    {3, 32, "0.17.1", {0x03c67543, 0x150f19d5, 0x27543c67, 0x00000031}},
    {5, 32, "0.17.1", {0x39793503, 0x35582cc1, 0x3137249f, 0x2d161c5d, 0x28f5141b, 0x000003d9}},
    {6,
     32,
     "0.17.1",
     {0x1748d203, 0x30ae685c, 0x0913feb5, 0x227584ce, 0x3bdb1b27, 0x143ca140, 0x00000799}},
    {7,
     32,
     "0.17.1",
     {0x02434403, 0x04c84e17, 0x074d582b, 0x09d2623f, 0x0c576c53, 0x0edc7667, 0x0141407b,
      0x03c64a0f}},
};

TEST(FormatGolden, CompressedTensorsBothPackings) {
  for (const PackRow& row : kPacked) {
    SCOPED_TRACE(std::to_string(row.bits) + " bits, " + row.version);
    const ReadBack read = read_back(packed_row(row.words, row.k),
                                    compressed(row.bits, Strategy::kChannel, 0, row.version));
    ASSERT_EQ(read.codes.size(), static_cast<size_t>(row.k));
    for (uint32_t k = 0; k < read.codes.size(); ++k) {
      const uint32_t code = (5 * k + 3) % (1U << row.bits);
      EXPECT_EQ(read.codes[k], code) << k;
      EXPECT_EQ(read.values[k],
                static_cast<float>(code) - static_cast<float>(1U << (row.bits - 1)));
    }
  }
}

TEST(FormatGolden, CompressedTensorsZeroPointsAlongRows) {
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kI32, {8, 2}, Words(16, 0))
      .add("weight_scale", RawDtype::kBF16, {8, 2}, std::vector<uint16_t>(16, kBf16One))
      .add("weight_zero_point", RawDtype::kI32, {1, 2}, Words{0x9f5b17d3, 0xe4a06c28})
      .add("weight_shape", RawDtype::kI32, {2}, std::vector<int32_t>{8, 16});
  Scheme scheme = compressed(4, Strategy::kGroup, 8, "0.18.0");
  scheme.symmetric = false;
  EXPECT_EQ(read_back(rig, scheme).zeros,
            (std::vector<uint8_t>{3, 8, 13, 2, 7, 12, 1, 6, 11, 0, 5, 10, 15, 4, 9, 14}));
}

TEST(FormatGolden, Fp4Pairs) {
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kU8, {1, 8},
          std::vector<uint8_t>{0x80, 0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7})
      .add("weight_scale", RawDtype::kF8E4M3, {1, 1}, std::vector<uint8_t>{0x38})
      .add("weight_global_scale", RawDtype::kF32, {1}, std::vector<float>{4.0F});
  Scheme scheme = compressed(4, Strategy::kGroup, 16, "0.18.0");
  scheme.is_float = true;
  const ReadBack read = read_back(rig, scheme);
  const std::vector<float> want = {0, -0.0F, .5F, -.5F, 1, -1, 1.5F, -1.5F,
                                   2, -2,    3,   -3,   4, -4, 6,    -6};
  ASSERT_EQ(read.values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(read.values[i], want[i] / 4) << i;
  EXPECT_TRUE(std::signbit(read.values[1]));
}

Scheme of_method(const char* method, int64_t bits, int64_t group) {
  Scheme scheme = compressed(bits, Strategy::kGroup, group, "");
  scheme.method = method;
  scheme.symmetric = false;
  return scheme;
}

// f16 of .25 times 1 to 4, and of .5 times 1 to 4.
std::vector<uint16_t> quarters(int64_t groups, int64_t n, const uint16_t (&values)[4]) {
  std::vector<uint16_t> scales;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t row = 0; row < n; ++row) scales.push_back(values[(row + g) % 4]);
  }
  return scales;
}

TEST(FormatGolden, AwqGemm) {
  Words qweight, qzeros;
  for (const auto& [a, b] : {std::pair(0x39f5e4a0U, 0xb17d6c28U),
                             {0x6c2817d3U, 0xe4a09f5bU},
                             {0x9f5b4a06U, 0x17d3c28eU},
                             {0xc28e7d39U, 0x4a06f5b1U}}) {
    for (int i = 0; i < 2; ++i) qweight.insert(qweight.end(), {a, b});
  }
  for (const auto& [a, b] : {std::pair(0x75316420U, 0xfdb9eca8U), {0xb975a864U, 0x31fd20ecU}}) {
    for (int i = 0; i < 2; ++i) qzeros.insert(qzeros.end(), {a, b});
  }
  ProjectionRig rig;
  rig.add("qweight", RawDtype::kI32, {4, 4}, qweight)
      .add("qzeros", RawDtype::kI32, {2, 4}, qzeros)
      .add("scales", RawDtype::kF16, {2, 32}, quarters(2, 32, {0x3400, 0x3800, 0x3A00, 0x3C00}));
  const ReadBack read = read_back(rig, of_method("awq", 4, 2));
  for (uint32_t n = 0; n < 32; ++n) {
    for (uint32_t k = 0; k < 4; ++k) EXPECT_EQ(read.codes[n * 4 + k], (5 * n + 3 * k) % 16);
    for (uint32_t g = 0; g < 2; ++g) EXPECT_EQ(read.zeros[n * 2 + g], (n + 4 * g) % 16);
  }
  const float want[] = {.75F, 3.5F, 8.25F, -1};
  for (size_t n = 0; n < 4; ++n) EXPECT_EQ(read.values[n * 4 + 1], want[n]) << n;
}

struct GptqRow {
  int bits;
  Words column0, column1, zeros;  // the first row of qzeros
};

const GptqRow kGptq[] = {
    {2, {0x39393939, 0x39393939}, {0xe4e4e4e4, 0xe4e4e4e4}, {0x39393939, 0x39393939}},
    {3,
     {0xf19d50f1, 0x50f19d50, 0x9d50f19d},
     {0x8cea878c, 0x878cea87, 0xea878cea},
     {0xd11f58d1, 0x58d11f58, 0x1f58d11f}},
    {4,
     {0x4fa50b61, 0xc72d83e9, 0x4fa50b61, 0xc72d83e9},
     {0x72d83e94, 0xfa50b61c, 0x72d83e94, 0xfa50b61c},
     {0x87654321, 0x0fedcba9, 0x87654321, 0x0fedcba9}},
    {8,
     {0x100b0601, 0x241f1a15, 0x38332e29, 0x4c47423d, 0x605b5651, 0x746f6a65, 0x88837e79,
      0x9c97928d},
     {0x130e0904, 0x27221d18},
     {0x04030201, 0x08070605}},
};

// Codes down the columns or along the rows of a [K,N] array, as one stream of bits each.
Words streams(int bits, int64_t count, int64_t length, bool columns,
              const std::function<uint32_t(int64_t stream, int64_t i)>& code) {
  const int64_t words = length * bits / 32;
  Words result(static_cast<size_t>(words * count), 0);
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t bit = 0; bit < length * bits; ++bit) {
      const int64_t word = bit / 32;
      const size_t at = static_cast<size_t>(columns ? word * count + s : s * words + word);
      result[at] |= (code(s, bit / bits) >> (bit % bits) & 1U) << (bit % 32);
    }
  }
  return result;
}

// K 32, N 32, groups of 16; q = (5k + 3n + 1) mod 2^b, z = (n + 2g + 1) mod 2^b.
TEST(FormatGolden, Gptq) {
  for (const GptqRow& row : kGptq) {
    SCOPED_TRACE(row.bits);
    const uint32_t mask = (1U << row.bits) - 1;
    const auto q = [&](int64_t n, int64_t k) {
      return static_cast<uint32_t>(5 * k + 3 * n + 1) & mask;
    };
    const auto z = [&](int64_t g, int64_t n) {
      return static_cast<uint32_t>(n + 2 * g + 1) & mask;
    };
    const Words qweight = streams(row.bits, 32, 32, true, q);
    const Words qzeros = streams(row.bits, 2, 32, false, z);
    for (size_t w = 0; w < row.column0.size(); ++w) EXPECT_EQ(qweight[w * 32], row.column0[w]);
    for (size_t w = 0; w < row.column1.size(); ++w) EXPECT_EQ(qweight[w * 32 + 1], row.column1[w]);
    for (size_t w = 0; w < row.zeros.size(); ++w) EXPECT_EQ(qzeros[w], row.zeros[w]);
    ProjectionRig rig;
    rig.add("qweight", RawDtype::kI32, {row.bits, 32}, qweight)
        .add("qzeros", RawDtype::kI32, {2, row.bits}, qzeros)
        .add("scales", RawDtype::kF16, {2, 32}, std::vector<uint16_t>(64, 0x3C00));
    const ReadBack read = read_back(rig, of_method("gptq", row.bits, 16));
    for (int64_t n = 0; n < 32; ++n) {
      for (int64_t k = 0; k < 32; ++k)
        EXPECT_EQ(read.codes[static_cast<size_t>(n * 32 + k)], q(n, k));
      for (int64_t g = 0; g < 2; ++g)
        EXPECT_EQ(read.zeros[static_cast<size_t>(n * 2 + g)], z(g, n));
    }
  }
}

// The version 1 file of the 4-bit case: a word of ones less, so that the second word wraps.
TEST(FormatGolden, GptqVersion1Words) {
  ProjectionRig rig;
  rig.add("qweight", RawDtype::kI32, {4, 16}, Words(64, 0))
      .add("qzeros", RawDtype::kI32, {1, 2}, Words{0x76543210, 0xfedcba98})
      .add("scales", RawDtype::kF16, {1, 16}, std::vector<uint16_t>(16, 0x3C00));
  Scheme scheme = of_method("gptq", 4, 32);
  scheme.zeros_less_one = true;
  const ReadBack read = read_back(rig, scheme);
  for (size_t n = 0; n < 16; ++n) EXPECT_EQ(read.zeros[n], (n + 1) % 16) << n;
}

TEST(FormatGolden, GptqActOrder) {
  ProjectionRig rig;
  rig.add("qweight", RawDtype::kI32, {1, 8},
          Words{0x4fa50b61, 0x72d83e94, 0xa50b61c7, 0xd83e94fa, 0x0b61c72d, 0x3e94fa50, 0x61c72d83,
                0x94fa50b6})
      .add("qzeros", RawDtype::kI32, {2, 1}, Words{0x87654321, 0xa9876543})
      .add("scales", RawDtype::kF16, {2, 8}, quarters(2, 8, {0x3800, 0x3C00, 0x3E00, 0x4000}))
      .add("g_idx", RawDtype::kI32, {8}, std::vector<int32_t>{1, 0, 0, 1, 1, 0, 1, 0});
  Scheme scheme = of_method("gptq", 4, 4);
  scheme.act_order = true;
  const ReadBack read = read_back(rig, scheme);
  EXPECT_EQ(read.plan.quant.k_order, PERCH_K_G_IDX);
  const std::vector<float> first = {-2, 2.5F, 5, -3, 2, 4.5F, 12, 1.5F};
  const std::vector<float> fourth = {2, 22, 0, 1.5F, 4, -2, 1, 18};
  EXPECT_EQ(std::vector<float>(read.values.begin(), read.values.begin() + 8), first);
  EXPECT_EQ(std::vector<float>(read.values.begin() + 24, read.values.begin() + 32), fourth);
}

TEST(FormatGolden, ModeloptInt4PacksRowsTogether) {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kU8, {2, 4},
          std::vector<uint8_t>{0xb8, 0x0d, 0x52, 0xa7, 0x1e, 0x63, 0xb8, 0x0d})
      .add("weight_scale", RawDtype::kBF16, {4, 1}, std::vector<uint16_t>(4, kBf16One));
  const ReadBack read = read_back(rig, of_method("modelopt", 4, 4));
  EXPECT_EQ(read.values,
            (std::vector<float>{-8, -3, 2, 7, -5, 0, 5, -6, -2, 3, -8, -3, 1, 6, -5, 0}));
}

TEST(FormatGolden, GptOssBlocks) {
  std::vector<uint8_t> blocks;
  for (int j = 0; j < 2; ++j) {
    for (int i = 0; i < 16; ++i) blocks.push_back(static_cast<uint8_t>(17 * i + 35 * j));
  }
  ProjectionRig rig;
  rig.add("blocks", RawDtype::kU8, {1, 2, 16}, blocks)
      .add("scales", RawDtype::kU8, {1, 2}, std::vector<uint8_t>{126, 129});
  Scheme scheme = of_method("mxfp4", 4, 32);
  scheme.is_float = true;
  const ReadBack read = read_back(rig, scheme);
  ASSERT_EQ(read.values.size(), 64U);
  const std::vector<float> first = {0, 0, .25F, .25F, .5F, .5F, .75F, .75F};
  const std::vector<float> second = {6, 4, 8, 6, 12, 8, 16, 12};
  EXPECT_EQ(std::vector<float>(read.values.begin(), read.values.begin() + 8), first);
  EXPECT_EQ(std::vector<float>(read.values.begin() + 32, read.values.begin() + 40), second);
  double sum = 0;
  double weighted = 0;
  for (size_t i = 0; i < 64; ++i) {
    sum += double{read.values[i]};
    weighted += double{read.values[i]} * static_cast<double>(i + 1);
  }
  EXPECT_EQ(sum, 28.0);
  EXPECT_EQ(weighted, -644.0);
}

}  // namespace
}  // namespace perch
