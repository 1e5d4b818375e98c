// The orientation table: which stored axis of a fused tensor is which. Metadata decides, shape
// never does; weights and block scales turn together, other scales never turn (field report B1).
//
// Below the host API, on canonical/orient.h and layout.h; formats_table_test.cc goes through it.
#include "canonical/orient.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "canonical/layout.h"

namespace perch {
namespace {

const OrientationChoice kNative{false, false, "test"};
const OrientationChoice kTurned{true, false, "test"};
const OrientationChoice kMixed{true, true, "test"};

// A float tensor; element i is i unless values are given.
struct Floats {
  explicit Floats(std::vector<int64_t> shape, std::vector<float> given = {})
      : values(std::move(given)) {
    raw.name = "t";
    raw.dtype = RawDtype::kF32;
    const int64_t numel =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    raw.shape = std::move(shape);
    if (values.empty()) {
      values.resize(static_cast<size_t>(numel));
      std::iota(values.begin(), values.end(), 0.0F);
    }
    raw.data = reinterpret_cast<const std::byte*>(values.data());
    raw.bytes = numel * 4;
  }
  RawTensor raw;
  std::vector<float> values;
};

std::vector<float> read(const RawView& view) {
  std::vector<float> values;
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int64_t column = 0; column < view.columns; ++column) {
      float value = 0;
      std::memcpy(&value, view.at(row, column), sizeof(value));
      values.push_back(value);
    }
  }
  return values;
}

// ---- Shapes ------------------------------------------------------------------------------------

struct ShapeRow {
  const char* name;
  std::vector<int64_t> stored;
  FusedRole role;
  OrientationChoice orientation;
  int64_t rows, columns;  // of one expert, native
};

class OrientShapeTest : public ::testing::TestWithParam<ShapeRow> {};

TEST_P(OrientShapeTest, ReadsAsNative) {
  const ShapeRow& row = GetParam();
  RawTensor raw;
  raw.name = "t";
  raw.shape = row.stored;
  const Result<FusedView> view = orient(raw, row.role, row.stored[0], row.orientation);
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->experts, row.stored[0]);
  EXPECT_EQ(view->rows, row.rows);
  EXPECT_EQ(view->columns, row.columns);
}

constexpr FusedRole kWeight = FusedRole::kMatrix;
constexpr FusedRole kBlock = FusedRole::kBlocks;
constexpr FusedRole kOther = FusedRole::kRows;
const ShapeRow kShapes[] = {
    // w13 with H 3072, I 1024 and w2, both ways.
    {"w13_native", {8, 2048, 3072}, kWeight, kNative, 2048, 3072},
    {"w13_transposed", {8, 3072, 2048}, kWeight, kTurned, 2048, 3072},
    {"w13_interleaved", {8, 3072, 2048}, kWeight, kMixed, 2048, 3072},
    {"w2_native", {8, 3072, 1024}, kWeight, kNative, 3072, 1024},
    {"w2_transposed", {8, 1024, 3072}, kWeight, kTurned, 3072, 1024},
    // I == H: w2 is square; H == 2I: w13 is. What the metadata says still holds.
    {"w2_square_native", {8, 64, 64}, kWeight, kNative, 64, 64},
    {"w2_square_transposed", {8, 64, 64}, kWeight, kTurned, 64, 64},
    // Per-channel scales have no K axis: never turned, although 1 is not H.
    {"channel_scale_native", {8, 2048, 1}, kOther, kNative, 2048, 1},
    {"channel_scale_transposed", {8, 2048, 1}, kOther, kTurned, 2048, 1},
    {"channel_scale_rank2", {8, 2048}, kOther, kTurned, 2048, 1},
    {"channel_scale_flat", {8, 1, 2048}, kOther, kTurned, 2048, 1},
    {"scalar_scale", {8}, kOther, kTurned, 1, 1},
    // Block scales turn with their weight, rectangular and square.
    {"block_scale_native", {8, 16, 24}, kBlock, kNative, 16, 24},
    {"block_scale_transposed", {8, 24, 16}, kBlock, kTurned, 16, 24},
    {"block_scale_square", {8, 16, 16}, kBlock, kTurned, 16, 16},
};
INSTANTIATE_TEST_SUITE_P(Table, OrientShapeTest, ::testing::ValuesIn(kShapes),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Orient, RefusesAWeightOfRank2) {
  RawTensor raw;
  raw.name = "experts.gate_up_proj";
  raw.shape = {16, 64};
  const Result<FusedView> view = orient(raw, kWeight, 16, kNative);
  ASSERT_FALSE(view.ok());
  EXPECT_NE(view.status().message().find("tensor \"experts.gate_up_proj\": shape: got [16, 64]"),
            std::string::npos)
      << view.status().message();
}

