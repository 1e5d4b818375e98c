// The reference against tests/golden/, which exact fractions made.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "backend_harness.h"
#include "numbers.h"

namespace perch::test {
namespace {

const char kLibrary[] = PERCH_BUILD_DIR "/lib/perch/backends/libperch_reference.so";

// The lines of a golden file, split at spaces; without the header.
std::vector<std::vector<std::string>> read_golden(const std::string& name) {
  std::ifstream file(std::string(PERCH_SOURCE_DIR) + "/tests/golden/" + name);
  std::vector<std::vector<std::string>> lines;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream stream(line);
    std::vector<std::string> tokens;
    for (std::string token; stream >> token;) tokens.push_back(token);
    lines.push_back(tokens);
  }
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

uint32_t hex(const std::string& text) {
  return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 16));
}
float from_bits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
// Equal as numbers, NaN equal to NaN. A sum cannot tell -0 from 0.
bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// y of a linear layer with f32 weights [n,k] or what `tensors` says.
std::vector<float> run_linear(const LayerConfig& config, const TensorMap& tensors,
                              const Tensor& x) {
  BackendHarness harness(kLibrary);
  Layer layer(harness, config);
  harness.prepare({tensors}, &layer);
  EXPECT_TRUE(layer.ok()) << layer.message;
  if (!layer.ok()) return {};
  Call call;
  call.x = x;
  const Result result = layer.run(call);
  EXPECT_EQ(result.status, PERCH_OK) << result.message;
  return to_floats(result.y);
}

LayerConfig linear(int64_t n, int64_t k, const perch_quant& quant) {
  LayerConfig config = LayerConfig::make_linear("golden", n, k, quant);
  config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
  config.layer().flags = PERCH_LAYER_ALLOW_NAN;
  return config;
}

class ReferenceGoldenDecode : public testing::TestWithParam<uint32_t> {};

