// quant_method compressed-tensors: the presets as their tool writes them, and every refusal.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "scheme_rig.h"

namespace perch::scheme_rig {
namespace {

const char kExpert[] = "model.layers.0.mlp.experts.3.gate_proj";
const char kWhere[] = "config.json: quantization_config";

// One group for Linear, with the format at the top.
std::string config(const std::string& format, const std::string& weights,
                   const std::string& input = "null", const std::string& more = "") {
  return R"({"quant_method": "compressed-tensors", "version": "0.12.2", "quantization_status":
      "compressed", "kv_cache_scheme": {"num_bits": 8}, "sparsity_config": {}, "transform_config":
      {}, "ignore": ["lm_head", "re:.*mlp.gate$"], "format": ")" +
         format + R"(", "config_groups": {"group_0": {"targets": ["Linear"], "weights": )" +
         weights + ", \"output_activations\": null, \"input_activations\": " + input + "}}" + more +
         "}";
}

struct Preset {
  const char* format;
  const char* weights;
  const char* input;
  const char* scheme;
};

const Preset kPresets[] = {
    {"pack-quantized",  // W4A16
     R"({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 128,
           "dynamic": false, "actorder": null, "observer": "minmax", "observer_kwargs": {},
           "block_structure": null})",
     "null", "pack-quantized int4 g128 | none"},
    {"pack-quantized",  // W4A16_ASYM
     R"({"num_bits": 4, "symmetric": false, "strategy": "group", "group_size": 128})", "null",
     "pack-quantized int4 g128 z | none"},
    {"pack-quantized",  // W8A16
     R"({"num_bits": 8, "strategy": "channel", "group_size": null})", "null",
     "pack-quantized int8 c | none"},
    {"pack-quantized", R"({"num_bits": 3, "group_size": 64})", "null",
     "pack-quantized int3 g64 | none"},
    {"pack-quantized", R"({"num_bits": 4, "group_size": -1})", "null",
     "pack-quantized int4 c | none"},
    {"pack-quantized", R"({"num_bits": 4, "group_size": 32, "actorder": "group"})", "null",
     "pack-quantized int4 g32 idx | none"},
    {"pack-quantized", R"({"num_bits": 4, "group_size": 32, "actorder": true})", "null",
     "pack-quantized int4 g32 idx | none"},
    {"pack-quantized", R"({"num_bits": 4, "group_size": 32, "actorder": "static"})", "null",
     "pack-quantized int4 g32 | none"},
    {"int-quantized",  // W8A8
     R"({"num_bits": 8, "strategy": "channel"})",
     R"({"num_bits": 8, "type": "int", "strategy": "token", "dynamic": true, "symmetric": true})",
     "int-quantized int8 c | int8 token"},
    {"int-quantized", R"({"num_bits": 8})", R"({"num_bits": 8, "dynamic": false})",
     "int-quantized int8 t | int8 static"},
    {"pack-quantized",  // W4A8
     R"({"num_bits": 4, "group_size": 128})",
     R"({"num_bits": 8, "type": "int", "strategy": "token", "dynamic": true})",
     "pack-quantized int4 g128 | int8 token"},
    {"pack-quantized",  // W4AFP8
     R"({"num_bits": 4, "group_size": 128})",
     R"({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true})",
     "pack-quantized int4 g128 | e4m3 token"},
    {"float-quantized",  // FP8
     R"({"num_bits": 8, "type": "float", "strategy": "tensor"})",
     R"({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false})",
     "float-quantized float8 t | e4m3 static"},
    {"float-quantized",  // FP8_DYNAMIC
     R"({"num_bits": 8, "type": "float", "strategy": "channel"})",
     R"({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true})",
     "float-quantized float8 c | e4m3 token"},
    {"naive-quantized",  // of the whole tensor, which is not batch invariant
     R"({"num_bits": 8, "type": "float", "strategy": "tensor"})",
     R"({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": true})",
     "naive-quantized float8 t | e4m3 token"},
    {"float-quantized",  // FP8_BLOCK
     R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]})",
     R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128,
           "dynamic": true})",
     "float-quantized float8 b128x128 | e4m3 group 128"},
    {"nvfp4-pack-quantized",  // NVFP4
     R"({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
           "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": null})",
     R"({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
           "dynamic": "local"})",
     "nvfp4-pack-quantized float4 g16 | e2m1 static group 16 e4m3"},
    {"nvfp4-pack-quantized",  // NVFP4A16
     R"({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})", "null",
     "nvfp4-pack-quantized float4 g16 | none"},
    {"mxfp4-pack-quantized",  // MXFP4
     R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})",
     R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
           "dynamic": true})",
     "mxfp4-pack-quantized float4 g32 | e2m1 group 32 e8m0"},
    {"mxfp8-quantized",  // MXFP8
     R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32})",
     R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32,
           "dynamic": true})",
     "mxfp8-quantized float8 g32 | e4m3 group 32 e8m0"},
    {"mxfp4-pack-quantized",
     R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})",
     R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32,
           "dynamic": true})",
     "mxfp4-pack-quantized float4 g32 | e4m3 group 32 e8m0"},
};

