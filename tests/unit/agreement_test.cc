// The comparison: what it must find (field report F5), what it must let pass, and how near a kernel
// that uses every freedom of the contract comes to what is allowed.
#include "agree/agreement.h"

#include <algorithm>
#include <cmath>

#include "agree/exact_sum.h"
#include "agree/quantize_input.h"
#include "oracle_rig.h"

namespace perch_unit {
namespace {

using perch::Agreement;
using Values = std::vector<double>;

constexpr size_t kRows = 100;
constexpr size_t kColumns = 16;

std::vector<OracleRow> random_rows(const LayerConfig& config, size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<OracleRow> rows(count);
  for (OracleRow& row : rows) {
    row.x = OracleRig::random_floats(static_cast<unsigned>(rng()),
                                     static_cast<size_t>(config.columns(0)), 2);
    for (float& x : row.x) x = perch::round_once(config.abi().in_dtype, x);
    for (uint32_t slot = 0; slot < config.moe().topk; ++slot) {
      const float weight = std::uniform_real_distribution<float>(0.1f, 1)(rng);
      row.visits.push_back({static_cast<int64_t>(rng() % config.moe().num_experts), weight});
    }
  }
  return rows;
}

Values rounded(uint32_t type, Values values) {
  for (double& value : values) {
    value = double{perch::round_once(type, static_cast<float>(value))};
  }
  return values;
}

// ---- F5: a comparison that can fail ------------------------------------------------------------

class AgreementTest : public testing::Test {
 protected:
  AgreementTest() : rig("moe t1 e4 top2 h16 i24 w=f32 act=silu") {
    rig.randomize(3, 1);
    rows = random_rows(rig.config, kRows, 7);
    oracle = rig.evaluate(rows);
    want = rounded(PERCH_TYPE_BF16, oracle.value);
    got = want;
  }
  Agreement compare(int makers = 1) const {
    return perch::compare_rows(rig.config, 0, oracle, got, want, makers);
  }
  void expect_found_in_row(int64_t row) const {
    const Agreement agreement = compare();
    EXPECT_FALSE(agreement.ok);
    EXPECT_GT(agreement.worst_ratio, 1);
    EXPECT_EQ(agreement.row, row);
    const auto at =
        static_cast<size_t>(agreement.row) * kColumns + static_cast<size_t>(agreement.column);
    EXPECT_TRUE(agreement.got == got[at] || std::isnan(got[at]));
    EXPECT_TRUE(agreement.want == want[at] || std::isnan(want[at]));
  }
  // What the layer gives with other weights in place of its own.
  Values with(const OracleRig& other) const {
    return rounded(PERCH_TYPE_BF16, other.evaluate(rows).value);
  }

