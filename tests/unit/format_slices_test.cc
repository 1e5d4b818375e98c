// Every slice of a matrix is the slice of the whole, for each format, however it is stored.
#include <gtest/gtest.h>

#include <random>

#include "projection_rig.h"

namespace perch_unit {
namespace {

// N and K of the small matrices, of which all slices are read; and of the large ones, which cross
// the blocks and tiles of the readers.
constexpr int64_t kSmallN = 8;
constexpr int64_t kSmallK = 16;
constexpr int64_t kLargeN = 200;
constexpr int64_t kLargeK = 320;

struct SliceCase {
  const char* name;
  RawDtype dtype;
  Scheme scheme;
  // The weight's tensor for N and K, filled at random; a "turned" one is stored transposed.
  void (*build)(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned);
};

template <typename T>
std::vector<T> random_of(int64_t count) {
  static std::mt19937_64 random(7);
  std::vector<T> out(static_cast<size_t>(count));
  for (T& value : out) value = static_cast<T>(random());
  return out;
}

void add_weight(ProjectionRig& rig, const char* suffix, RawDtype dtype, int64_t rows,
                int64_t columns, bool turned) {
  const int64_t bytes = rows * columns * perch::raw_dtype_bits(dtype) / 8;
  if (!turned) {
    rig.add(suffix, dtype, {rows, columns}, random_of<uint8_t>(bytes));
    return;
  }
  rig.add(suffix, dtype, {columns, rows}, random_of<uint8_t>(bytes)).turn(suffix);
}

void build_plain(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  add_weight(rig, "weight", dtype, n, k, turned);
  if (perch::is_float_dtype(dtype)) return;
  rig.add("weight_scale", RawDtype::kF32, {}, std::vector<float>{1});
  if (dtype == RawDtype::kF4) {
    rig.add("weight_scale", RawDtype::kF8E8M0, {n, k / 16}, random_of<uint8_t>(n * k / 16));
  }
}

void build_pairs(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  add_weight(rig, "weight_packed", dtype, n, k / 2, turned);
  rig.add("weight_scale", RawDtype::kU8, {n, k / 16}, random_of<uint8_t>(n * k / 16));
}

void build_blocks(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  const int64_t blocks = (k + 31) / 32;
  add_weight(rig, "blocks", dtype, n, blocks * 16, turned);
  rig.add("scales", RawDtype::kU8, {n, blocks}, random_of<uint8_t>(n * blocks));
}

template <int bits, bool dense>
void build_packed(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  const int64_t words = dense ? (k * bits + 31) / 32 : (k + 32 / bits - 1) / (32 / bits);
  add_weight(rig, "weight_packed", dtype, n, words, turned);
  rig.add("weight_scale", RawDtype::kF32, {n}, std::vector<float>(static_cast<size_t>(n), 1));
  rig.add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{n, k});
}

// 3 bits are whole words only for each 32 of K.
template <int bits>
void build_gptq(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool) {
  const int64_t columns = bits == 3 ? (k + 31) / 32 * 32 : k;
  rig.add("qweight", dtype, {columns * bits / 32, n}, random_of<uint32_t>(columns * bits / 32 * n));
  rig.add("scales", RawDtype::kF16, {1, n}, random_of<uint16_t>(n));
}

void build_awq(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool) {
  rig.add("qweight", dtype, {k, n / 8}, random_of<uint32_t>(k * n / 8));
  rig.add("scales", RawDtype::kF16, {1, n}, random_of<uint16_t>(n));
}

void build_modelopt(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  add_weight(rig, "weight", dtype, n / 2, k, turned);
  rig.add("weight_scale", RawDtype::kF32, {n, 1}, std::vector<float>(static_cast<size_t>(n), 1));
}

Scheme plain() {
  Scheme scheme;
  scheme.act = perch::make_act_none();
  return scheme;
}

Scheme packed(int bits, const char* version) {
  Scheme scheme = quantized("compressed-tensors", bits, false, Strategy::kChannel);
  scheme.version = version;
  return scheme;
}

const SliceCase kCases[] = {
    {"f32", RawDtype::kF32, plain(), build_plain},
    {"bf16", RawDtype::kBF16, plain(), build_plain},
    {"int8", RawDtype::kI8, quantized("modelopt", 8, false, Strategy::kTensor), build_plain},
    {"fp8", RawDtype::kF8E4M3, quantized("fp8", 8, true, Strategy::kTensor), build_plain},
    {"f4", RawDtype::kF4, quantized("modelopt", 4, true, Strategy::kGroup, 16), build_plain},
    {"fp4_pairs", RawDtype::kU8, quantized("modelopt", 4, true, Strategy::kGroup, 16), build_pairs},
    {"mxfp4_blocks", RawDtype::kU8, quantized("mxfp4", 4, true, Strategy::kGroup, 32),
     build_blocks},
    {"packed1", RawDtype::kI32, packed(1, "0.18.0"), build_packed<1, true>},
    {"packed2", RawDtype::kI32, packed(2, "0.18.0"), build_packed<2, true>},
    {"packed3", RawDtype::kI32, packed(3, "0.18.0"), build_packed<3, true>},
    {"packed3_by_word", RawDtype::kI32, packed(3, "0.17.1"), build_packed<3, false>},
    {"packed4", RawDtype::kI32, packed(4, "0.18.0"), build_packed<4, true>},
    {"packed5", RawDtype::kI32, packed(5, "0.18.0"), build_packed<5, true>},
    {"packed5_by_word", RawDtype::kI32, packed(5, "0.17.1"), build_packed<5, false>},
    {"packed6", RawDtype::kI32, packed(6, "0.18.0"), build_packed<6, true>},
    {"packed6_by_word", RawDtype::kI32, packed(6, "0.17.1"), build_packed<6, false>},
    {"packed7", RawDtype::kI32, packed(7, "0.18.0"), build_packed<7, true>},
    {"packed7_by_word", RawDtype::kI32, packed(7, "0.17.1"), build_packed<7, false>},
    {"packed8", RawDtype::kI32, packed(8, "0.18.0"), build_packed<8, true>},
    {"gptq2", RawDtype::kI32, quantized("gptq", 2, false, Strategy::kChannel), build_gptq<2>},
    {"gptq3", RawDtype::kI32, quantized("gptq", 3, false, Strategy::kChannel), build_gptq<3>},
    {"gptq4", RawDtype::kI32, quantized("gptq", 4, false, Strategy::kChannel), build_gptq<4>},
    {"gptq8", RawDtype::kI32, quantized("gptq", 8, false, Strategy::kChannel), build_gptq<8>},
    {"awq", RawDtype::kI32, quantized("awq", 4, false, Strategy::kChannel), build_awq},
    {"modelopt_int4", RawDtype::kU8, quantized("modelopt", 4, false, Strategy::kChannel),
     build_modelopt},
};

class FormatSlices : public testing::TestWithParam<SliceCase> {};
INSTANTIATE_TEST_SUITE_P(All, FormatSlices, testing::ValuesIn(kCases),
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
  const MatrixPlan plan = must_plan(rig, plain());
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
