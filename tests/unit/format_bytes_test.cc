// The formats of whole bytes, INT8 and FP8, and plain floats: each shape that their scales have.
#include <gtest/gtest.h>

#include "projection_rig.h"

namespace perch_unit {
namespace {

ProjectionRig int8_rig() {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kI8, {2, 4}, std::vector<int8_t>{-128, -1, 0, 1, 127, 2, -3, 4});
  return rig;
}

TEST(FormatInt8, ScalesByTensorChannelGroupAndBlock) {
  ProjectionRig rig = int8_rig();
  rig.add("weight_scale", RawDtype::kF32, {}, std::vector<float>{0.5f});
  MatrixPlan plan = must_plan(rig, quantized("modelopt", 8, false, Strategy::kTensor));
  EXPECT_EQ(plan.quant.scale_kind, PERCH_SCALE_TENSOR);
  EXPECT_EQ(codes_of(rig, plan, whole(plan)),
            (std::vector<int>{0, 127, 128, 129, 255, 130, 125, 132}));
  EXPECT_EQ(row_of(rig, plan, 0), (std::vector<float>{-64, -.5f, 0, .5f}));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, std::vector<int64_t>{2, 1}}) {
    rig.add("weight_scale", RawDtype::kBF16, shape, std::vector<uint16_t>{0x3f80, 0x4000});
    for (const Scheme& scheme : {quantized("modelopt", 8, false, Strategy::kChannel), unstated()}) {
      plan = must_plan(rig, scheme);
      EXPECT_EQ(plan.quant.scale_kind, PERCH_SCALE_CHANNEL);
      EXPECT_EQ(row_of(rig, plan, 1), (std::vector<float>{254, 4, -6, 8}));
    }
  }
  rig.add("weight_scale", RawDtype::kF16, {2, 2}, f16({1, 2, 3, 4}));
  plan = must_plan(rig, quantized("compressed-tensors", 8, false, Strategy::kGroup, 2));
  EXPECT_EQ(row_of(rig, plan, 1), (std::vector<float>{381, 6, -12, 16}));
  // The last group is short.
  plan = must_plan(rig, quantized("compressed-tensors", 8, false, Strategy::kGroup, 3));
  EXPECT_EQ(row_of(rig, plan, 1), (std::vector<float>{381, 6, -9, 16}));
  rig.drop("weight_scale")
      .add("weight_scale_inv", RawDtype::kF32, {1, 2}, std::vector<float>{2, 3});
  Scheme block = block_scheme(2, 2);
  block.is_float = false;
  plan = must_plan(rig, block);
  EXPECT_EQ(plan.quant.scale_kind, PERCH_SCALE_BLOCK);
  EXPECT_EQ(row_of(rig, plan, 1), (std::vector<float>{254, 4, -9, 12}));
}

TEST(FormatInt8, ZeroPoints) {
  ProjectionRig rig = int8_rig();
  rig.add("weight_scale", RawDtype::kF16, {2, 2}, f16({1, 1, 1, 1}));
  rig.add("weight_zero_point", RawDtype::kI8, {2, 2}, std::vector<int8_t>{-128, 0, 1, 127});
  Scheme scheme = quantized("compressed-tensors", 8, false, Strategy::kGroup, 2);
  scheme.symmetric = false;
  MatrixPlan plan = must_plan(rig, scheme);
  EXPECT_EQ(zeros_of(rig, plan, 1), (std::vector<int>{129, 255}));
  EXPECT_EQ(row_of(rig, plan, 0), (std::vector<float>{0, 127, 0, 1}));
  EXPECT_EQ(row_of(rig, plan, 1), (std::vector<float>{126, 1, -130, -123}));
  rig.add("weight_scale", RawDtype::kF16, {1}, f16({2}));
  rig.add("weight_zero_point", RawDtype::kI8, {1}, std::vector<int8_t>{1});
  scheme.strategy = Strategy::kTensor;
  plan = must_plan(rig, scheme);
  EXPECT_EQ(plan.quant.scale_kind, PERCH_SCALE_CHANNEL);
  EXPECT_EQ(row_of(rig, plan, 1), (std::vector<float>{252, 2, -8, 6}));
}

