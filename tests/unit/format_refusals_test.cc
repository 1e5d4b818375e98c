// What formats refuse: each message names the tensor, what was found and what is wanted.
#include <gtest/gtest.h>

#include <limits>

#include "projection_rig.h"
#include "sound_projections.h"

namespace perch_unit {
namespace {

using perch::find_format;

// The refusal holds each of `parts` and is one line.
void expect_refused(const ProjectionRig& rig, const Scheme& scheme,
                    const std::vector<std::string>& parts) {
  const std::string message = refusal(rig, scheme);
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" lacks " << part;
  }
}

TEST(FormatRefusals, TheRigsAreSound) {
  for (const SoundProjection& sound : kSoundProjections) {
    EXPECT_EQ(refusal(sound.rig(), sound.scheme()), "");
  }
}

TEST(FormatRefusals, FormatsThatAreNotReadByName) {
  const auto named = [](const char* suffix, RawDtype dtype, std::vector<int64_t> shape) {
    ProjectionRig rig;
    int64_t bytes = perch::raw_dtype_bits(dtype) / 8;
    for (const int64_t dim : shape) bytes *= dim;
    rig.add("weight", RawDtype::kU8, {8, 1}, std::vector<uint8_t>(8));
    rig.add(suffix, dtype, std::move(shape), std::vector<uint8_t>(static_cast<size_t>(bytes)));
    return rig;
  };
  const auto status = [](const ProjectionRig& rig) { return find_format(rig.projection).status(); };
  EXPECT_EQ(status(named("SCB", RawDtype::kF32, {8})).code(), PERCH_E_UNSUPPORTED);
  EXPECT_NE(status(named("SCB", RawDtype::kF32, {8})).message().find("bitsandbytes 8-bit"),
            std::string::npos);
  for (const char* suffix : {"weight.absmax", "weight.quant_state.bitsandbytes__nf4"}) {
    EXPECT_NE(status(named(suffix, RawDtype::kF32, {1})).message().find("bitsandbytes 4-bit"),
              std::string::npos);
  }
  EXPECT_NE(status(named("bias", RawDtype::kF32, {1})).message().find("U8 without weight_scale"),
            std::string::npos);
  EXPECT_NE(status(named("trellis", RawDtype::kI16, {1, 1})).message().find("EXL3"),
            std::string::npos);
  ProjectionRig gemv;
  gemv.add("qweight", RawDtype::kI32, {16, 8}, Words(128));
  gemv.add("scales", RawDtype::kF16, {16, 4}, std::vector<uint16_t>(64));
  EXPECT_NE(status(gemv).message().find("AWQ GEMV"), std::string::npos);
  gemv.add("qweight", RawDtype::kI16, {4, 16}, std::vector<uint16_t>(64));
  EXPECT_NE(status(gemv).message().find("GEMV_FAST"), std::string::npos);
  Scheme scheme = awq_scheme();
  scheme.format = "gemv";
  expect_refused(awq_rig(), scheme, {"AWQ version gemv", "want gemm"});
}

TEST(FormatRefusals, PlanarGptqByName) {
  for (const int bits : {5, 6, 7}) {
    Scheme scheme = gptq_scheme();
    scheme.bits = bits;
    expect_refused(gptq_rig(), scheme, {"planar", std::to_string(bits) + " bits"});
  }
  Scheme scheme = gptq_scheme();
  scheme.bits = 3;
  scheme.format = "gptq_p";
  expect_refused(gptq_rig(), scheme, {"planar"});
  scheme.format = "marlin";
  expect_refused(gptq_rig(), scheme, {"checkpoint_format marlin", "want gptq"});
}

TEST(FormatRefusals, WeightsOfTypesThatAreNotRead) {
  for (const RawDtype dtype : {RawDtype::kF8E4M3FNUZ, RawDtype::kF8E5M2FNUZ}) {
    ProjectionRig rig = fp8_rig();
    rig.add("weight", dtype, {4, 4}, std::vector<uint8_t>(16));
    expect_refused(rig, fp8_scheme(), {"\"m.weight\"", std::string(perch::raw_dtype_name(dtype))});
  }
  ProjectionRig rig;
  rig.add("weight", RawDtype::kI64, {1, 1}, std::vector<int64_t>{1});
  expect_refused(rig, unstated(), {"\"m.weight\": dtype: got I64"});
  rig = pack_rig();
  rig.add("weight_packed", RawDtype::kI64, {8, 1}, std::vector<int64_t>(8));
  expect_refused(rig, pack_scheme(), {"\"m.weight_packed\": dtype: got I64; want I32"});
  expect_refused(ProjectionRig(), unstated(), {"module \"m\": weight: missing"});
}

TEST(FormatRefusals, MissingParts) {
  const auto without = [](ProjectionRig rig, const char* suffix) {
    rig.drop(suffix);
    return rig;
  };
  expect_refused(without(pack_rig(), "weight_scale"), pack_scheme(), {"weight_scale: missing"});
  expect_refused(without(pack_rig(), "weight_shape"), pack_scheme(), {"weight_shape: missing"});
  expect_refused(without(awq_rig(), "scales"), awq_scheme(), {"scales: missing"});
  expect_refused(without(nvfp4_rig(), "weight_global_scale"), nvfp4_scheme(),
                 {"weight_global_scale: missing", "F8_E4M3"});
  expect_refused(without(nvfp4_rig(), "input_global_scale"), nvfp4_scheme(),
                 {"module \"m\": input_global_scale: missing"});
  expect_refused(without(fp8_rig(), "weight_scale"), fp8_scheme(), {"weight_scale: missing"});
  expect_refused(without(fp8_rig(), "input_scale"), fp8_scheme(), {"input_scale: missing"});
  Scheme asymmetric = gptq_scheme();
  asymmetric.symmetric = false;
  expect_refused(without(gptq_rig(), "qzeros"), asymmetric, {"qzeros: missing"});
  EXPECT_EQ(refusal(without(gptq_rig(), "qzeros"), gptq_scheme()), "") << "the midpoint is stated";
  asymmetric = pack_scheme();
  asymmetric.symmetric = false;
  expect_refused(pack_rig(), asymmetric, {"weight_zero_point: missing", "says asymmetric"});
  ProjectionRig blocks;
  blocks.add("blocks", RawDtype::kU8, {1, 1, 16}, std::vector<uint8_t>(16));
  expect_refused(blocks, unstated(), {"scales: missing"});
  Scheme ordered = gptq_scheme();
  ordered.act_order = true;
  expect_refused(gptq_rig(), ordered, {"g_idx: missing", "act-order"});
}

TEST(FormatRefusals, ScalarsThatWereNeverCalibrated) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {0.0f, -1.0f, 1e-40f, kInf, kNan}) {
    const std::vector<float> one = {value};
    for (const char* suffix : {"weight_global_scale", "input_global_scale"}) {
      ProjectionRig rig = nvfp4_rig();
      rig.add(suffix, RawDtype::kF32, {1}, one);
      expect_refused(rig, nvfp4_scheme(), {std::string("\"m.") + suffix + "\": got "});
    }
    ProjectionRig rig = fp8_rig();
    rig.add("input_scale", RawDtype::kF32, {1}, one);
    expect_refused(rig, fp8_scheme(), {"\"m.input_scale\": got "});
  }
  // Its inverse would be subnormal.
  ProjectionRig rig = nvfp4_rig();
  rig.add("input_global_scale", RawDtype::kF32, {1}, std::vector<float>{3e38f});
  expect_refused(rig, nvfp4_scheme(), {"one divided by it"});
  rig.add("input_global_scale", RawDtype::kF32, {2}, std::vector<float>{1, 1});
  expect_refused(rig, nvfp4_scheme(), {"\"m.input_global_scale\": shape: got [2]"});
}

