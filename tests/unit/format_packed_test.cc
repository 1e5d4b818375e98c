// compressed-tensors pack-quantized, both packings, against words that the package has written.
#include <gtest/gtest.h>

#include <map>

#include "projection_rig.h"

namespace perch_unit {
namespace {

Scheme pack_scheme(int bits, const std::string& version = "0.18.0") {
  Scheme scheme = quantized("compressed-tensors", bits, false, Strategy::kChannel);
  scheme.version = version;
  return scheme;
}

ProjectionRig packed_row(int64_t k, const Words& words) {
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kI32, {1, static_cast<int64_t>(words.size())}, words);
  rig.add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{1, k});
  rig.add("weight_scale", RawDtype::kF16, {1, 1}, f16({0.5f}));
  return rig;
}

void expect_packed(int bits, int64_t k, const Words& words, const Scheme& scheme) {
  SCOPED_TRACE(testing::Message() << bits << " bits, K " << k);
  const ProjectionRig rig = packed_row(k, words);
  const MatrixPlan plan = must_plan(rig, scheme);
  EXPECT_EQ(plan.quant.weight, PERCH_TYPE_INT1 + static_cast<uint32_t>(bits) - 1);
  const int mask = (1 << bits) - 1;
  EXPECT_EQ(codes_of(rig, plan, whole(plan)),
            grid(1, static_cast<int>(k), [&](int, int i) { return (5 * i + 3) & mask; }));
}

const std::map<int, Words> kDense = {
    {1, {0x55555555}},
    {2, {0x93939393, 0x93939393}},
    {3, {0x43c67543, 0x7543c675, 0xc67543c6}},
    {4, {0x61c72d83, 0xe94fa50b, 0x61c72d83, 0xe94fa50b}},
    {5, {0x79793503, 0xfd560b30, 0x77137249, 0x1bb45871, 0xf668f514}},
    {6, {0x1748d203, 0x5c2b9a17, 0x38913feb, 0x2789d613, 0x503bdb1b, 0x79950f28}},
    {7, {0x72434403, 0x2b4c84e1, 0x23f74d58, 0x6c539d26, 0xc7667c57, 0x41407bed, 0x3c64a0f1}},
    {8,
     {0x120d0803, 0x26211c17, 0x3a35302b, 0x4e49443f, 0x625d5853, 0x76716c67, 0x8a85807b,
      0x9e99948f}}};
const std::map<int, Words> kByWord = {
    {3, {0x03c67543, 0x150f19d5, 0x27543c67, 0x00000031}},
    {5, {0x39793503, 0x35582cc1, 0x3137249f, 0x2d161c5d, 0x28f5141b, 0x000003d9}},
    {6, {0x1748d203, 0x30ae685c, 0x0913feb5, 0x227584ce, 0x3bdb1b27, 0x143ca140, 0x00000799}},
    {7,
     {0x02434403, 0x04c84e17, 0x074d582b, 0x09d2623f, 0x0c576c53, 0x0edc7667, 0x0141407b,
      0x03c64a0f}}};

TEST(FormatPacked, Dense) {
  for (const auto& [bits, words] : kDense) expect_packed(bits, 32, words, pack_scheme(bits));
}

TEST(FormatPacked, ByWord) {
  // The number of columns decides, whatever the version says.
  for (const auto& [bits, words] : kByWord) {
    expect_packed(bits, 32, words, pack_scheme(bits, "0.17.1"));
    expect_packed(bits, 32, words, pack_scheme(bits, ""));
  }
}

TEST(FormatPacked, PartialWords) {
  expect_packed(3, 10, {0x03c67543}, pack_scheme(3, ""));
  expect_packed(3, 11, {0x43c67543, 0x00000001}, pack_scheme(3, "0.18.0"));
  expect_packed(6, 16, {0x1748d203, 0x5c2b9a17, 0x38913feb}, pack_scheme(6, ""));
}

TEST(FormatPacked, VersionDecidesBetweenEqualSizes) {
  const Words by_word = {0x03c67543, 0x00000005};
  for (const char* version : {"0.17.1", "0.17.0", "0.16.0", "0.9.4", "0.15.0.1"}) {
    expect_packed(3, 11, by_word, pack_scheme(3, version));
  }
  for (const char* version : {"0.18.0", "0.18.1.a20260801", "0.20.0", "1.0.0"}) {
    expect_packed(3, 11, {0x43c67543, 0x00000001}, pack_scheme(3, version));
  }
  for (const char* version : {"", "0.17.2", "0.17.2.a20260701", "newest", "0"}) {
    EXPECT_NE(refusal(packed_row(11, by_word), pack_scheme(3, version)).find("version"),
              std::string::npos)
        << version;
  }
  // A version is any text, and a message one line.
  EXPECT_NE(refusal(packed_row(11, by_word), pack_scheme(3, "a\nb")).find("\"a\\x0ab\""),
            std::string::npos);
}

TEST(FormatPacked, WidthByShape) {
  expect_packed(2, 32, kDense.at(2), unstated());
  Words longer = kDense.at(4);
  longer.insert(longer.end(), kDense.at(4).begin(), kDense.at(4).end());
  expect_packed(4, 64, longer, unstated());
  // Six words are 6 bits densely or 5 by word.
  EXPECT_NE(refusal(packed_row(32, kDense.at(6)), unstated()).find("5 and 6 bits"),
            std::string::npos);
}