// One row per code, K = 1, x = 1: y is what the codes mean.
TEST_P(ReferenceGoldenDecode, EveryCode) {
  const uint32_t type = GetParam();
  const auto lines = read_golden(std::string("decode_") + type_name(type) + ".txt");
  const auto count = static_cast<int64_t>(lines.size());
  ASSERT_EQ(count, 1 << type_bits(type));
  std::vector<uint8_t> codes;
  for (const auto& line : lines) codes.push_back(static_cast<uint8_t>(hex(line[0])));
  TensorMap tensors;
  perch_quant quant = make_quant(type);
  if (type == PERCH_TYPE_E8M0) {  // a scale's type: weights of 1
    quant = make_quant(PERCH_TYPE_F32);
    quant.scale_kind = PERCH_SCALE_CHANNEL;
    quant.scale_dtype = type;
    tensors["w"] = f32({count, 1}, std::vector<float>(lines.size(), 1));
    tensors["w.scale"] = u8({count}, codes);
  } else {
    tensors["w"] = u8({count, 1}, codes);
  }
  const std::vector<float> y = run_linear(linear(count, 1, quant), tensors, f32({1, 1}, {1}));
  ASSERT_EQ(y.size(), lines.size());
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_TRUE(same(y[i], from_bits(hex(lines[i][1])))) << lines[i][0] << " gives " << y[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ReferenceGoldenDecode,
                         testing::Values(PERCH_TYPE_E4M3FN, PERCH_TYPE_E5M2, PERCH_TYPE_E8M0,
                                         PERCH_TYPE_E3M2, PERCH_TYPE_E2M3, PERCH_TYPE_E2M1),
                         [](const auto& format) { return std::string(type_name(format.param)); });

// The rounding of an output: y = x * 1.
void check_rounding(uint32_t type, const std::string& name) {
  const auto lines = read_golden(name);
  std::vector<float> x;
  for (const auto& line : lines) x.push_back(from_bits(hex(line[0])));
  LayerConfig config = linear(1, 1, make_quant(PERCH_TYPE_F32));
  config.layer().out_dtype = type;
  TensorMap tensors;
  tensors["w"] = f32({1, 1}, {1});
  const auto rows = static_cast<int64_t>(x.size());
  const std::vector<float> y = run_linear(config, tensors, f32({rows, 1}, x));
  ASSERT_EQ(y.size(), lines.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const float want = static_cast<float>(decode(type, hex(lines[i][1])));
    EXPECT_TRUE(same(y[i], want)) << lines[i][0] << " gives " << y[i] << ", want " << want;
  }
}
TEST(ReferenceGolden, RoundingToF16) { check_rounding(PERCH_TYPE_F16, "round_f16.txt"); }
TEST(ReferenceGolden, RoundingToBf16) { check_rounding(PERCH_TYPE_BF16, "round_bf16.txt"); }

perch_act_quant act_of(uint32_t dtype, uint32_t mode, uint32_t group, uint32_t scale) {
  perch_act_quant act = make_act_none();
  act.dtype = dtype;
  act.mode = mode;
  act.group = group;
  act.scale_dtype = scale;
  return act;
}

// A static input scale of 1: y is the code of x, decoded.
TEST(ReferenceGolden, EncodingToE4m3) {
  const auto lines = read_golden("encode_e4m3.txt");
  std::vector<float> x;
  for (const auto& line : lines) x.push_back(from_bits(hex(line[0])));
  LayerConfig config = linear(1, 1, make_quant(PERCH_TYPE_F32));
  config.act_first() = act_of(PERCH_TYPE_E4M3FN, PERCH_ACT_STATIC, 0, PERCH_TYPE_F32);
  TensorMap tensors;
  tensors["w"] = f32({1, 1}, {1});
  tensors["w.input_scale"] = f32({1}, {1});
  const auto rows = static_cast<int64_t>(x.size());
  const std::vector<float> y = run_linear(config, tensors, f32({rows, 1}, x));
  ASSERT_EQ(y.size(), lines.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const float want = static_cast<float>(decode(PERCH_TYPE_E4M3FN, hex(lines[i][1])));
    EXPECT_TRUE(same(y[i], want)) << lines[i][0] << " gives " << y[i] << ", want " << want;
  }
}

// A group of two whose other element is 6 has scale 1, as long as |x| <= 6.
TEST(ReferenceGolden, EncodingToE2m1) {
  const auto lines = read_golden("encode_e2m1.txt");
  std::vector<float> x;
  std::vector<float> want;
  for (const auto& line : lines) {
    const float value = from_bits(hex(line[0]));
    if (!(std::fabs(value) <= 6)) continue;
    x.insert(x.end(), {6, value});
    want.push_back(static_cast<float>(decode(PERCH_TYPE_E2M1, hex(line[1]))));
  }
  LayerConfig config = linear(1, 2, make_quant(PERCH_TYPE_F32));
  config.act_first() = act_of(PERCH_TYPE_E2M1, PERCH_ACT_GROUP, 2, PERCH_TYPE_E8M0);
  TensorMap tensors;
  tensors["w"] = f32({1, 2}, {0, 1});
  const auto rows = static_cast<int64_t>(want.size());
  EXPECT_EQ(run_linear(config, tensors, f32({rows, 2}, x)), want);
}

perch_act_quant scheme_of(const std::string& name) {
  const uint32_t dtype = name.rfind("int8", 0) == 0   ? PERCH_TYPE_INT8
                         : name.rfind("e4m3", 0) == 0 ? PERCH_TYPE_E4M3FN
                                                      : PERCH_TYPE_E2M1;
  const std::string scale = name.substr(name.find(':') + 1);
  if (scale == "static") return act_of(dtype, PERCH_ACT_STATIC, 0, PERCH_TYPE_F32);
  if (scale == "e4m3") return act_of(dtype, PERCH_ACT_STATIC_GROUP, 8, PERCH_TYPE_E4M3FN);
  return act_of(dtype, PERCH_ACT_GROUP, 8, scale == "e8m0" ? PERCH_TYPE_E8M0 : PERCH_TYPE_F32);
}

// W is the identity, so y is the quantized row.
TEST(ReferenceGolden, InputQuantization) {
  std::vector<float> identity(64, 0);
  for (size_t i = 0; i < 8; ++i) identity[9 * i] = 1;
  for (const auto& line : read_golden("quant_groups.txt")) {
    ASSERT_EQ(line.size(), 19u);
    std::vector<float> x;
    std::vector<float> want;
    for (size_t i = 0; i < 8; ++i) {
      x.push_back(from_bits(hex(line[2 + i])));
      want.push_back(from_bits(hex(line[11 + i])));
    }
    LayerConfig config = linear(8, 8, make_quant(PERCH_TYPE_F32));
    config.act_first() = scheme_of(line[0]);
    TensorMap tensors;
    tensors["w"] = f32({8, 8}, identity);
    const float given = from_bits(hex(line[1]));
    if (given != 0) tensors["w.input_scale"] = f32({1}, {given});
    EXPECT_EQ(run_linear(config, tensors, f32({1, 8}, x)), want) << line[0];
  }
}

using Line = std::vector<std::string>;
std::vector<float> numbers(const Line& line) {
  std::vector<float> values;
  for (size_t i = 1; i < line.size(); ++i) values.push_back(std::strtof(line[i].c_str(), nullptr));
  return values;
}
std::vector<uint8_t> bytes(const Line& line) {
  std::vector<uint8_t> values;
  for (const float value : numbers(line)) values.push_back(static_cast<uint8_t>(value));
  return values;
}
Tensor codes(const Line& line, int64_t n, int64_t k) {
  std::vector<uint32_t> values;
  for (const uint8_t value : bytes(line)) values.push_back(value);
  return pack_codes(4, n, k, values);
}

// `at` points to the line "layer <activation>"; the lines follow in the order of make_golden.py.
void check_layer(const std::vector<Line>& lines, size_t at, uint32_t activation) {
  perch_quant w13 = make_quant(PERCH_TYPE_INT4);
  w13.scale_kind = PERCH_SCALE_GROUP;
  w13.scale_dtype = PERCH_TYPE_BF16;
  w13.group_k = 3;
  w13.zero_kind = PERCH_ZERO_INT;
  w13.flags = PERCH_QUANT_HAS_BIAS;
  perch_quant w2 = make_quant(PERCH_TYPE_E2M1);
  w2.scale_kind = PERCH_SCALE_GROUP;
  w2.scale_dtype = PERCH_TYPE_E8M0;
  w2.group_k = 2;
  LayerConfig config = LayerConfig::make_moe("golden", w13, w2);
  config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = moe.topk = 2;
  moe.hidden = 5;
  moe.intermediate = 3;
  moe.activation = activation;
  const int64_t gate_up = config.rows(0);
  std::vector<TensorMap> experts(2);
  for (size_t e = 0; e < 2; ++e) {
    const size_t first = at + 4 + 6 * e;
    TensorMap& tensors = experts[e];
    tensors["w13"] = codes(lines[first], gate_up, 5);
    tensors["w13.scale"] = floats(PERCH_TYPE_BF16, {gate_up, 2}, numbers(lines[first + 1]));
    tensors["w13.zero"] = u8({gate_up, 2}, bytes(lines[first + 2]));
    tensors["w13.bias"] = f32({gate_up}, numbers(lines[first + 3]));
    tensors["w2"] = codes(lines[first + 4], 5, 3);
    tensors["w2.scale"] = u8({5, 2}, bytes(lines[first + 5]));
  }
  BackendHarness harness(kLibrary);
  Layer layer(harness, config);
  harness.prepare(experts, &layer);
  ASSERT_TRUE(layer.ok()) << layer.message;
  Call call;
  call.x = f32({4, 5}, numbers(lines[at + 1]));
  std::vector<int32_t> ids;
  for (const float id : numbers(lines[at + 2])) ids.push_back(static_cast<int32_t>(id));
  call.ids = i32({4, 2}, ids);
  call.weights = f32({4, 2}, numbers(lines[at + 3]));
  const Result result = layer.run(call);
  ASSERT_EQ(result.status, PERCH_OK) << result.message;
  std::vector<uint32_t> want;
  for (size_t i = 1; i < lines[at + 16].size(); ++i) want.push_back(hex(lines[at + 16][i]));
  EXPECT_EQ(result.y.as<uint32_t>(), want);
}

TEST(ReferenceGolden, TwoExpertLayers) {
  const auto lines = read_golden("layer_two_experts.txt");
  ASSERT_EQ(lines.size(), 34u);
  check_layer(lines, 0, PERCH_ACTIVATION_RELU2);
  check_layer(lines, 17, PERCH_ACTIVATION_RELU2_NO_MUL);
}

TEST(ReferenceGolden, FilesAreWhatTheGeneratorWrites) {
  if (std::system("python3 -c 1") != 0) GTEST_SKIP() << "no python3";
  const std::string script = std::string(PERCH_SOURCE_DIR) + "/tests/golden/make_golden.py";
  EXPECT_EQ(std::system(("python3 " + script + " --check").c_str()), 0);
}

}  // namespace
}  // namespace perch::test
