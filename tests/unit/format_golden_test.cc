// Storage formats against words that the packages which define them have written. Those of
// compressed-tensors pack-quantized are in format_packed_test.cc.
#include <gtest/gtest.h>

#include <map>

#include "projection_rig.h"

namespace perch_unit {
namespace {

// ---- pairs of e2m1 -----------------------------------------------------------------------------

const std::vector<float> kFp4Values = {0, -0.0f, .5f, -.5f, 1, -1, 1.5f, -1.5f,
                                       2, -2,    3,   -3,   4, -4, 6,    -6};
const std::vector<uint8_t> kFp4Bytes = {0x80, 0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7};

TEST(FormatGolden, CompressedTensorsNvfp4DividesByTheGlobalScale) {
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kU8, {1, 8}, kFp4Bytes);
  rig.add("weight_scale", RawDtype::kF8E4M3, {1, 1}, std::vector<uint8_t>{0x38});  // 1
  rig.add("weight_global_scale", RawDtype::kF32, {1}, std::vector<float>{4.0f});
  rig.add("input_global_scale", RawDtype::kF32, {1}, std::vector<float>{8.0f});
  Scheme scheme = quantized("compressed-tensors", 4, true, Strategy::kGroup, 16);
  scheme.act = static_act(PERCH_TYPE_E2M1);
  const MatrixPlan plan = must_plan(rig, scheme);
  EXPECT_EQ(plan.scale2, 0.25f);
  EXPECT_EQ(plan.input_scale, 0.125f);
  const std::vector<float> row = row_of(rig, plan, 0);
  for (size_t k = 0; k < 16; ++k) {
    EXPECT_EQ(std::bit_cast<uint32_t>(row[k]), std::bit_cast<uint32_t>(kFp4Values[k] / 4)) << k;
  }
}

TEST(FormatGolden, ModeloptNvfp4MultipliesByTheSecondScale) {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kU8, {1, 8}, kFp4Bytes);
  rig.add("weight_scale", RawDtype::kF8E4M3, {1, 1}, std::vector<uint8_t>{0x40});  // 2
  rig.add("weight_scale_2", RawDtype::kF32, {}, std::vector<float>{4.0f});
  rig.add("input_scale", RawDtype::kF32, {}, std::vector<float>{8.0f});
  Scheme scheme = quantized("modelopt", 4, true, Strategy::kGroup, 16);
  scheme.act = static_act(PERCH_TYPE_E2M1);
  const MatrixPlan plan = must_plan(rig, scheme);
  EXPECT_EQ(plan.input_scale, 8.0f);
  const std::vector<float> row = row_of(rig, plan, 0);
  for (size_t k = 0; k < 16; ++k) EXPECT_EQ(row[k], kFp4Values[k] * 8) << k;
}

TEST(FormatGolden, Mxfp4PairsUnderEachOfTheirNames) {
  std::vector<uint8_t> bytes = kFp4Bytes;
  bytes.insert(bytes.end(), kFp4Bytes.begin(), kFp4Bytes.end());
  const auto expect = [&](const ProjectionRig& rig, const Scheme& scheme) {
    const MatrixPlan plan = must_plan(rig, scheme);
    EXPECT_EQ(plan.quant.scale_dtype, PERCH_TYPE_E8M0);
    EXPECT_EQ(plan.quant.group_k, 32u);
    const std::vector<float> row = row_of(rig, plan, 0);
    for (size_t k = 0; k < 32; ++k) EXPECT_EQ(row[k], kFp4Values[k % 16] * 4) << k;
  };
  const std::vector<uint8_t> four = {129};
  ProjectionRig packed;
  packed.add("weight_packed", RawDtype::kU8, {1, 16}, bytes);
  packed.add("weight_scale", RawDtype::kU8, {1, 1}, four);
  expect(packed, quantized("compressed-tensors", 4, true, Strategy::kGroup, 32));
  ProjectionRig modelopt;
  modelopt.add("weight", RawDtype::kU8, {1, 16}, bytes)
      .add("weight_scale", RawDtype::kU8, {1, 1}, four);
  expect(modelopt, quantized("modelopt", 4, true, Strategy::kGroup, 32));
  ProjectionRig deepseek;
  deepseek.add("weight", RawDtype::kI8, {1, 16}, bytes)
      .add("scale", RawDtype::kF8E8M0, {1, 1}, four);
  expect(deepseek, quantized("fp8", 4, true, Strategy::kGroup, 32));
  ProjectionRig f4;
  f4.add("weight", RawDtype::kF4, {1, 32}, bytes)
      .add("weight_scale", RawDtype::kF8E8M0, {1, 1}, four);
  expect(f4, quantized("modelopt", 4, true, Strategy::kGroup, 32));
}