TEST(FormatPacked, ZeroPointsAlongRows) {
  const int stored[8][2] = {{3, 8}, {13, 2}, {7, 12}, {1, 6}, {11, 0}, {5, 10}, {15, 4}, {9, 14}};
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kI32, {8, 2}, Words(16));
  rig.add("weight_shape", RawDtype::kI32, {2}, std::vector<int32_t>{8, 16});
  rig.add("weight_scale", RawDtype::kBF16, {8, 2}, std::vector<uint16_t>(16, 0x3f80));
  rig.add("weight_zero_point", RawDtype::kI32, {1, 2}, Words{0x9f5b17d3, 0xe4a06c28});
  Scheme scheme = quantized("compressed-tensors", 4, false, Strategy::kGroup, 8);
  scheme.symmetric = false;
  const MatrixPlan plan = must_plan(rig, scheme);
  EXPECT_EQ(plan.quant.zero_kind, PERCH_ZERO_INT);
  for (int n = 0; n < 8; ++n) {
    EXPECT_EQ(zeros_of(rig, plan, n), (std::vector<int>{stored[n][0], stored[n][1]})) << n;
  }
  EXPECT_EQ(row_of(rig, plan, 1)[15], -2.0f);
}

// A matrix of 40 rows with a zero point each, at bits that do not tile a word.
ProjectionRig rows_with_zeros(int bits, bool dense) {
  std::vector<int> zeros;
  for (int n = 0; n < 40; ++n) zeros.push_back((7 * n + 1) & ((1 << bits) - 1));
  Words words = stream(zeros, bits);
  if (!dense) {
    words.clear();
    const auto per_word = static_cast<size_t>(32 / bits);
    for (size_t n = 0; n < zeros.size(); n += per_word) {
      const auto end = zeros.begin() + static_cast<int64_t>(std::min(zeros.size(), n + per_word));
      words.push_back(stream({zeros.begin() + static_cast<int64_t>(n), end}, bits)[0]);
    }
  }
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kI32, {40, 1}, Words(40));
  rig.add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{40, 4});
  rig.add("weight_scale", RawDtype::kF16, {40, 1}, f16(std::vector<float>(40, 1.0f)));
  rig.add("weight_zero_point", RawDtype::kI32, {static_cast<int64_t>(words.size()), 1}, words);
  return rig;
}

TEST(FormatPacked, ZeroPointsCrossWordsAsCodesDo) {
  for (const int bits : {3, 5, 6, 7}) {
    for (const bool dense : {true, false}) {
      SCOPED_TRACE(testing::Message() << bits << (dense ? " dense" : " by word"));
      // Four codes are one word either way; forty zero points are not, mostly.
      Scheme scheme = pack_scheme(bits, dense ? "0.18.0" : "0.17.1");
      scheme.symmetric = false;
      const ProjectionRig rig = rows_with_zeros(bits, dense);
      const MatrixPlan plan = must_plan(rig, scheme);
      for (int n = 0; n < 40; ++n) {
        EXPECT_EQ(zeros_of(rig, plan, n)[0], (7 * n + 1) & ((1 << bits) - 1)) << n;
      }
    }
  }
}

TEST(FormatPacked, ZeroPointsOfAByteEach) {
  ProjectionRig rig = packed_row(32, kDense.at(4));
  rig.add("weight_scale", RawDtype::kF32, {1}, std::vector<float>{1.0f});
  rig.add("weight_zero_point", RawDtype::kI8, {1}, std::vector<int8_t>{-3});
  Scheme scheme = quantized("compressed-tensors", 4, false, Strategy::kTensor);
  scheme.symmetric = false;
  const MatrixPlan plan = must_plan(rig, scheme);
  // Stored zero points need a scale for each row, so the one scale is seen as that.
  EXPECT_EQ(plan.quant.scale_kind, PERCH_SCALE_CHANNEL);
  EXPECT_EQ(zeros_of(rig, plan, 0), std::vector<int>{5});
  rig.add("weight_zero_point", RawDtype::kI8, {1}, std::vector<int8_t>{8});
  EXPECT_NE(refusal(rig, scheme).find("got 8; want -8 to 7"), std::string::npos)
      << refusal(rig, scheme);
}

TEST(FormatPacked, ActOrder) {
  ProjectionRig rig = packed_row(32, kDense.at(4));
  rig.add("weight_scale", RawDtype::kF32, {1, 2}, std::vector<float>{1.0f, 2.0f});
  std::vector<int32_t> g_idx;
  for (int k = 0; k < 32; ++k) g_idx.push_back(k % 2);
  rig.add("weight_g_idx", RawDtype::kI32, {32}, g_idx);
  Scheme scheme = quantized("compressed-tensors", 4, false, Strategy::kGroup, 16);
  scheme.act_order = true;
  MatrixPlan plan = must_plan(rig, scheme);
  EXPECT_EQ(plan.quant.k_order, PERCH_K_G_IDX);
  EXPECT_EQ(row_of(rig, plan, 0)[1], 0.0f);    // (8 - 8) * 2
  EXPECT_EQ(row_of(rig, plan, 0)[3], -12.0f);  // (2 - 8) * 2
  // All unset: the order is natural.
  rig.add("weight_g_idx", RawDtype::kI32, {32}, std::vector<int32_t>(32, -1));
  EXPECT_EQ(must_plan(rig, scheme).quant.k_order, PERCH_K_NATURAL);
  g_idx[5] = -1;
  rig.add("weight_g_idx", RawDtype::kI32, {32}, g_idx);
  EXPECT_NE(refusal(rig, scheme).find("got 1 of 32 elements unset"), std::string::npos);
  g_idx[5] = 2;
  rig.add("weight_g_idx", RawDtype::kI32, {32}, g_idx);
  EXPECT_NE(refusal(rig, scheme).find("element 5: got 2; want a group, 0 to 1"), std::string::npos);
}

}  // namespace
}  // namespace perch_unit