// ---- Values ------------------------------------------------------------------------------------

// One expert, w13 with gate rows (1 2)(3 4) and up rows (5 6)(7 8), H 2, I 2: every size is equal
// or double, so only the metadata tells.
struct ValueRow {
  const char* name;
  OrientationChoice orientation;
  std::vector<float> stored;
};

class OrientValueTest : public ::testing::TestWithParam<ValueRow> {};

TEST_P(OrientValueTest, GateAndUp) {
  const ValueRow& row = GetParam();
  const bool native = !row.orientation.transposed;
  const Floats w13(native ? std::vector<int64_t>{1, 4, 2} : std::vector<int64_t>{1, 2, 4},
                   row.stored);
  const FusedView view = *orient(w13.raw, kWeight, 1, row.orientation);
  // Twice in a row: the loader keeps no state between visits.
  for (int visit = 0; visit < 2; ++visit) {
    EXPECT_EQ(read(half_view(view, 0, row.orientation, 0)), (std::vector<float>{1, 2, 3, 4}));
    EXPECT_EQ(read(half_view(view, 0, row.orientation, 1)), (std::vector<float>{5, 6, 7, 8}));
  }
}

const ValueRow kValues[] = {
    {"native", kNative, {1, 2, 3, 4, 5, 6, 7, 8}},
    {"transposed", kTurned, {1, 3, 5, 7, 2, 4, 6, 8}},
    {"interleaved", kMixed, {1, 5, 3, 7, 2, 6, 4, 8}},
};
INSTANTIATE_TEST_SUITE_P(Storage, OrientValueTest, ::testing::ValuesIn(kValues),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Orient, SquareW2IsTurnedByMetadataAlone) {
  const Floats w2({1, 2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(read(expert_view(*orient(w2.raw, kWeight, 1, kNative), 0)),
            (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(read(expert_view(*orient(w2.raw, kWeight, 1, kTurned), 0)),
            (std::vector<float>{1, 3, 2, 4}));
}

TEST(Orient, SecondExpertStandsBehindTheFirst) {
  const Floats w2({2, 2, 3});
  EXPECT_EQ(read(expert_view(*orient(w2.raw, kWeight, 2, kTurned), 1)),
            (std::vector<float>{6, 9, 7, 10, 8, 11}));
}

// Field report B1, case 2: an in-out checkpoint, block scale [[10,20],[30,40]] over (H, 2I) blocks.
// Seen whole by both halves: a row of blocks may belong to both.
TEST(OrientB1, BlockScaleTwiceInARow) {
  const Floats scale({1, 2, 2}, {10, 20, 30, 40});
  const FusedView view = *orient(scale.raw, kBlock, 1, kTurned);
  for (int visit = 0; visit < 2; ++visit) {
    EXPECT_EQ(read(expert_view(view, 0)), (std::vector<float>{10, 30, 20, 40}));
  }
}

// Field report B1, case 1: w13 scale [2,8,1] = 100 e + j + 1.
TEST(OrientB1, ChannelScaleSplitsIntoGateAndUpInEveryOrientation) {
  Floats scale({2, 8, 1});
  for (size_t i = 0; i < 16; ++i) {
    scale.values[i] = static_cast<float>(100 * (i / 8) + i % 8 + 1);
  }
  for (const OrientationChoice& orientation : {kNative, kTurned}) {
    const FusedView view = *orient(scale.raw, kOther, 2, orientation);
    EXPECT_EQ(read(half_view(view, 0, orientation, 0)), (std::vector<float>{1, 2, 3, 4}));
    EXPECT_EQ(read(half_view(view, 1, orientation, 1)), (std::vector<float>{105, 106, 107, 108}));
  }
}

// One scale per expert, in each form that files have, is shared by gate and up.
TEST(OrientB1, ScalarPerExpert) {
  for (const auto& shape : {std::vector<int64_t>{3}, {3, 1}, {3, 1, 1}}) {
    const Floats scale(shape, {1, 2, 4});
    const FusedView view = *orient(scale.raw, kOther, 3, kTurned);
    for (int64_t e = 0; e < 3; ++e) {
      const std::vector<float> want = {scale.values[static_cast<size_t>(e)]};
      EXPECT_EQ(read(half_view(view, e, kTurned, 0)), want);
      EXPECT_EQ(read(half_view(view, e, kTurned, 1)), want);
      EXPECT_EQ(read(expert_view(view, e)), want);
    }
  }
}

// ---- Through the names of a checkpoint ----------------------------------------------------------

RawTensor named(const std::string& part, std::vector<int64_t> shape) {
  RawTensor raw;
  raw.name = "model.layers.0.mlp.experts." + part;
  raw.dtype = RawDtype::kF32;
  raw.shape = std::move(shape);
  return raw;
}

TEST(OrientByName, ChannelScaleOfHidden3072IsUntouchedAndSplit) {
  const std::vector<RawTensor> tensors = {
      named("gate_up_proj", {8, 3072, 2048}), named("gate_up_proj_scale", {8, 2048, 1}),
      named("down_proj", {8, 1024, 3072}), named("down_proj_scale", {8, 3072, 1})};
  const Result<Layout> layout = find_layers(ModelConfig(), tensors, kTurned);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  ASSERT_EQ(layout->layers.size(), 1U);
  const LayerSource& layer = layout->layers[0];
  ASSERT_EQ(layer.experts.size(), 8U);
  for (const Projection* half : {&layer.experts[7].gate, &layer.experts[7].up}) {
    const RawView* weight = half->find("weight");
    const RawView* scale = half->find("scale");
    ASSERT_NE(weight, nullptr);
    ASSERT_NE(scale, nullptr);
    EXPECT_EQ(weight->rows, 1024);
    EXPECT_EQ(weight->columns, 3072);
    EXPECT_EQ(scale->rows, 1024);  // [8,1024,1] each
    EXPECT_EQ(scale->columns, 1);
  }
  EXPECT_EQ(layer.experts[7].gate.find("scale")->offset, 7 * 2048);
  EXPECT_EQ(layer.experts[7].up.find("scale")->offset, 7 * 2048 + 1024);
  EXPECT_EQ(layer.experts[0].down.find("scale")->rows, 3072);
}

TEST(OrientByName, BlockScalesTurnWithTheWeight) {
  for (const bool square : {false, true}) {
    const int64_t h = square ? 16 : 24;  // H blocks against 16 blocks of 2I
    const std::vector<RawTensor> tensors = {
        named("gate_up_proj", {2, h * 128, 2048}), named("gate_up_proj_scale_inv", {2, h, 16}),
        named("down_proj", {2, 1024, h * 128}), named("down_proj_scale_inv", {2, 8, h})};
    const Result<Layout> layout = find_layers(ModelConfig(), tensors, kTurned);
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    const ExpertSource& expert = layout->layers[0].experts[1];
    EXPECT_EQ(expert.gate.fused_rows_before, 0);
    EXPECT_EQ(expert.up.fused_rows_before, 1024);
    for (const Projection* half : {&expert.gate, &expert.up}) {
      EXPECT_EQ(half->find("scale_inv")->rows, 16);
      EXPECT_EQ(half->find("scale_inv")->columns, h);
      EXPECT_EQ(half->find("scale_inv")->row_stride, 1);
    }
    EXPECT_EQ(expert.down.find("scale_inv")->rows, h);
    EXPECT_EQ(expert.down.find("scale_inv")->columns, 8);
  }
}

// A tensor without elements may have any other dimension; no stride of it overflows.
TEST(Orient, HalvesOfNoRows) {
  const Floats empty({2, 0, int64_t{1} << 62});
  for (const OrientationChoice& orientation : {kNative, OrientationChoice{false, true, "test"}}) {
    const Result<FusedView> view = orient(empty.raw, FusedRole::kMatrix, 2, orientation);
    ASSERT_TRUE(view.ok()) << view.status().message();
    EXPECT_EQ(half_view(*view, 1, orientation, 1).rows, 0);
  }
}

}  // namespace
}  // namespace perch