TEST(FormatGolden, GptOssBlocks) {
  std::vector<uint8_t> bytes;
  for (int block = 0; block < 2; ++block) {
    for (int i = 0; i < 16; ++i) bytes.push_back(static_cast<uint8_t>(17 * i + 35 * block));
  }
  ProjectionRig rig;
  rig.add("blocks", RawDtype::kU8, {1, 2, 16}, bytes);
  rig.add("scales", RawDtype::kU8, {1, 2}, std::vector<uint8_t>{126, 129});
  for (const Scheme& scheme : {quantized("mxfp4", 4, true, Strategy::kGroup, 32), unstated()}) {
    const MatrixPlan plan = must_plan(rig, scheme);
    const std::vector<float> row = row_of(rig, plan, 0);
    ASSERT_EQ(row.size(), 64u);
    EXPECT_EQ(std::vector<float>(row.begin(), row.begin() + 8),
              (std::vector<float>{0, 0, .25f, .25f, .5f, .5f, .75f, .75f}));
    EXPECT_EQ(std::vector<float>(row.begin() + 32, row.begin() + 40),
              (std::vector<float>{6, 4, 8, 6, 12, 8, 16, 12}));
    float sum = 0;
    float moment = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      sum += row[i];
      moment += static_cast<float>(i + 1) * row[i];
    }
    EXPECT_EQ(sum, 28.0f);
    EXPECT_EQ(moment, -644.0f);
  }
}

// ---- modelopt int4 -----------------------------------------------------------------------------

TEST(FormatGolden, ModeloptInt4PacksRowsInPairs) {
  const std::vector<int> q = {-8, -3, 2, 7, -5, 0, 5, -6, -2, 3, -8, -3, 1, 6, -5, 0};
  ProjectionRig rig;
  rig.add("weight", RawDtype::kU8, {2, 4},
          std::vector<uint8_t>{0xb8, 0x0d, 0x52, 0xa7, 0x1e, 0x63, 0xb8, 0x0d});
  rig.add("weight_scale", RawDtype::kF32, {4, 2}, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  rig.add("weight_scale_2", RawDtype::kF32, {}, std::vector<float>{0.5f});
  rig.add("pre_quant_scale", RawDtype::kBF16, {4}, std::vector<uint16_t>(4, 0x3f80));
  const MatrixPlan plan = must_plan(rig, quantized("modelopt", 4, false, Strategy::kGroup, 2));
  EXPECT_EQ(plan.quant.flags, PERCH_QUANT_HAS_PRE_SCALE);
  for (int n = 0; n < 4; ++n) {
    std::vector<float> want;
    for (int k = 0; k < 4; ++k) {
      want.push_back(static_cast<float>(q[static_cast<size_t>(4 * n + k)]) *
                     static_cast<float>(2 * n + k / 2 + 1) * 0.5f);
    }
    EXPECT_EQ(row_of(rig, plan, n), want) << n;
  }
}

// ---- AWQ ---------------------------------------------------------------------------------------

TEST(FormatGolden, AwqOrder) {
  const Words halves = {0x39f5e4a0, 0xb17d6c28, 0x6c2817d3, 0xe4a09f5b,
                        0x9f5b4a06, 0x17d3c28e, 0xc28e7d39, 0x4a06f5b1};
  Words words;
  for (size_t k = 0; k < 4; ++k) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      words.insert(words.end(), {halves[2 * k], halves[2 * k + 1]});
    }
  }
  std::vector<float> scales;
  for (int g = 0; g < 2; ++g) {
    for (int n = 0; n < 32; ++n) scales.push_back(.25f * static_cast<float>(1 + (n + g) % 4));
  }
  ProjectionRig rig;
  rig.add("qweight", RawDtype::kI32, {4, 4}, words);
  rig.add("qzeros", RawDtype::kI32, {2, 4},
          Words{0x75316420, 0xfdb9eca8, 0x75316420, 0xfdb9eca8, 0xb975a864, 0x31fd20ec, 0xb975a864,
                0x31fd20ec});
  rig.add("scales", RawDtype::kF16, {2, 32}, f16(scales));
  Scheme scheme = quantized("awq", 4, false, Strategy::kGroup, 2);
  scheme.symmetric = false;
  scheme.format = "gemm";
  const MatrixPlan plan = must_plan(rig, scheme);
  EXPECT_EQ(codes_of(rig, plan, whole(plan)),
            grid(32, 4, [](int n, int k) { return (5 * n + 3 * k) % 16; }));
  for (int n = 0; n < 32; ++n) {
    EXPECT_EQ(zeros_of(rig, plan, n), (std::vector<int>{n % 16, (n + 4) % 16})) << n;
  }
  const float want[] = {.75f, 3.5f, 8.25f, -1};
  for (int n = 0; n < 4; ++n) EXPECT_EQ(row_of(rig, plan, n)[1], want[n]) << n;
}