  OracleRig rig;
  std::vector<OracleRow> rows;
  Oracle oracle;
  Values want, got;
};

TEST_F(AgreementTest, AnExactCopyPasses) {
  const Agreement agreement = compare();
  EXPECT_TRUE(agreement.ok);
  EXPECT_EQ(agreement.worst_ratio, 0);
  EXPECT_EQ(agreement.worst_row_share, 0);
  EXPECT_GT(agreement.allowed, 0);
}

TEST_F(AgreementTest, TheOracleRoundedOncePasses) {
  want = oracle.value;
  EXPECT_TRUE(compare().ok);
  EXPECT_GT(compare().worst_ratio, 0);
}

TEST_F(AgreementTest, OneRowOfAHundredZeroed) {
  std::fill_n(got.begin() + 17 * kColumns, kColumns, 0.0);
  expect_found_in_row(17);
  EXPECT_EQ(compare().got, 0);
  EXPECT_NEAR(compare().worst_row_l2, 1, 1e-12);
}

TEST_F(AgreementTest, AllZerosWhereTheOutputIsSmall) {
  rig.randomize(3, 1, 1e-4f);
  oracle = rig.evaluate(rows);
  want = rounded(PERCH_TYPE_BF16, oracle.value);
  EXPECT_LT(std::fabs(want[0]), 1e-3);
  got.assign(want.size(), 0.0);
  EXPECT_FALSE(compare().ok);
  EXPECT_GT(compare().worst_ratio, 10);
}

TEST_F(AgreementTest, GateAndUpSwapped) {
  OracleRig swapped = rig;
  for (size_t e = 0; e < 4; ++e) {
    std::vector<float> w13 = rig.floats(e, "w13");
    std::rotate(w13.begin(), w13.begin() + static_cast<int64_t>(w13.size() / 2), w13.end());
    swapped.set_floats(e, "w13", w13);
  }
  got = with(swapped);
  EXPECT_FALSE(compare().ok);
  EXPECT_NE(compare().got, compare().want);
}

TEST_F(AgreementTest, OneExpertsScaleDoubled) {
  OracleRig doubled = rig;
  std::vector<float> w2 = rig.floats(2, "w2");
  for (float& w : w2) w *= 2;
  doubled.set_floats(2, "w2", w2);
  got = with(doubled);
  const Agreement agreement = compare();
  EXPECT_FALSE(agreement.ok);
  const std::vector<OracleVisit>& visits = rows[static_cast<size_t>(agreement.row)].visits;
  EXPECT_TRUE(visits[0].expert == 2 || visits[1].expert == 2);
}

TEST_F(AgreementTest, NanInOneElement) {
  got[99 * kColumns + 15] = std::nan("");
  expect_found_in_row(99);
  EXPECT_TRUE(std::isnan(compare().got));
}

TEST_F(AgreementTest, ExtraNanInBoth) {
  got[42 * kColumns] = want[42 * kColumns] = std::nan("");
  expect_found_in_row(42);
}

TEST_F(AgreementTest, InfinityInOneElementOrBoth) {
  got[5 * kColumns] = HUGE_VAL;
  expect_found_in_row(5);
  want[5 * kColumns] = HUGE_VAL;
  expect_found_in_row(5);
  got[5 * kColumns] = 1;
  expect_found_in_row(5);
}

TEST_F(AgreementTest, ANumberWhereNanIsRight) {
  rows[8].x[3] = std::nanf("");
  oracle = rig.evaluate(rows);
  const Values with_nan = rounded(PERCH_TYPE_BF16, oracle.value);
  EXPECT_TRUE(std::isnan(with_nan[8 * kColumns]));
  want = with_nan;
  expect_found_in_row(8);
  want = got;  // two that are wrong in the same way
  expect_found_in_row(8);
  want = got = with_nan;
  EXPECT_TRUE(compare().ok);
}

// Every element within its own limit, all of them at nine tenths of it.
TEST_F(AgreementTest, ARowThatIsEverywhereNearlyWrong) {
  const Agreement at_rest = compare();
  want = got = oracle.value;
  for (size_t k = 0; k < kColumns; ++k) {
    const size_t at = 30 * kColumns + k;
    double low = 0, high = 1;
    for (int i = 0; i < 60; ++i) {
      got[at] = want[at] + (low + high) / 2;
      (compare().worst_ratio < 0.9 ? low : high) = (low + high) / 2;
    }
    got[at] = want[at] + low;
  }
  EXPECT_LT(compare().worst_ratio, 1);
  EXPECT_GT(compare().worst_row_share, 1);
  EXPECT_FALSE(compare().ok);
  EXPECT_TRUE(at_rest.ok);
}

TEST_F(AgreementTest, TwoMakersMayDifferTwiceAsFar) {
  got[0] += 1;
  EXPECT_DOUBLE_EQ(compare(2).allowed, 2 * compare(1).allowed);
  EXPECT_DOUBLE_EQ(compare(2).worst_ratio, compare(1).worst_ratio / 2);
}

TEST(Agreement, AnOverflowIsOneOnlyWhereItMayBe) {
  OracleRig rig("linear t1 n1 k1 w=f32 in=f32 o=f16");
  rig.set_floats(0, "w", {1});
  const auto passes = [&](float exact, double got) {
    const Oracle oracle = rig.evaluate({{{exact}, {}}});
    return perch::compare_rows(rig.config, 0, oracle, Values{got}, oracle.value).ok;
  };
  EXPECT_TRUE(passes(70000, HUGE_VAL));
  EXPECT_FALSE(passes(70000, -HUGE_VAL));
  EXPECT_FALSE(passes(60000, HUGE_VAL));
  EXPECT_TRUE(passes(65519, HUGE_VAL));
  EXPECT_TRUE(passes(65519, 65504));
  EXPECT_FALSE(passes(70000, 65504));
}

TEST(Agreement, RoundedWeightsAreAllowedWhereTheyAreSaidToBe) {
  OracleRig rig("linear t1 n1 k1 w=int4g1:f32 in=bf16 o=f32");
  rig.set_codes(0, "w", {15});
  rig.set_floats(0, "w.scale", {0.123f});
  const Oracle oracle = rig.evaluate({{{1}, {}}});
  const Values got = rounded(PERCH_TYPE_BF16, oracle.value);
  EXPECT_FALSE(perch::compare_rows(rig.config, 0, oracle, got, oracle.value).ok);
  EXPECT_TRUE(
      perch::compare_rows(rig.config, PERCH_SUPPORT_ROUNDS_WEIGHTS, oracle, got, oracle.value).ok);
}

// ---- A kernel that uses every freedom ----------------------------------------------------------

// f32 sums from the first term on; h, a and y_e rounded to `mid`.
struct Kernel {
  const OracleRig& rig;
  uint32_t mid;