TEST(CompressedTensors, Presets) {
  for (const Preset& preset : kPresets) {
    EXPECT_EQ(line(config(preset.format, preset.weights, preset.input), kExpert), preset.scheme)
        << preset.weights;
  }
}

TEST(CompressedTensors, TheSchemeSaysWhereItIsFrom) {
  const std::string text = R"({"quantization_config": )" +
                           config("pack-quantized", R"({"num_bits": 4, "group_size": 32})") + "}";
  const Result<Scheme> scheme = scheme_of(text, {}, kExpert);
  ASSERT_TRUE(scheme.ok()) << scheme.status().message();
  EXPECT_EQ(scheme->method, "compressed-tensors");
  EXPECT_EQ(scheme->version, "0.12.2");
  EXPECT_EQ(scheme->where, "config.json: quantization_config.config_groups.group_0");
  EXPECT_EQ(scheme_of(text, {}, "model.layers.0.mlp.gate")->where,
            "config.json: quantization_config.ignore[1]");
}

std::string fixture(const std::string& name) {
  std::ifstream in(std::string(PERCH_FIXTURES_DIR) + "/hf/" + name + "/config.json");
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(CompressedTensors, FilesOfItsOwnTool) {
  const std::string symmetric = fixture("ct_int4");
  EXPECT_EQ(line(symmetric, {}, kExpert), "pack-quantized int4 g32 | none");
  EXPECT_EQ(line(symmetric, {}, "model.layers.0.mlp.gate"), "plain");
  const std::string asymmetric = fixture("ct_int4_asym");
  EXPECT_EQ(line(asymmetric, {}, kExpert), "pack-quantized int4 g16 z | none");
  EXPECT_EQ(line(asymmetric, {}, "model.layers.0.self_attn.q_proj"),
            "pack-quantized int8 c | none");
  EXPECT_EQ(line(asymmetric, {}, "model.layers.0.mlp.gate_proj"), "plain");
  EXPECT_EQ(line(fixture("mixtral"), {}, kExpert), "unstated");
}

// ---- Which modules

// Groups "a" (8 bits) and "b" (4 bits) by targets.
std::string two(const std::string& first, const std::string& second, const std::string& ignore = "",
                const char* format = "pack-quantized") {
  return R"({"quant_method": "compressed-tensors", "format": ")" + std::string(format) +
         R"(", "ignore": [)" + ignore + R"(], "config_groups": {"a": {"targets": [)" + first +
         R"(], "weights": {"num_bits": 8, "strategy": "channel"}}, "b": {"targets": [)" + second +
         R"(], "weights": {"num_bits": 4, "group_size": 32}, "format": "pack-quantized"}}})";
}
constexpr char kEight[] = "pack-quantized int8 c | none";
constexpr char kFour[] = "pack-quantized int4 g32 | none";

struct Target {
  std::string first, second, ignore;
  const char* module;
  const char* scheme;
};

TEST(CompressedTensors, NamesBeatPatternsBeatClasses) {
  const std::string gate = R"("re:.*mlp.gate$")";
  const std::string expert = std::string("\"") + kExpert + "\"";
  const Target targets[] = {
      {R"("Linear")", "", "", kExpert, kEight},
      {R"("Linear")", R"("re:.*experts.*")", "", kExpert, kFour},
      {R"("re:.*")", R"("Linear")", "", kExpert, kEight},
      {R"("re:.*experts.*")", expert, "", kExpert, kFour},
      {expert, R"("re:.*experts.*")", "", kExpert, kEight},
      {R"("FusedMoE", "Attention")", "", "", kExpert, "plain"},
      {R"("Linear")", "", expert, kExpert, "plain"},
      {expert, "", R"("re:.*experts.*")", kExpert, "plain"},
      {expert, "", R"("Linear")", kExpert, "plain"},
      {R"("Linear")", "", gate, "model.layers.0.mlp.gate", "plain"},
      {R"("Linear")", "", gate, "model.layers.0.mlp.gate_proj", kEight},
      {R"("Linear")", "", R"("re:.*gate")", "model.layers.0.mlp.gate_proj", "plain"},
      {R"("re:mlp")", "", "", "model.layers.0.mlp.gate_proj", "plain"},
      {R"("Linear")", "", R"("model.layers.0.mlp.gate")", "model.layers.0.mlp.gate_proj", kEight},
      {R"("Linear")", "", R"("model.layers.0.mlp.gate")", "model.language_model.layers.0.mlp.gate",
       "plain"},
      {R"("Linear")", "", R"("re:model\\.layers\\.0\\.mlp\\.gate$")",
       "language_model.model.layers.0.mlp.gate", "plain"},
      {R"("Linear")", "", R"("re:visual.*")", "model.visual.blocks.0.mlp.up_proj", "plain"},
      {R"("Linear")", R"("Linear")", "", kExpert,
       "config.json: quantization_config.config_groups: got "
       "config.json: quantization_config.config_groups.a and "
       "config.json: quantization_config.config_groups.b, which match module "
       "\"model.layers.0.mlp.experts.3.gate_proj\" equally well and differ; want one to match"},
  };
  for (const Target& target : targets) {
    EXPECT_EQ(line(two(target.first, target.second, target.ignore), target.module), target.scheme)
        << target.first << " " << target.second << " ignore " << target.ignore;
  }
}

TEST(CompressedTensors, MixedPrecisionNeedsTheFormatOfEachGroup) {
  EXPECT_EQ(line(two("", R"("Linear")", "", "mixed-precision"), kExpert), kFour);
  EXPECT_EQ(line(two(R"("Linear")", "", "", "mixed-precision"), kExpert),
            "config.json: quantization_config.config_groups.a.format: got nothing; want the "
            "group's own format, since the whole is mixed-precision");
}

TEST(CompressedTensors, AGroupWithoutWeights) {
  const std::string start =
      R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"])";
  EXPECT_EQ(line(start + "}}}", kExpert), "plain");
  EXPECT_EQ(line(start + R"(, "input_activations": {"num_bits": 8}}}})", kExpert),
            "config.json: quantization_config.config_groups.a.input_activations: got "
            "{\"num_bits\":8}; want none where the weights are not quantized");
}

// ---- Refusals

struct Wrong {
  const char* format;
  const char* weights;
  const char* input;
  const char* message;  // after "...config_groups.group_0"
};

TEST(CompressedTensors, Refusals) {
  const char kPack[] = "pack-quantized";
  const char kInt8[] = R"({"num_bits": 8})";
  const Wrong cases[] = {
      {kPack, "[]", "null", ".weights: got []; want an object with num_bits and type"},
      {kPack, "{}", "null", ".weights.num_bits: got nothing; want an integer"},
      {kPack, R"({"num_bits": "4"})", "null", ".weights.num_bits: got \"4\"; want an integer"},
      {kPack, R"({"num_bits": 16})", "null", ".weights.num_bits: got 16; want 1 to 8"},
      {kPack, R"({"num_bits": 6, "type": "float"})", "null",
       ".weights.num_bits: got 6; want 4 or 8 with type float"},
      {kPack, R"({"num_bits": 4, "type": "nf"})", "null",
       ".weights.type: got \"nf\"; want int or float"},
      {kPack, R"({"num_bits": 4, "symmetric": 1})", "null",
       ".weights.symmetric: got 1; want true or false"},
      {kPack, R"({"num_bits": 8, "type": "float", "symmetric": false})", "null",
       ".weights.symmetric: got false; want true with type float"},
      {kPack, R"({"num_bits": 4, "dynamic": true})", "null",
       ".weights.dynamic: got true; want false: weights are stored quantized"},
      {kPack, R"({"num_bits": 4, "strategy": "token"})", "null",
       ".weights.strategy: got \"token\"; want tensor, channel, group, tensor_group or block"},
      {kPack, R"({"num_bits": 4, "strategy": "group"})", "null",
       ".weights.group_size: got nothing; want 1 or more with groups"},
      {kPack, R"({"num_bits": 4, "group_size": -2})", "null",
       ".weights.group_size: got -2; want 1 or more with groups"},
      {kPack, R"({"num_bits": 4, "group_size": 9223372036854775808})", "null",
       ".weights.group_size: got 9223372036854775808; want an integer"},
      {kPack, R"({"num_bits": 4, "strategy": "channel", "group_size": 32})", "null",
       ".weights.group_size: got 32; want none: only the strategies group and tensor_group have "
       "one"},
      {kPack, R"({"num_bits": 8, "strategy": "block"})", "null",
       ".weights.block_structure: got nothing; want two sizes [rows, columns]"},
      {kPack, R"({"num_bits": 8, "strategy": "block", "block_structure": [0, 128]})", "null",
       ".weights.block_structure: got [0,128]; want two sizes [rows, columns]"},
      {kPack, R"({"num_bits": 4, "actorder": "column"})", "null",
       ".weights.actorder: got \"column\"; want group, static, true or false"},
      {kPack, R"({"num_bits": 4, "actorder": "group"})", "null",
       ".weights.actorder: got \"group\"; want none without groups"},
      {kPack, kInt8, R"({"symmetric": false})",
       ".input_activations.symmetric: got false; want true: inputs have no zero point"},
      {kPack, kInt8, "[]",
       ".input_activations: got []; want an object with num_bits and type, or "
       "none"},
      {kPack, kInt8, R"({"num_bits":4,"type":"int"})",
       ".input_activations: got {\"num_bits\":4,\"type\":\"int\"}; want 8 bits int or float, or 4 "
       "bits float"},
      {kPack, kInt8, R"({"dynamic":"yes"})",
       ".input_activations.dynamic: got \"yes\"; want true, false or \"local\""},
      {kPack, kInt8, R"({"strategy":"token"})",
       ".input_activations: got {\"strategy\":\"token\"}; want for 8 bits: dynamic true per token "
       "or group, or dynamic false per tensor"},
      {kPack, kInt8, R"({"num_bits":4,"type":"float"})",
       ".input_activations: got {\"num_bits\":4,\"type\":\"float\"}; want for 4 bits float: "
       "tensor_group of 16 with dynamic \"local\" (nvfp4), or group of 32 with dynamic true "
       "(mxfp4)"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_EQ(line(config(wrong.format, wrong.weights, wrong.input), kExpert),
              std::string(kWhere) + ".config_groups.group_0" + wrong.message);
  }
}

TEST(CompressedTensors, FormatsThatDoNotFit) {
  const char kWant[] =
      "; want one of pack-quantized, int-quantized, float-quantized, naive-quantized, "
      "nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized";
  for (const char* format : {"marlin-24", "sparse-24-bitmask", "sparse-bitmask", "dense"}) {
    EXPECT_EQ(line(config(format, R"({"num_bits": 4, "group_size": 32})"), kExpert),
              std::string(kWhere) + ".format: got \"" + format + "\"" + kWant);
  }
  EXPECT_EQ(line(config("int-quantized", R"({"num_bits": 4})"), kExpert),
            std::string(kWhere) + ".format: got \"int-quantized\"; want a format for 4 bits int");
  EXPECT_EQ(
      line(config("pack-quantized", R"({"num_bits": 8, "type": "float"})"), kExpert),
      std::string(kWhere) + ".format: got \"pack-quantized\"; want a format for 8 bits float");
  EXPECT_EQ(
      line(config("nvfp4-pack-quantized",
                  R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})"),
           kExpert),
      std::string(kWhere) +
          ".format: got \"nvfp4-pack-quantized\"; want a format for 4 bits float in groups of 32");
}

TEST(CompressedTensors, WhatWouldChangeTheNumbersOfAll) {
  const char kWeights[] = R"({"num_bits": 4, "group_size": 32})";
  const std::pair<const char*, const char*> cases[] = {
      {R"(, "transform_config": {"r1":{}})",
       ".transform_config: got {\"r1\":{}}; want none: rotations of weights and inputs are not "
       "applied"},
      {R"(, "sparsity_config": {"format":"sparse-24-bitmask"})",
       ".sparsity_config: got {\"format\":\"sparse-24-bitmask\"}; want none, or format dense"},
      {R"(, "ignore": "lm_head")", ".ignore: got \"lm_head\"; want a list of strings"},
      {R"(, "ignore": ["a", 1])", ".ignore[1]: got 1; want a string"},
      {R"(, "ignore": ["re:(?i)a"])",
       ".ignore[0]: got the pattern \"(?i)a\"; want no (? but (?: (?= (?! and (?P<name>"},
      {R"(, "config_groups": ["a"])",
       ".config_groups: got [\"a\"]; want an object of groups with targets and weights"},
      {R"(, "config_groups": {"W8A8": ["Linear"]})",
       ".config_groups.W8A8: got [\"Linear\"]; want an object with targets and weights"},
      {R"(, "config_groups": {"a": {"targets": "Linear"}})",
       ".config_groups.a.targets: got \"Linear\"; want a list of strings"},
  };
  for (const auto& [more, message] : cases) {
    EXPECT_EQ(line(config("pack-quantized", kWeights, "null", more), kExpert),
              std::string(kWhere) + message);
  }
  EXPECT_EQ(line(config("pack-quantized", kWeights, "null",
                        R"(, "sparsity_config": {"format": "dense"})"),
                 kExpert),
            "pack-quantized int4 g32 | none");
}

}  // namespace
}  // namespace perch::scheme_rig
