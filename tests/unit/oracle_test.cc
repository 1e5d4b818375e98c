// The oracle on layers small enough for a pencil, and on cases of the field reports (A1, C7, D6,
// E1, F3), whose right values are those of the reports.
#include <cmath>
#include <limits>

#include "agree/agreement.h"
#include "agree/quantize_input.h"
#include "oracle_rig.h"

namespace perch_unit {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
using Values = std::vector<double>;

// Of relu2 without a gate: y_e = w2 * max(w13 * x, 0)^2 of one number.
OracleRig squares(const std::string& recipe, const std::vector<float>& w13,
                  const std::vector<float>& w2) {
  const std::string experts = std::to_string(w13.size());
  OracleRig rig("moe t1 e" + experts + " top" + experts + " h1 i1 w=f32 act=relu2_no_mul " +
                recipe);
  for (size_t e = 0; e < w13.size(); ++e) {
    rig.set_floats(e, "w13", {w13[e]});
    rig.set_floats(e, "w2", {w2[e]});
  }
  return rig;
}

std::vector<OracleVisit> all_experts(const OracleRig& rig, float weight) {
  std::vector<OracleVisit> visits;
  for (size_t e = 0; e < rig.experts.size(); ++e) {
    visits.push_back({static_cast<int64_t>(e), weight});
  }
  return visits;
}

// ---- Values ------------------------------------------------------------------------------------

TEST(Oracle, LinearByHand) {
  OracleRig rig("linear t1 n2 k3 w=f32+bias in=f32 o=f32");
  rig.set_floats(0, "w", {1, 2, 3, -1, 0.5f, 0});
  rig.set_floats(0, "w.bias", {10, -1});
  const Oracle oracle = rig.evaluate({{{1, -2, 4}, {}}, {{0, 0, 1}, {}}});
  EXPECT_EQ(oracle.rows, 2);
  EXPECT_EQ(oracle.columns, 2);
  EXPECT_EQ(oracle.value, (Values{19, -3, 13, -1}));
  EXPECT_EQ(oracle.s, (Values{27, 3, 13, 1}));
  EXPECT_EQ(oracle.mid, (Values{0, 0, 0, 0}));
  EXPECT_EQ(oracle.flips, (Values{0, 0, 0, 0}));
  EXPECT_EQ(oracle.exact, (std::vector<unsigned char>{1, 1, 1, 1}));
}

TEST(Oracle, NoRows) {
  OracleRig rig("linear t1 n2 k3 w=f32 in=f32 o=f32");
  rig.set_floats(0, "w", {1, 2, 3, -1, 0.5f, 0});
  EXPECT_TRUE(rig.evaluate({}).value.empty());
}

TEST(Oracle, A1NonGated) {
  OracleRig rig("moe t1 e1 top1 h4 i3 w=f32 act=relu2_no_mul in=f32 o=f32");
  rig.set_floats(0, "w13", {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0});
  rig.set_floats(0, "w2", {1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1});
  const Oracle oracle = rig.evaluate({{{1, 2, -1, 0.5f}, {{0, 1}}}});
  EXPECT_EQ(oracle.value, (Values{5, 1, 4, 0}));
  EXPECT_EQ(oracle.exact, (std::vector<unsigned char>{1, 1, 1, 1}));
}

TEST(Oracle, A5GateThenUp) {
  OracleRig rig("moe t1 e1 top1 h1 i2 w=f32 act=silu in=f32 o=f32");
  rig.set_floats(0, "w13", {1, 2, 3, 5});
  rig.set_floats(0, "w2", {1, 10});
  EXPECT_NEAR(rig.value({1}, {{0, 1}}), 90.27288353, 1e-8);
}

TEST(Oracle, C7WeightOnInput) {
  for (const bool on_input : {true, false}) {
    OracleRig rig(std::string("moe t1 e1 top1 h1 i1 w=f32 act=silu in=f32 o=f32") +
                  (on_input ? " wx" : ""));
    rig.set_floats(0, "w13", {1, 1});
    rig.set_floats(0, "w2", {1});
    EXPECT_NEAR(rig.value({2}, {{0, 0.5f}}), on_input ? 0.73105858 : 1.76159416, 1e-8);
  }
}

TEST(Oracle, WeightOnInputIsRoundedToTheInputsType) {
  OracleRig rig = squares("in=bf16 o=f32", {1}, {1});
  rig.config.moe().topk = 1;
  rig.config.moe().flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
  // 3 * (1 + 2^-8) = 3.0117 lies between 3 and 3.015625, nearer to the latter.
  EXPECT_EQ(rig.value({3}, {{0, 1.00390625f}}), 3.015625 * 3.015625);
}

TEST(Oracle, D6SumOverSlots) {
  const OracleRig three = squares("", {1, 1, 1}, {1, 0x1p-9f, -1});
  EXPECT_EQ(three.value({1}, all_experts(three, 1)), 0x1p-9);
  const OracleRig eight = squares("", std::vector<float>(8, 1), {256, 1, 1, 1, 1, 1, 1, 1});
  const Oracle oracle = eight.evaluate({{{1}, all_experts(eight, 1)}});
  EXPECT_EQ(oracle.value, Values{263});
  EXPECT_TRUE(perch::compare_exact(eight.config, oracle, Values{264}).ok);
  EXPECT_FALSE(perch::compare_exact(eight.config, oracle, Values{256}).ok);
}

TEST(Oracle, D6NothingIsStoredInF16) {
  const OracleRig rig = squares("in=f16 o=f16", {14, 14}, {178, 180});
  const Oracle oracle = rig.evaluate({{{1}, all_experts(rig, 0.5f)}});
  EXPECT_EQ(oracle.value, Values{35084});
  const perch::ExactAgreement agreement = perch::compare_exact(rig.config, oracle, Values{35072});
  EXPECT_TRUE(agreement.ok);
  EXPECT_EQ(agreement.compared, 1);
  EXPECT_FALSE(perch::compare_rows(rig.config, 0, oracle, Values{HUGE_VAL}, oracle.value).ok);
  OracleRig linear("linear t1 n1 k4096 w=f16 in=f16 o=f16");
  linear.set(0, "w", std::vector<uint16_t>(4096, 0x3C00));
  EXPECT_EQ(linear.value(std::vector<float>(4096, 1)), 4096);
}

TEST(Oracle, NoVisitIsExactlyZero) {
  const OracleRig rig = squares("", {1}, {kInf});
  const Oracle oracle = rig.evaluate({{{1}, {}}});
  EXPECT_EQ(oracle.value, Values{0});
  EXPECT_EQ(oracle.exact[0], 1);
}

TEST(Oracle, EachHalfOfW13HasItsOwnGroupOrder) {
  OracleRig rig("moe t1 e1 top1 h2 i1 w=int4g1:f32+z0+gidx w2=f32 act=relu2 in=f32 o=f32");
  rig.set_codes(0, "w13", {0x11, 0x11});
  rig.set_floats(0, "w13.scale", {1, 10, 1, 10});
  rig.set(0, "w13.g_idx", std::vector<int32_t>{0, 1, 1, 0});
  rig.set_floats(0, "w2", {1, 2});
  // gate 1 + 2 * 10, up 10 + 2
  EXPECT_EQ(rig.values({{{1, 2}, {{0, 1}}}}), (Values{21 * 21 * 12, 2 * 21 * 21 * 12}));
}

TEST(Oracle, PreScaleIsRoundedWhereTheInputIsNotQuantized) {
  const auto value = [](const std::string& recipe) {
    OracleRig rig("linear t1 n1 k1 w=f32+pre o=f32 " + recipe);
    rig.set_floats(0, "w", {1});
    rig.set_floats(0, "w.pre_scale", {1.00390625f});
    return rig.value({3});
  };
  EXPECT_EQ(value("in=bf16"), 3.015625);
  EXPECT_EQ(value("in=f32"), 3.01171875);
  EXPECT_NEAR(value("in=bf16 a=int8t"), 3.01171875, 1e-6);  // code 127, always
}

// ---- Quantized inputs --------------------------------------------------------------------------

// What the numbers of a row stand for: rows of the identity times x.
Values quantized(const std::string& recipe, const std::vector<float>& x, float input_scale = 0) {
  const std::string size = std::to_string(x.size());
  OracleRig rig("linear t1 n" + size + " k" + size + " w=f32 in=f32 o=f32 " + recipe);
  std::vector<float> identity(x.size() * x.size(), 0);
  for (size_t i = 0; i < x.size(); ++i) identity[i * x.size() + i] = 1;
  rig.set_floats(0, "w", identity);
  if (input_scale != 0) rig.set_floats(0, "w.input_scale", {input_scale});
  return rig.values({{x, {}}});
}

TEST(OracleInput, E1E4m3Token) {
  EXPECT_NEAR(quantized("a=e4m3t", {1, 0.3f})[1], 0.28571429, 1e-8);
  // Another row of the same call changes nothing.
  OracleRig rig("linear t1 n1 k2 w=f32 a=e4m3t in=f32 o=f32");
  rig.set_floats(0, "w", {0, 1});
  const Values both = rig.values({{{1, 0.3f}, {}}, {{1000, 0}, {}}});
  EXPECT_EQ(both[0], rig.value({1, 0.3f}));
  EXPECT_EQ(both[1], 0);
}

TEST(OracleInput, F3Int8Token) {
  EXPECT_EQ(quantized("a=int8t", {100.4f, 0.3f})[1], 0);
  EXPECT_EQ(quantized("a=int8t", {0, 0}), (Values{0, 0}));
  // Ties go to the even code: s = 1.
  EXPECT_EQ(quantized("a=int8t", {127, 0.5f, 1.5f, -2.5f}), (Values{127, 0, 2, -2}));
}

TEST(OracleInput, GroupsHaveTheirOwnScaleAndTheLastMayBeShort) {
  EXPECT_EQ(quantized("a=int8g2", {127, 0.4f, 254, 0.9f, 12.7f}),
            (Values{127, 0, 254, 0, 127 * double{12.7f / 127.0f}}));
}

TEST(OracleInput, E8m0ScalesArePowersOfTwo) {
  EXPECT_EQ(quantized("a=int8t:e8m0", {127, 0.5f}), (Values{127, 0}));
  EXPECT_EQ(quantized("a=int8t:e8m0", {127.5f, 3, 1}), (Values{128, 4, 0}));  // scale 2
  EXPECT_EQ(quantized("a=e2m1g4", {6, 1.2f, -0.3f, 0.2f}), (Values{6, 1, -0.5, 0}));
  EXPECT_EQ(quantized("a=e2m1g4", {6.5f, 1.2f, -0.3f, 0.6f}), (Values{6, 1, 0, 1}));  // scale 2
  EXPECT_EQ(quantized("a=e2m1g4", {0, 0, 0, 0}), (Values{0, 0, 0, 0}));
  EXPECT_EQ(quantized("a=e4m3t:e8m0", {448, 17}), (Values{448, 16}));
}

TEST(OracleInput, StaticSaturates) {
  EXPECT_EQ(quantized("a=int8s", {100, -100, 0.26f}, 0.5f), (Values{63.5, -63.5, 0.5}));
  EXPECT_EQ(quantized("a=e4m3s", {1000, -1, 0.3f}, 1), (Values{448, -1, 0.3125}));
}

TEST(OracleInput, Nvfp4) {
  // g = e4m3(6 / (6 * 0.5)) = 2, s = 1; the second group's g is 0.
  EXPECT_EQ(quantized("a=e2m1sg4", {6, 3, 1, 0.4f, 1e-4f, 0, 0, 0}, 0.5f),
            (Values{6, 3, 1, 0.5, 0, 0, 0, 0}));
  // g = e4m3(7 / 6 = 1.1667) = 1.125: 7 saturates at 6.
  EXPECT_EQ(quantized("a=e2m1sg4", {7, 3, 1, 0}, 1), (Values{6.75, 3.375, 1.125, 0}));
}

TEST(OracleInput, NanSpoilsItsRowOnly) {
  for (const char* recipe : {"a=int8t", "a=e4m3g2", "a=int8s", ""}) {
    for (const float bad : {kNan, kInf}) {
      OracleRig rig(std::string("linear t1 n1 k4 w=f32 in=f32 o=f32 ") + recipe);
      rig.set_floats(0, "w", {1, 1, 1, 1});
      rig.set_floats(0, "w.input_scale", {0.5f});
      const Oracle oracle = rig.evaluate({{{1, 2, bad, 4}, {}}, {{1, 2, 3, 4}, {}}});
      if (*recipe == '\0' && bad == kInf) {
        EXPECT_EQ(oracle.value[0], HUGE_VAL);
      } else {
        EXPECT_TRUE(std::isnan(oracle.value[0])) << recipe;
      }
      EXPECT_EQ(oracle.exact[0], 0);
      EXPECT_NEAR(oracle.value[1], 10, 0.5) << recipe;
    }
  }
}

TEST(OracleInput, SecondInputIsQuantizedToo) {
  OracleRig rig("moe t1 e1 top1 h2 i2 w=f32 a2=int8t act=relu2_no_mul in=f32 o=f32");
  rig.set_floats(0, "w13", {1, 0, 0, 1});
  rig.set_floats(0, "w2", {1, 0, 0, 1});
  const Oracle oracle = rig.evaluate({{{0x1p3f, 0.5f}, {{0, 1}}}});  // a = 64, 0.25
  EXPECT_NEAR(oracle.value[0], 64, 1e-5);
  EXPECT_EQ(oracle.value[1], 0);  // 0.25 * 127/64 = 0.496 is nearer to 0 than to 1
  EXPECT_EQ(oracle.flips[1], 0);  // and not near enough to 0.5 to be a matter of rounding
  const Oracle tie = rig.evaluate({{{std::sqrt(127.0f), std::sqrt(0.5f)}, {{0, 1}}}});
  EXPECT_NEAR(tie.flips[1], 1, 1e-5);
}

// 127 has scale 1; a little more has scale 2, where 3 is the tie between codes 1 and 2.
TEST(OracleInput, AScaleThatMayBeAnother) {
  perch_act_quant act = perch::make_act_none();
  act.dtype = PERCH_TYPE_INT8;
  act.mode = PERCH_ACT_TOKEN;
  act.scale_dtype = PERCH_TYPE_E8M0;
  const std::vector<float> x{127, 3};
  std::vector<perch::QuantizedError> errors(2);
  double step = 0;
  perch::quantized_errors(act, 0, x, Values{1e-3, 0}, errors.data(), &step);
  EXPECT_EQ(step, 1);
  EXPECT_EQ(errors[1].scale, 1);
  EXPECT_EQ(errors[1].tie, 0);
  perch::quantized_errors(act, 0, x, Values{0, 0.6}, errors.data(), &step);
  EXPECT_EQ(errors[1].scale, 0);
  EXPECT_EQ(errors[1].tie, 2);
}

// ---- Exactness ---------------------------------------------------------------------------------

TEST(OracleExact, Linear) {
  OracleRig rig("linear t1 n1 k2 w=f32 in=f32 o=f32");
  rig.set_floats(0, "w", {1, 0x1p-30f});
  EXPECT_FALSE(rig.exact({1, 1}));
  EXPECT_TRUE(rig.exact({0, 1}));
  EXPECT_TRUE(rig.exact({1, 0}));
  EXPECT_TRUE(rig.exact({0x1p-30f, 1}));
  EXPECT_FALSE(rig.exact({0x1p-30f, 0x1p-110f}));  // 2^-140 may be flushed
  EXPECT_FALSE(rig.exact({0.1f, 0.1f}));
}

TEST(OracleExact, AWeightThatIsRoundedIsNot) {
  const auto exact = [](float scale, const char* recipe) {
    OracleRig rig(std::string("linear t1 n1 k1 w=int4c:f32 o=f32 ") + recipe);
    rig.set_codes(0, "w", {11});  // 3 above the middle
    rig.set_floats(0, "w.scale", {scale});
    return rig.exact({1});
  };
  EXPECT_TRUE(exact(0.5f, "in=f32"));
  EXPECT_FALSE(exact(0.1f, "in=f32"));
  // 3 * 43 = 129 has 8 bits, 3 * 87 = 261 has 9: a bf16 operand would round it.
  EXPECT_TRUE(exact(43, "in=bf16"));
  EXPECT_FALSE(exact(87, "in=bf16"));
  EXPECT_TRUE(exact(87, "in=f32"));
}

TEST(OracleExact, AllowedRoundingsMustChangeNothing) {
  const auto exact = [](const std::string& recipe, float x) {
    return squares(recipe, {1}, {1}).exact({x}, {{0, 1}});
  };
  EXPECT_TRUE(exact("", 12));    // 144 = 9 * 16
  EXPECT_FALSE(exact("", 255));  // 65025 has 16 bits, bf16 8
  EXPECT_TRUE(exact("o=f32", 255));
  EXPECT_FALSE(exact("o=f32", 4097));  // 4097^2 has 25 bits
  EXPECT_TRUE(exact("in=f16 o=f16", 31));
  EXPECT_FALSE(exact("in=f16 o=f16", 300));  // a is beyond f16
  EXPECT_FALSE(exact("a2=int8t o=f32", 12));
  OracleRig fixed = squares("a2=int8s o=f32", {1}, {1});
  fixed.set_floats(0, "w2.input_scale", {2});
  EXPECT_TRUE(fixed.exact({12}, {{0, 1}}));
  EXPECT_EQ(fixed.value({12}, {{0, 1}}), 144);
}

TEST(OracleExact, OnlyWhatIsMadeOfProducts) {
  OracleRig rig("moe t1 e1 top1 h1 i1 w=f32 act=silu in=f32 o=f32");
  rig.set_floats(0, "w13", {1, 1});
  rig.set_floats(0, "w2", {1});
  EXPECT_FALSE(rig.exact({1}, {{0, 1}}));
}

TEST(OracleExact, SumOverSlots) {
  const OracleRig rig = squares("o=f32", {1, 1}, {1, 0x1p-30f});
  EXPECT_FALSE(rig.exact({1}, all_experts(rig, 1)));
  EXPECT_TRUE(rig.exact({1}, {{1, 1}}));
  EXPECT_TRUE(rig.exact({1}, {{0, 1}, {1, 0}}));
  EXPECT_FALSE(rig.exact({1}, {{0, 0.1f}, {0, 0.3f}}));
}

// ---- What cannot be evaluated ------------------------------------------------------------------

TEST(Oracle, RefusesWhatDoesNotFit) {
  OracleRig rig = squares("", {1}, {1});
  EXPECT_NE(rig.try_evaluate({{{1, 2}, {}}}).status().message().find("got 2 values; want 1"),
            std::string::npos);
  EXPECT_NE(rig.try_evaluate({{{1}, {{1, 1}}}}).status().message().find("got expert 1; want 0..0"),
            std::string::npos);
  rig.experts[0].erase("w2");
  EXPECT_NE(rig.try_evaluate({{{1}, {{0, 1}}}}).status().message().find("'w2' is missing"),
            std::string::npos);
}

}  // namespace
}  // namespace perch_unit