  std::vector<float> gemm(const std::vector<float>& w, const std::vector<float>& x) const {
    std::vector<float> y(w.size() / x.size(), 0);
    for (size_t n = 0; n < y.size(); ++n) {
      for (size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * x[k];
      y[n] = perch::round_once(mid, y[n]);
    }
    return y;
  }

  std::vector<float> second_input(const std::vector<float>& a) const {
    const perch_act_quant& act = rig.config.act_second();
    if (act.mode == PERCH_ACT_NONE) return a;
    std::vector<double> values(a.size());
    perch::quantize_input(act, 0.02f, a, values.data());
    return {values.begin(), values.end()};
  }

  Values run(const OracleRow& row) const {
    std::vector<float> y(static_cast<size_t>(rig.config.moe().hidden), 0);
    for (const OracleVisit& visit : row.visits) {
      const auto expert = static_cast<size_t>(visit.expert);
      const std::vector<float> h = gemm(rig.floats(expert, "w13"), row.x);
      std::vector<float> a(h.size() / 2);
      for (size_t i = 0; i < a.size(); ++i) {
        const float f = h[i] / (1 + std::exp(-h[i])) * h[i + a.size()];
        a[i] = perch::round_once(mid, f);
      }
      const std::vector<float> y_e = gemm(rig.floats(expert, "w2"), second_input(a));
      for (size_t n = 0; n < y.size(); ++n) y[n] += visit.weight * y_e[n];
    }
    return rounded(rig.config.abi().out_dtype, Values(y.begin(), y.end()));
  }
};

struct KernelRow {
  const char* line;
  double reached;  // of the limit, at least: a limit that grows looser fails here
};

class KernelTest : public testing::TestWithParam<KernelRow> {};

TEST_P(KernelTest, IsWithinTheLimit) {
  OracleRig rig(GetParam().line);
  rig.randomize(11, 0.25f);
  const bool rounds = rig.config.act_second().mode == PERCH_ACT_NONE &&
                      rig.config.abi().out_dtype == PERCH_TYPE_BF16;
  for (size_t e = 0; e < rig.experts.size(); ++e) rig.set_floats(e, "w2.input_scale", {0.02f});
  const std::vector<OracleRow> rows = random_rows(rig.config, 64, 13);
  const Kernel kernel{rig, rounds ? PERCH_TYPE_BF16 : PERCH_TYPE_F32};
  Values got;
  for (const OracleRow& row : rows) {
    const Values y = kernel.run(row);
    got.insert(got.end(), y.begin(), y.end());
  }
  const Oracle oracle = rig.evaluate(rows);
  const Agreement agreement = perch::compare_rows(rig.config, 0, oracle, got, oracle.value);
  EXPECT_TRUE(agreement.ok) << agreement.worst_ratio << " at [" << agreement.row << ","
                            << agreement.column << "], row share " << agreement.worst_row_share;
  EXPECT_GE(agreement.worst_ratio, GetParam().reached);
}

constexpr KernelRow kKernelRows[] = {
    {"moe t1 e4 top2 h64 i48 w=f32 act=silu", 0.25},
    {"moe t1 e4 top2 h64 i256 w=f32 act=silu", 0.25},
    {"moe t1 e4 top2 h256 i768 w=f32 act=silu", 0.35},
    {"moe t1 e4 top2 h64 i48 w=f32 act=silu in=f32 o=f32", 0.007},
    {"moe t1 e4 top2 h256 i256 w=f32 act=silu in=f32 o=f32", 0.002},
    {"moe t1 e4 top2 h64 i48 w=f32 a2=int8t act=silu in=f32 o=f32", 0.006},
    {"moe t1 e4 top2 h256 i256 w=f32 a2=int8t act=silu in=f32 o=f32", 0.002},
    {"moe t1 e4 top2 h64 i256 w=f32 a2=int8g32:e8m0 act=silu in=f32 o=f32", 0.02},
    {"moe t1 e4 top2 h64 i256 w=f32 a2=e4m3g32 act=silu in=f32 o=f32", 0.2},
    {"moe t1 e4 top2 h64 i256 w=f32 a2=e4m3s act=silu in=f32 o=f32", 0.02},
    {"moe t1 e4 top2 h64 i256 w=f32 a2=e2m1g32 act=silu in=f32 o=f32", 0.02},
    {"moe t1 e4 top2 h64 i256 w=f32 a2=e2m1sg16 act=silu in=f32 o=f32", 0.02},
};
INSTANTIATE_TEST_SUITE_P(Recipes, KernelTest, testing::ValuesIn(kKernelRows), [](const auto& row) {
  std::string name = row.param.line;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
});

}  // namespace
}  // namespace perch_unit
