// Every slice of a matrix is the slice of the whole, for each format, however it is stored.
#include <gtest/gtest.h>

#include <random>

#include "projection_rig.h"
#include "stored_matrices.h"

namespace perch_unit {
namespace {

// N and K of the small matrices, of which all slices are read; and of the large ones, which cross
// the blocks and tiles of the readers.
constexpr int64_t kSmallN = 8;
constexpr int64_t kSmallK = 16;
constexpr int64_t kLargeN = 200;
constexpr int64_t kLargeK = 320;

class FormatSlices : public testing::TestWithParam<StoredMatrix> {};
INSTANTIATE_TEST_SUITE_P(All, FormatSlices, testing::ValuesIn(kStoredMatrices),
                         [](const auto& one) { return one.param.name; });

// The slice out of packed rows of the whole, code by code; of wide types byte by byte.
std::vector<uint8_t> cut(const std::vector<uint8_t>& rows, const MatrixPlan& plan,
                         const MatrixSlice& slice) {
  const int bits = perch::type_bits(plan.quant.weight);
  const int unit = bits > 8 ? 8 : bits;
  const int64_t scale = bits / unit;
  const int64_t from = perch::numeric::packed_row_bytes(plan.k, bits);
  const int64_t to = perch::numeric::packed_row_bytes(slice.k1 - slice.k0, bits);
  std::vector<uint8_t> out(static_cast<size_t>((slice.n1 - slice.n0) * to));
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    for (int64_t i = slice.k0 * scale; i < slice.k1 * scale; ++i) {
      const uint32_t code = perch::numeric::get_code(rows.data() + n * from, i, unit);
      perch::numeric::put_code(out.data() + (n - slice.n0) * to, i - slice.k0 * scale, unit, code);
    }
  }
  return out;
}

void expect_slice(const ProjectionRig& rig, const MatrixPlan& plan, const std::vector<uint8_t>& all,
                  const MatrixSlice& slice) {
  ASSERT_EQ(packed_rows(rig, plan, slice), cut(all, plan, slice))
      << "rows " << slice.n0 << " to " << slice.n1 << ", columns " << slice.k0 << " to "
      << slice.k1;
}

TEST_P(FormatSlices, SmallMatrixEverySlice) {
  for (const bool turned : {false, true}) {
    ProjectionRig rig;
    GetParam().build(rig, kSmallN, kSmallK, GetParam().dtype, turned);
    const MatrixPlan plan = must_plan(rig, GetParam().scheme);
    const std::vector<uint8_t> all = packed_rows(rig, plan, whole(plan));
    for (int64_t n0 = 0; n0 <= plan.n; ++n0) {
      for (int64_t n1 = n0; n1 <= plan.n; ++n1) {
        for (int64_t k0 = 0; k0 <= kSmallK; ++k0) {
          for (int64_t k1 = k0; k1 <= kSmallK; ++k1) expect_slice(rig, plan, all, {n0, n1, k0, k1});
        }
      }
    }
  }
}

TEST_P(FormatSlices, LargeMatrixSomeSlices) {
  std::mt19937_64 random(11);
  for (const bool turned : {false, true}) {
    ProjectionRig rig;
    GetParam().build(rig, kLargeN, kLargeK, GetParam().dtype, turned);
    const MatrixPlan plan = must_plan(rig, GetParam().scheme);
    const std::vector<uint8_t> all = packed_rows(rig, plan, whole(plan));
    for (int i = 0; i < 20; ++i) {
      const auto pick = [&](int64_t size) {
        const auto a = static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1));
        const auto b = static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1));
        return std::pair(std::min(a, b), std::max(a, b));
      };
      const auto [n0, n1] = pick(plan.n);
      const auto [k0, k1] = pick(plan.k);
      expect_slice(rig, plan, all, {n0, n1, k0, k1});
    }
  }
}

// A turned tensor holds the transpose: element (n,k) is where (k,n) of the other would be.
TEST(FormatTurned, IsTheTranspose) {
  constexpr int64_t kN = 70;
  constexpr int64_t kK = 37;
  ProjectionRig rig;
  const auto values = random_of<uint16_t>(kN * kK);
  rig.add("weight", RawDtype::kF16, {kK, kN}, values).turn("weight");
  const MatrixPlan plan = must_plan(rig, plain_floats());
  const std::vector<uint8_t> rows = packed_rows(rig, plan, whole(plan));
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      uint16_t value = 0;
      std::memcpy(&value, rows.data() + (n * kK + k) * 2, sizeof(value));
      ASSERT_EQ(value, values[static_cast<size_t>(k * kN + n)]) << n << ", " << k;
    }
  }
}

// Turned and interleaved: the rows of one half are every other column of what is stored.
TEST(FormatTurned, OfEveryOtherColumn) {
  constexpr int64_t kN = 70;
  constexpr int64_t kK = 12;
  ProjectionRig rig;
  const auto values = random_of<uint8_t>(2 * kN * kK);
  rig.add("weight", RawDtype::kF8E4M3, {kK, 2 * kN}, values).turn("weight");
  rig.add("weight_scale", RawDtype::kF32, {}, std::vector<float>{1});
  RawView& view = rig.view("weight");
  view.rows = kN;
  view.row_stride = 2;
  view.offset = 1;
  const MatrixPlan plan = must_plan(rig, unstated());
  const std::vector<uint8_t> rows = packed_rows(rig, plan, whole(plan));
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      ASSERT_EQ(rows[static_cast<size_t>(n * kK + k)],
                values[static_cast<size_t>(k * 2 * kN + 2 * n + 1)]);
    }
  }
}

}  // namespace
}  // namespace perch_unit
