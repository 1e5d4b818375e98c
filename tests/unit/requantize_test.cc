// Weights converted on request: the formulas of prepare/requantize.h, case by case.
#include "prepare/requantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/recipe.h"
#include "base/requant_rules.h"
#include "numeric/decode.h"

namespace perch {
namespace {

LayerConfig linear(int64_t n, int64_t k, const std::string& format) {
  LayerConfig config = LayerConfig::make_linear("layer", n, k, *parse_weight(format));
  config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
  return config;
}

CanonicalExpert f32_expert(const LayerConfig& config, const std::vector<float>& values) {
  CanonicalExpert expert;
  for (TensorSpec& spec : tensor_specs(config)) {
    const auto bytes = static_cast<size_t>(spec.bytes());
    expert.tensors.push_back({std::move(spec), std::vector<std::byte>(bytes)});
  }
  std::memcpy(expert.tensors[0].data.data(), values.data(), values.size() * sizeof(float));
  return expert;
}

struct Converted {
  CanonicalExpert expert;
  std::vector<float> values;  // as the backend will decode them
  RequantError error;
};

Converted convert(int64_t n, int64_t k, const std::string& format,
                  const std::vector<float>& values) {
  const LayerConfig from = linear(n, k, "f32");
  Result<LayerConfig> to = requantized_config(from, format);
  EXPECT_TRUE(to.ok()) << to.status().message();
  Converted result;
  Result<CanonicalExpert> expert = requantize(f32_expert(from, values), from, *to, &result.error);
  EXPECT_TRUE(expert.ok()) << expert.status().message();
  result.expert = std::move(*expert);
  const numeric::MatrixTensors tensors =
      numeric::matrix_tensors([&](const std::string& suffix) -> const void* {
        const CanonicalTensor* tensor = std::as_const(result.expert).find("w" + suffix);
        return tensor == nullptr ? nullptr : tensor->data.data();
      });
  result.values.resize(values.size());
  for (int64_t row = 0; row < n; ++row) {
    numeric::decode_weight_row(to->first(), tensors, k, row, result.values.data() + row * k);
  }
  return result;
}

std::vector<float> random_values(size_t count) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0.0F, 0.1F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

float scale_of(const Converted& converted, int64_t index = 0) {
  float scale = 0.0F;
  std::memcpy(&scale, converted.expert.find("w.scale")->data.data() + index * 4, sizeof(scale));
  return scale;
}

// The larger side gets the code that the smaller lacks.
TEST(Requantize, SignedIntegersUseEveryCode) {
  const Converted low = convert(1, 4, "int4c:f32", {-8.499F, 1, 2, 7.0F});
  EXPECT_NEAR(scale_of(low), 1.0F, 1e-6F);
  EXPECT_EQ(std::lround(low.values[0]), -8);
  const Converted high = convert(1, 4, "int4c:f32", {8.499F, -1, -2, -7.0F});
  EXPECT_NEAR(scale_of(high), -1.0F, 1e-6F);
  EXPECT_EQ(std::lround(high.values[0]), 8);
  // The other side decides where it would not fit otherwise.
  const Converted both = convert(1, 2, "int4c:f32", {-7.6F, 7.5F});
  EXPECT_NEAR(scale_of(both), 7.5F / 7.499F, 1e-6F);
}

TEST(Requantize, ZeroPointsCoverTheRangeAndZero) {
  const Converted up = convert(1, 4, "int4g4:f32+z", {0.0F, 5, 10, 15});
  EXPECT_EQ(scale_of(up), 1.0F);
  EXPECT_EQ(up.values, (std::vector<float>{0, 5, 10, 15}));
  EXPECT_EQ(up.error.relative(), 0.0);
  const Converted around = convert(1, 4, "int4g4:f32+z", {-5, 0, 4, 10});
  EXPECT_EQ(around.values, (std::vector<float>{-5, 0, 4, 10}));
  // All above 0: the range still holds 0, so that the zero point is a code.
  const Converted above = convert(1, 2, "int8c:f32+z", {254.0F, 255.0F});
  EXPECT_EQ(above.values, (std::vector<float>{254.0F, 255.0F}));
}

TEST(Requantize, FloatsTakeTheirLargestValue) {
  const Converted exact = convert(2, 4, "e4m3c:f32", {448, 1, -2, 0.5F, 224, 0.5F, -1, 0.25F});
  EXPECT_EQ(scale_of(exact, 0), 1.0F);
  EXPECT_EQ(scale_of(exact, 1), 0.5F);
  EXPECT_EQ(exact.error.largest, 0.0);
  EXPECT_EQ(exact.values, (std::vector<float>{448, 1, -2, 0.5F, 224, 0.5F, -1, 0.25F}));
}

// e8m0: the smallest power of two at which nothing saturates.
TEST(Requantize, PowerOfTwoScalesRoundUp) {
  std::vector<float> values(32, 0.0F);
  values[0] = 6.5F;
  const Converted converted = convert(1, 32, "mxfp4", values);
  EXPECT_EQ(static_cast<int>(converted.expert.find("w.scale")->data[0]), 128);
  EXPECT_EQ(converted.values[0], 6.0F);  // 6.5/2 = 3.25, and 3 is nearer than 4
}

TEST(Requantize, SecondScaleIsTheMatrixLargest) {
  std::vector<float> values(32, 0.0F);
  values[0] = 6.0F * 448.0F;
  values[16] = 6.0F;
  const Converted converted = convert(1, 32, "nvfp4", values);
  float second = 0.0F;
  std::memcpy(&second, converted.expert.find("w.scale2")->data.data(), sizeof(second));
  EXPECT_EQ(second, 1.0F);
  EXPECT_EQ(converted.values[0], 6.0F * 448.0F);
  EXPECT_EQ(converted.values[16], 6.0F);
}

TEST(Requantize, ZeroWeightsStayZero) {
  for (const char* format : {"int4g4:bf16", "int4g4:f32+z", "int8c:f32", "e4m3t:f32",
                             "e4m3b2x2:f32", "e2m1g4:e8m0", "e2m1g4:e4m3+s2t", "bf16"}) {
    const Converted converted = convert(2, 8, format, std::vector<float>(16, 0.0F));
    for (const float value : converted.values) EXPECT_EQ(value, 0.0F) << format;
    EXPECT_EQ(converted.error.relative(), 0.0) << format;
  }
}

// Each format loses about what its bits allow, and the report says just what was lost.
TEST(Requantize, ErrorIsMeasured) {
  const struct {
    const char* format;
    double most;
  } rows[] = {{"int8g32:f32", 0.008}, {"int4g32:bf16", 0.12}, {"int4g32:f32+z", 0.12},
              {"e4m3b32:f32", 0.04},  {"e5m2c:f32", 0.08},    {"e2m3g32:f32", 0.08},
              {"mxfp4", 0.2},         {"nvfp4", 0.12},        {"int1g32:f32", 1.0},
              {"int2g32:f32", 0.5},   {"bf16", 0.003},        {"f16", 0.0005}};
  const std::vector<float> values = random_values(64 * 96);
  for (const auto& row : rows) {
    const Converted converted = convert(64, 96, row.format, values);
    double squares = 0;
    double lost = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      squares += double{values[i]} * double{values[i]};
      lost += std::pow(double{values[i]} - double{converted.values[i]}, 2);
    }
    EXPECT_NEAR(converted.error.relative(), std::sqrt(lost / squares), 1e-6) << row.format;
    EXPECT_LT(converted.error.relative(), row.most) << row.format;
    EXPECT_GT(converted.error.relative(), row.most / 20) << row.format;
  }
}

TEST(Requantize, RefusesWhatIsNoNumber) {
  const LayerConfig from = linear(1, 2, "f32");
  const Result<LayerConfig> to = requantized_config(from, "int8c:f32");
  RequantError error;
  const auto refused = requantize(f32_expert(from, {1.0F, NAN}), from, *to, &error);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("nan"), std::string::npos)
      << refused.status().message();
}

TEST(Requantize, RefusesWhatWeightsAloneCannotMake) {
  const LayerConfig from = linear(4, 8, "f32");
  for (const char* format :
       {"lut4g4:f32", "int4g4:f32+zf", "int4g4:f32+off", "int4g4:f32+gidx", "int4", "bf16c:f32",
        "int4c:f32+bias", "int8c:e8m0", "int4c:f32+z0", "nonsense"}) {
    EXPECT_FALSE(requantized_config(from, format).ok()) << format;
  }
}

}  // namespace
}  // namespace perch