TEST(FormatRefusals, ShapesThatDoNotFit) {
  ProjectionRig rig = pack_rig();
  rig.add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{8, 17});
  expect_refused(rig, pack_scheme(), {"\"m.weight_scale\": shape: got [8, 2]; want [8, 3]"});
  rig = pack_rig();
  rig.add("weight_packed", RawDtype::kI32, {8, 3}, Words(24));
  expect_refused(rig, pack_scheme(), {"\"m.weight_packed\": shape: got [8, 3]; want [8, 2]"});
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    rig.add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{8, size});
    expect_refused(rig, pack_scheme(), {"\"m.weight_shape\": got [8, ", "want positive sizes"});
  }
  rig = gptq_rig();
  rig.add("scales", RawDtype::kF16, {3, 8}, std::vector<uint16_t>(24));
  expect_refused(rig, gptq_scheme(),
                 {"\"m.scales\": shape: got [3, 8], read as [8, 3]; want [8, 2]"});
  rig = gptq_rig();
  rig.add("qzeros", RawDtype::kI32, {2, 2}, Words(4));
  expect_refused(rig, gptq_scheme(), {"\"m.qzeros\": shape: got [2, 2]"});
  rig = gptq_rig();
  rig.add("g_idx", RawDtype::kI32, {15}, std::vector<int32_t>(15));
  expect_refused(rig, gptq_scheme(), {"\"m.g_idx\": shape: got [15]; want [16]"});
  rig = awq_rig();
  rig.add("qzeros", RawDtype::kI32, {1, 1}, Words(1));
  expect_refused(rig, awq_scheme(), {"\"m.qzeros\": shape: got [1, 1]; want [2, 1]"});
  rig = awq_rig();
  rig.add("bias", RawDtype::kF32, {7}, std::vector<float>(7));
  expect_refused(rig, awq_scheme(), {"\"m.bias\": shape: got [7]; want [8] (N)"});
  rig.add("bias", RawDtype::kI32, {8}, Words(8));
  expect_refused(rig, awq_scheme(), {"\"m.bias\": dtype: got I32"});
  rig = gptq_rig();
  rig.add("qweight", RawDtype::kI32, {2, 3}, Words(6));
  expect_refused(rig, gptq_scheme(), {"\"m.qweight\": shape: got [2, 3]"});
  ProjectionRig blocks;
  blocks.add("blocks", RawDtype::kU8, {1, 2, 15}, std::vector<uint8_t>(30));
  blocks.add("scales", RawDtype::kU8, {1, 2}, std::vector<uint8_t>(2));
  expect_refused(blocks, unstated(), {"\"m.blocks\": shape: got [1, 2, 15]"});
  rig = fp8_rig();
  rig.add("weight_scale", RawDtype::kI32, {1}, Words(1));
  expect_refused(rig, fp8_scheme(), {"\"m.weight_scale\": dtype: got I32"});
  rig = fp8_rig();
  rig.add("scale", RawDtype::kF32, {1}, std::vector<float>{1});
  expect_refused(rig, fp8_scheme(), {"\"m.scale\": got scales in tensor \"m.weight_scale\" too"});
}