// 0x38 is 1 in e4m3, 0x3c in e5m2.
ProjectionRig fp8_rig(int64_t n, int64_t k) {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kF8E4M3, {n, k},
          std::vector<uint8_t>(static_cast<size_t>(n * k), 0x38));
  return rig;
}

TEST(FormatFp8, BlocksOfWhichTheLastArePartial) {
  ProjectionRig rig = fp8_rig(5, 7);
  rig.add("weight_scale_inv", RawDtype::kF32, {3, 3},
          std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9});
  const MatrixPlan plan = must_plan(rig, block_scheme(2, 3));
  EXPECT_EQ(plan.quant.scale_kind, PERCH_SCALE_BLOCK);
  EXPECT_EQ(row_of(rig, plan, 3), (std::vector<float>{4, 4, 4, 5, 5, 5, 6}));
  EXPECT_EQ(row_of(rig, plan, 4), (std::vector<float>{7, 7, 7, 8, 8, 8, 9}));
  // Without a configuration blocks are 128 x 128.
  ProjectionRig usual = fp8_rig(130, 200);
  usual.add("weight_scale_inv", RawDtype::kF32, {2, 2}, std::vector<float>{1, 2, 3, 4});
  const MatrixPlan by_shape = must_plan(usual, unstated());
  EXPECT_EQ(by_shape.quant.group_n, 128u);
  EXPECT_EQ(row_of(usual, by_shape, 129)[199], 4.0f);
}

TEST(FormatFp8, GridsMayBePaddedButNotFiner) {
  ProjectionRig rig = fp8_rig(4, 6);
  rig.add("weight_scale_inv", RawDtype::kF32, {3, 3}, std::vector<float>(9, 1));
  EXPECT_EQ(must_plan(rig, block_scheme(2, 2)).scale->view.rows, 3);
  rig.add("weight_scale_inv", RawDtype::kF32, {4, 3}, std::vector<float>(12, 1));
  EXPECT_NE(refusal(rig, block_scheme(2, 2)).find("want [2, 3] or a little padding more"),
            std::string::npos)
      << refusal(rig, block_scheme(2, 2));
}

// Gate and up of 3 rows each share the middle row of blocks of 2.
TEST(FormatFp8, HalvesOfAFusedTensorShareBlocks) {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kF8E4M3, {1, 6, 2}, std::vector<uint8_t>(12, 0x38));
  rig.add("weight_scale_inv", RawDtype::kF32, {1, 3, 1}, std::vector<float>{1, 2, 3});
  RawView& scale = rig.view("weight_scale_inv");
  scale.rows = 3;
  scale.columns = scale.row_stride = 1;
  RawView& weight = rig.view("weight");
  weight.rows = 3;
  weight.columns = weight.row_stride = 2;
  MatrixPlan plan = must_plan(rig, block_scheme(2, 2));
  for (int n = 0; n < 3; ++n) EXPECT_EQ(row_of(rig, plan, n)[0], static_cast<float>(n / 2 + 1));
  rig.projection.fused_rows_before = 3;
  plan = must_plan(rig, block_scheme(2, 2));
  for (int n = 0; n < 3; ++n) {
    EXPECT_EQ(row_of(rig, plan, n)[0], static_cast<float>((n + 3) / 2 + 1));
  }
}

// Two rows each, in blocks of two: the grid of both is twice as tall as a half needs.
TEST(FormatFp8, HalvesOfAFusedTensorSeeTheGridOfBoth) {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kF8E4M3, {1, 4, 2}, std::vector<uint8_t>(8, 0x38));
  rig.add("weight_scale_inv", RawDtype::kF32, {1, 2, 1}, std::vector<float>{1, 2});
  RawView& scale = rig.view("weight_scale_inv");
  scale.rows = 2;
  scale.columns = scale.row_stride = 1;
  RawView& weight = rig.view("weight");
  weight.rows = weight.columns = weight.row_stride = 2;
  EXPECT_EQ(row_of(rig, must_plan(rig, block_scheme(2, 2)), 1)[0], 1.0f);
  rig.projection.fused_rows_before = 2;
  EXPECT_EQ(row_of(rig, must_plan(rig, block_scheme(2, 2)), 1)[0], 2.0f);
}