// ---- GPTQ --------------------------------------------------------------------------------------

Scheme gptq_scheme(int bits, int64_t group, bool version1 = false) {
  Scheme scheme = quantized("gptq", bits, false, Strategy::kGroup, group);
  scheme.symmetric = false;
  scheme.zeros_less_one = version1;
  return scheme;
}

struct GptqCase {
  int bits;
  Words column0;
  Words column1;  // as many words as are known
  Words zeros0;   // likewise
};

const GptqCase kGptq[] = {
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

// The matrix of kGptq: 32 x 32, groups of 16.
struct GptqMatrix {
  std::vector<Words> columns;  // of qweight, one per row of the matrix
  std::vector<Words> zeros;    // rows of qzeros

  explicit GptqMatrix(int bits) {
    const int mask = (1 << bits) - 1;
    for (int n = 0; n < 32; ++n) {
      columns.push_back(
          stream(grid(1, 32, [&](int, int k) { return (5 * k + 3 * n + 1) & mask; }), bits));
    }
    for (int g = 0; g < 2; ++g) {
      zeros.push_back(
          stream(grid(1, 32, [&](int, int n) { return (n + 2 * g + 1) & mask; }), bits));
    }
  }

  ProjectionRig rig() const {
    const auto rows = static_cast<int64_t>(columns[0].size());
    Words words;
    for (int64_t r = 0; r < rows; ++r) {
      for (const Words& column : columns) words.push_back(column[static_cast<size_t>(r)]);
    }
    Words zero_words = zeros[0];
    zero_words.insert(zero_words.end(), zeros[1].begin(), zeros[1].end());
    ProjectionRig rig;
    rig.add("qweight", RawDtype::kI32, {rows, 32}, words);
    rig.add("qzeros", RawDtype::kI32, {2, static_cast<int64_t>(zeros[0].size())}, zero_words);
    rig.add("scales", RawDtype::kF16, {2, 32}, f16(std::vector<float>(64, 0.5f)));
    std::vector<int32_t> g_idx;
    for (int k = 0; k < 32; ++k) g_idx.push_back(k / 16);
    rig.add("g_idx", RawDtype::kI32, {32}, g_idx);
    return rig;
  }
};

TEST(FormatGolden, GptqWords) {
  const auto starts_with = [](const Words& words, const Words& first) {
    return std::equal(first.begin(), first.end(), words.begin());
  };
  for (const GptqCase& one : kGptq) {
    SCOPED_TRACE(one.bits);
    const GptqMatrix matrix(one.bits);
    EXPECT_TRUE(starts_with(matrix.columns[0], one.column0));
    EXPECT_TRUE(starts_with(matrix.columns[1], one.column1));
    EXPECT_TRUE(starts_with(matrix.zeros[0], one.zeros0));
    const ProjectionRig rig = matrix.rig();
    const MatrixPlan plan = must_plan(rig, gptq_scheme(one.bits, 16));
    EXPECT_EQ(plan.quant.k_order, PERCH_K_NATURAL);
    const int mask = (1 << one.bits) - 1;
    EXPECT_EQ(codes_of(rig, plan, whole(plan)),
              grid(32, 32, [&](int n, int k) { return (5 * k + 3 * n + 1) & mask; }));
    for (int n = 0; n < 32; ++n) {
      EXPECT_EQ(zeros_of(rig, plan, n), (std::vector<int>{(n + 1) & mask, (n + 3) & mask})) << n;
    }
  }
}

TEST(FormatGolden, GptqVersion1) {
  GptqMatrix matrix(4);
  for (Words& row : matrix.zeros) {
    for (uint32_t& word : row) word -= 0x11111111;
  }
  EXPECT_EQ(matrix.zeros[0][0], 0x76543210u);
  EXPECT_EQ(matrix.zeros[0][1], 0xfedcba98u);
  const ProjectionRig rig = matrix.rig();
  const MatrixPlan plan = must_plan(rig, gptq_scheme(4, 16, true));
  for (int n = 0; n < 32; ++n) {
    EXPECT_EQ(zeros_of(rig, plan, n), (std::vector<int>{(n + 1) % 16, (n + 3) % 16})) << n;
  }
}

// A zero point of 0 borrows from the field above it: only arithmetic on whole words undoes that.
TEST(FormatGolden, GptqVersion1BorrowsAcrossFields) {
  for (const int bits : {2, 4, 8}) {
    SCOPED_TRACE(bits);
    GptqMatrix matrix(bits);
    const int mask = (1 << bits) - 1;
    const auto zero = [&](int n) { return n % 3 == 0 ? 0 : n & mask; };
    const uint32_t ones = 0xFFFFFFFFu / static_cast<uint32_t>(mask);
    for (Words& row : matrix.zeros) {
      row = stream(grid(1, 32, [&](int, int n) { return zero(n); }), bits);
      for (uint32_t& word : row) word -= ones;
    }
    const ProjectionRig rig = matrix.rig();
    const MatrixPlan plan = must_plan(rig, gptq_scheme(bits, 16, true));
    for (int n = 0; n < 32; ++n) EXPECT_EQ(zeros_of(rig, plan, n)[0], zero(n)) << n;
  }
}

TEST(FormatGolden, GptqVersion1ThreeBitsGoCodeByCode) {
  GptqMatrix matrix(3);
  for (Words& row : matrix.zeros) {
    row = stream(grid(1, 32, [](int, int n) { return (n + 7) % 8; }), 3);
  }
  const ProjectionRig rig = matrix.rig();
  const MatrixPlan plan = must_plan(rig, gptq_scheme(3, 16, true));
  for (int n = 0; n < 32; ++n) EXPECT_EQ(zeros_of(rig, plan, n)[1], n % 8) << n;
}

// Symmetric files say themselves which version they are, whatever their label.
TEST(FormatGolden, GptqSymmetricIsTheMidpointInEitherVersion) {
  const std::map<int, std::pair<uint32_t, uint32_t>> words = {
      {2, {0x55555555, 0xAAAAAAAA}}, {4, {0x77777777, 0x88888888}}, {8, {0x7F7F7F7F, 0x80808080}}};
  for (const int bits : {2, 3, 4, 8}) {
    for (const int stored : {(1 << (bits - 1)) - 1, 1 << (bits - 1)}) {
      GptqMatrix matrix(bits);
      for (Words& row : matrix.zeros) row = stream(std::vector<int>(32, stored), bits);
      if (words.contains(bits)) {
        const auto& [less_one, plain] = words.at(bits);
        EXPECT_EQ(matrix.zeros[0][0], stored == 1 << (bits - 1) ? plain : less_one);
      }
      for (const bool version1 : {false, true}) {
        Scheme scheme = gptq_scheme(bits, 16, version1);
        scheme.symmetric = true;
        const MatrixPlan plan = must_plan(matrix.rig(), scheme);
        EXPECT_EQ(plan.quant.zero_kind, PERCH_ZERO_MIDPOINT) << bits << " " << stored;
      }
      EXPECT_EQ(must_plan(matrix.rig(), unstated()).quant.zero_kind, PERCH_ZERO_MIDPOINT);
    }
  }
}

TEST(FormatGolden, GptqActOrder) {
  std::vector<float> scales;
  for (int g = 0; g < 2; ++g) {
    for (int n = 0; n < 8; ++n) scales.push_back(.5f * static_cast<float>(1 + (n + g) % 4));
  }
  ProjectionRig rig;
  rig.add("qweight", RawDtype::kI32, {1, 8},
          Words{0x4fa50b61, 0x72d83e94, 0xa50b61c7, 0xd83e94fa, 0x0b61c72d, 0x3e94fa50, 0x61c72d83,
                0x94fa50b6});
  rig.add("qzeros", RawDtype::kI32, {2, 1}, Words{0x87654321, 0xa9876543});
  rig.add("scales", RawDtype::kF16, {2, 8}, f16(scales));
  rig.add("g_idx", RawDtype::kI32, {8}, std::vector<int32_t>{1, 0, 0, 1, 1, 0, 1, 0});
  Scheme scheme = gptq_scheme(4, 4);
  scheme.act_order = true;
  const MatrixPlan plan = must_plan(rig, scheme);
  EXPECT_EQ(plan.quant.k_order, PERCH_K_G_IDX);
  EXPECT_EQ(row_of(rig, plan, 0), (std::vector<float>{-2, 2.5f, 5, -3, 2, 4.5f, 12, 1.5f}));
  EXPECT_EQ(row_of(rig, plan, 3), (std::vector<float>{2, 22, 0, 1.5f, 4, -2, 1, 18}));
}

}  // namespace
}  // namespace perch_unit