TEST(FormatRefusals, WordsThatDoNotHoldWholeCodes) {
  ProjectionRig rig = gptq_rig();
  rig.add("qweight", RawDtype::kI32, {2, 12}, Words(24));
  rig.add("scales", RawDtype::kF16, {2, 12}, f16(std::vector<float>(24, 1)));
  // Twelve zero points of 4 bits are a word and a half.
  expect_refused(rig, gptq_scheme(), {"\"m.qzeros\": shape: got [2, 1]"});
  rig = gptq_rig();
  rig.add("qzeros", RawDtype::kI32, {3, 1}, Words(3, 0x88888888));
  expect_refused(rig, gptq_scheme(), {"\"m.qzeros\": shape: got [3, 1]"});
  Scheme scheme = gptq_scheme();
  scheme.bits = 3;
  expect_refused(gptq_rig(), scheme, {"\"m.qweight\": shape: got [2, 8]", "whole codes"});
}

TEST(FormatRefusals, ZeroPointsOfOtherShapes) {
  Scheme scheme = pack_scheme();
  scheme.symmetric = false;
  ProjectionRig rig = pack_rig();
  rig.add("weight_zero_point", RawDtype::kI32, {2, 2}, Words(4));
  expect_refused(rig, scheme, {"\"m.weight_zero_point\": shape: got [2, 2]; want 1 rows"});
  rig.add("weight_zero_point", RawDtype::kI8, {1, 2}, std::vector<uint8_t>(2));
  expect_refused(rig, scheme, {"\"m.weight_zero_point\": shape: got [1, 2]; want [8, 2]"});
  rig = pack_rig();
  rig.add("weight_packed", RawDtype::kI32, {7, 2}, Words(14));
  expect_refused(rig, pack_scheme(), {"\"m.weight_packed\": shape: got [7, 2]; want [8, 2]"});
  // Weights by word and zero points dense: a mixture that no version writes.
  ProjectionRig mixed;
  mixed.add("weight_packed", RawDtype::kI32, {32, 6}, Words(192));
  mixed.add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{32, 32});
  mixed.add("weight_scale", RawDtype::kF32, {32, 1}, std::vector<float>(32, 1));
  mixed.add("weight_zero_point", RawDtype::kI32, {5, 1}, Words(5));
  scheme = quantized("compressed-tensors", 5, false, Strategy::kChannel);
  scheme.symmetric = false;
  expect_refused(mixed, scheme, {"\"m.weight_zero_point\": shape: got [5, 1]; want 6 rows"});
  rig = int8_rig();
  rig.add("weight_zero_point", RawDtype::kI8, {1, 2}, std::vector<uint8_t>(2));
  expect_refused(rig, int8_scheme(), {"\"m.weight_zero_point\": shape: got [1, 2]; want [4, 2]"});
}