TEST(FormatFp8, BlocksOfOneRowAreGroups) {
  ProjectionRig rig = fp8_rig(2, 4);
  rig.add("weight_scale_inv", RawDtype::kF32, {2, 2}, std::vector<float>{1, 2, 3, 4});
  const MatrixPlan plan = must_plan(rig, block_scheme(1, 2));
  EXPECT_EQ(plan.quant.scale_kind, PERCH_SCALE_GROUP);
  EXPECT_EQ(plan.quant.group_n, 0u);
  EXPECT_EQ(row_of(rig, plan, 1), (std::vector<float>{3, 3, 4, 4}));
}

TEST(FormatFp8, ModeloptGridOfRankFour) {
  ProjectionRig rig = fp8_rig(3, 4);
  rig.add("weight_scale", RawDtype::kF32, {2, 1, 2, 1}, std::vector<float>{1, 2, 3, 4});
  const MatrixPlan plan = must_plan(rig, block_scheme(2, 2));
  EXPECT_EQ(row_of(rig, plan, 2), (std::vector<float>{3, 3, 4, 4}));
}

TEST(FormatFp8, MicroscaledGroups) {
  ProjectionRig rig = fp8_rig(1, 64);
  rig.add("weight_scale", RawDtype::kU8, {1, 2}, std::vector<uint8_t>{0, 130});
  for (const Scheme& scheme : {quantized("modelopt", 8, true, Strategy::kGroup, 32), unstated()}) {
    const MatrixPlan plan = must_plan(rig, scheme);
    EXPECT_EQ(plan.quant.scale_dtype, PERCH_TYPE_E8M0);
    EXPECT_EQ(plan.quant.group_k, 32u);
    // Byte 0 is 2^-127, an f32 subnormal.
    EXPECT_EQ(std::bit_cast<uint32_t>(row_of(rig, plan, 0)[0]), 0x00400000u);
    EXPECT_EQ(row_of(rig, plan, 0)[32], 8.0f);
  }
}

TEST(FormatFp8, E5m2) {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kF8E5M2, {1, 2}, std::vector<uint8_t>{0x3c, 0xbc});
  rig.add("weight_scale", RawDtype::kF32, {1, 1}, std::vector<float>{3});
  const MatrixPlan plan = must_plan(rig, quantized("fp8", 8, true, Strategy::kTensor));
  EXPECT_EQ(row_of(rig, plan, 0), (std::vector<float>{3, -3}));
}

TEST(FormatFp8, StaticInputUnderBothNames) {
  for (const char* name : {"input_scale", "activation_scale"}) {
    ProjectionRig rig = fp8_rig(2, 2);
    rig.add("weight_scale", RawDtype::kF32, {1}, std::vector<float>{1});
    rig.add(name, RawDtype::kBF16, {1}, std::vector<uint16_t>{0x3f00});
    Scheme scheme = quantized("fp8", 8, true, Strategy::kTensor);
    EXPECT_FALSE(must_plan(rig, scheme).input_scale.has_value()) << "a dynamic input reads none";
    scheme.act = static_act(PERCH_TYPE_E4M3FN);
    EXPECT_EQ(must_plan(rig, scheme).input_scale, 0.5f);
  }
}

TEST(FormatFloat, EachTypeAndBias) {
  const std::pair<RawDtype, uint32_t> types[] = {{RawDtype::kF16, PERCH_TYPE_F16},
                                                 {RawDtype::kBF16, PERCH_TYPE_BF16}};
  for (const auto& [dtype, type] : types) {
    ProjectionRig rig;
    rig.add("weight", dtype, {2, 2}, std::vector<uint16_t>{1, 2, 3, 4});
    rig.add("bias", RawDtype::kF32, {2}, std::vector<float>{5, 6});
    Scheme plain;
    plain.act = perch::make_act_none();
    for (const Scheme& scheme :
         {plain, unstated(), quantized("gptq", 4, false, Strategy::kGroup)}) {
      const MatrixPlan plan = must_plan(rig, scheme);
      EXPECT_EQ(plan.quant.weight, type);
      EXPECT_EQ(plan.quant.scale_kind, PERCH_SCALE_NONE);
      EXPECT_EQ(plan.quant.flags, PERCH_QUANT_HAS_BIAS);
      EXPECT_EQ(packed_rows(rig, plan, {0, 2, 1, 2}), (std::vector<uint8_t>{2, 0, 4, 0}));
    }
  }
}

}  // namespace
}  // namespace perch_unit