TEST(FormatRefusals, TensorsThatContradictTheConfiguration) {
  Scheme plain;
  plain.where = "config.json: q.ignore";
  plain.act = perch::make_act_none();
  for (const auto build : {gptq_rig, pack_rig, awq_rig, nvfp4_rig, fp8_rig}) {
    expect_refused(build(), plain,
                   {"config.json: q.ignore: got 16 or 32 bits for module \"m\"; want"});
  }
  Scheme scheme = pack_scheme();
  scheme.is_float = true;
  expect_refused(pack_rig(), scheme, {"got 4 bits float", "want 4 bits int, as tensor"});
  scheme = fp8_scheme();
  scheme.bits = 4;
  expect_refused(fp8_rig(), scheme, {"got 4 bits float", "\"m.weight\" is F8_E4M3 [4, 4]"});
  expect_refused(pack_rig(), gptq_scheme(), {"got quant_method gptq", "want compressed-tensors"});
  expect_refused(gptq_rig(), pack_scheme(), {"quant_method compressed-tensors", "want gptq"});
  expect_refused(awq_rig(), gptq_scheme(), {"got quant_method gptq", "want awq"});
  ProjectionRig bf16;
  bf16.add("weight", RawDtype::kBF16, {1, 1}, std::vector<uint16_t>(1));
  expect_refused(bf16, fp8_scheme(), {"got quantized weights", "\"m.weight\" is BF16"});
  // Symmetric, but there are zero points.
  ProjectionRig rig = pack_rig();
  rig.add("weight_zero_point", RawDtype::kI32, {1, 2}, Words(2));
  expect_refused(rig, pack_scheme(), {"got symmetric weights", "\"m.weight_zero_point\""});
  rig = gptq_rig();
  rig.add("qzeros", RawDtype::kI32, {2, 1}, Words{0x88888888, 0x88888887});
  expect_refused(rig, gptq_scheme(), {"\"m.qzeros\": element [1, 0]: got 0x88888887", "symmetric"});
  rig.add("qzeros", RawDtype::kI32, {2, 1}, Words{0x88888888, 0x77777777});
  expect_refused(rig, gptq_scheme(), {"\"m.qzeros\": element [1, 0]"});
  rig = awq_rig();
  rig.add("qzeros", RawDtype::kI32, {2, 1}, Words{0x88888888, 0});
  expect_refused(rig, awq_scheme(), {"\"m.qzeros\": element [1, 0]: got 0x00000000"});
  rig = gptq_rig();
  rig.add("g_idx", RawDtype::kI32, {16}, std::vector<int32_t>(16));
  expect_refused(rig, gptq_scheme(),
                 {"got no act-order", "\"m.g_idx\" gives column 8 the group 0"});
}

TEST(FormatRefusals, SuffixesThatMakeAModuleQuantized) {
  for (const char* suffix : {"weight_packed", "weight_scale", "weight_scale_inv", "qweight", "SCB",
                             "weight.absmax", "scale_inv", "scale", "trellis"}) {
    EXPECT_TRUE(perch::is_quantized_suffix(suffix)) << suffix;
  }
  for (const char* suffix : {"weight", "bias", "g_idx", "input_scale", ""}) {
    EXPECT_FALSE(perch::is_quantized_suffix(suffix)) << suffix;
  }
}

}  // namespace
}  // namespace perch_unit
