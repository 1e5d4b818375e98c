// quant_method modelopt: every quant_algo, exclusions, and MIXED_PRECISION.
#include <gtest/gtest.h>

#include "scheme_rig.h"

namespace perch::scheme_rig {
namespace {

const char kExpert[] = "model.layers.0.mlp.experts.3.gate_proj";
const char kWhere[] = "config.json: quantization_config";

std::string with(const std::string& keys, const std::string& module = kExpert) {
  return line(R"({"quant_method": "modelopt", )" + keys + "}", module);
}

TEST(ModeloptConfig, EveryAlgorithm) {
  const std::pair<const char*, const char*> algos[] = {
      {"FP8", "float8 t | e4m3 static"},
      {"FP8_PER_CHANNEL_PER_TOKEN", "float8 c | e4m3 token"},
      {"FP8_PB_WO", "float8 b128x128 | none"},
      {"NVFP4", "float4 g16 | e2m1 static group 16 e4m3"},
      {"NVFP4_AWQ", "float4 g16 | e2m1 static group 16 e4m3"},
      {"W4A16_NVFP4", "float4 g16 | none"},
      {"W4A8_NVFP4_FP8", "float4 g? | e4m3 static"},
      {"MXFP4", "float4 g32 | e2m1 group 32 e8m0"},
      {"W4A8_MXFP4_FP8", "float4 g32 | e4m3 static"},
      {"MXFP8", "float8 g32 | e4m3 group 32 e8m0"},
      {"W4A16_AWQ", "int4 g? | none"},
      {"W4A8_AWQ", "int4 g? | e4m3 static"},
      {"W8A8_SQ_PER_CHANNEL", "int8 c | int8 static"},
      {"W8A16", "int8 c | none"},
  };
  for (const auto& [algo, scheme] : algos) {
    EXPECT_EQ(with("\"quant_algo\": \"" + std::string(algo) + "\""),
              std::string(algo) + " " + scheme);
  }
}

struct Row {
  const char* keys;
  const char* module;
  const char* found;  // with "." at its start after the configuration's path
};

TEST(ModeloptConfig, Settings) {
  const Row rows[] = {
      {R"("quant_algo": "W4A16_AWQ", "group_size": 128, "has_zero_point": false,
          "pre_quant_scale": true)",
       kExpert, "W4A16_AWQ int4 g128 | none"},
      {R"("quant_algo": "NVFP4", "group_size": 16)", kExpert,
       "NVFP4 float4 g16 | e2m1 static group 16 e4m3"},
      // The groups of other layers.
      {R"("quant_algo": "FP8", "group_size": 16)", kExpert, "FP8 float8 t | e4m3 static"},
      {R"("quant_algo": null, "kv_cache_quant_algo": "FP8")", kExpert, "plain"},
      {R"("quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8}, "ignore": ["lm_head"],
          "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {}}})",
       kExpert, "FP8 float8 t | e4m3 static"},
      {R"("quant_algo": "MXFP4", "config_groups": {"group_0": {"weights": {},
          "input_activations": null}})",
       kExpert, "MXFP4 float4 g32 | none"},
      {R"("quant_algo": "MXFP4", "config_groups": {"group_0": {"weights": {},
          "input_activations": {"num_bits": 4}}})",
       kExpert, "MXFP4 float4 g32 | e2m1 group 32 e8m0"},
      {R"("quant_algo": "NVFP4", "group_size": 32)", kExpert,
       ".group_size: got 32; want 16 with NVFP4"},
      {R"("quant_algo": "W4A16_AWQ", "group_size": -1)", kExpert,
       ".group_size: got -1; want 1 or more"},
      {R"("quant_algo": "W4A16_AWQ", "has_zero_point": true)", kExpert,
       ".has_zero_point: got true; want false: weights with zero points are not read"},
      {R"("quant_algo": "mxfp4")", kExpert, "MXFP4 float4 g32 | e2m1 group 32 e8m0"},
      {R"("quant_algo": "fp8_pb_wo")", kExpert, "FP8_PB_WO float8 b128x128 | none"},
      {R"("quant_algo": "NVFP4_SVD")", kExpert,
       ".quant_algo: got \"NVFP4_SVD\"; want one of FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, "
       "NVFP4, NVFP4_AWQ, W4A16_NVFP4, W4A8_NVFP4_FP8, MXFP4, W4A8_MXFP4_FP8, MXFP8, W4A16_AWQ, "
       "W4A8_AWQ, W8A8_SQ_PER_CHANNEL, W8A16, MIXED_PRECISION"},
      {R"("quant_algo": ["FP8"])", kExpert, ".quant_algo: got [\"FP8\"]; want a string"},
      {R"("quant_algo": "FP8", "exclude_modules": {})", kExpert,
       ".exclude_modules: got {}; want a list of strings"},
      {R"("quant_algo": "FP8", "producer": {"version": 1})", kExpert,
       ".producer.version: got 1; want a string"},
  };
  for (const Row& row : rows) {
    const std::string found = row.found[0] == '.' ? std::string(kWhere) + row.found : row.found;
    EXPECT_EQ(with(row.keys, row.module), found) << row.keys;
  }
  EXPECT_EQ(line(R"({"quant_method": "modelopt_fp4", "quant_algo": "W4A16_NVFP4"})", kExpert),
            "W4A16_NVFP4 float4 g16 | none");
  EXPECT_EQ(line(R"({"quant_algo": "W4A16_NVFP4"})", kExpert), "W4A16_NVFP4 float4 g16 | none");
}

TEST(ModeloptConfig, ExclusionsAreWildcards) {
  struct Exclusion {
    const char* entry;
    const char* module;
    bool excluded;
  };
  const Exclusion rows[] = {
      {"lm_head", "lm_head", true},
      {"lm_head", "language_model.lm_head", true},
      {"model.layers.0.mlp.gate", "model.layers.0.mlp.gate", true},
      {"model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj", false},
      {"*mlp.gate", "model.layers.0.mlp.gate", true},
      {"*mlp.gate", "model.layers.0.mlp.gate_proj", false},
      {"*mlp.gate*", "model.layers.0.mlp.gate_proj", true},
      {"model.layers.0.self_attn*", "model.layers.0.self_attn.q_proj", true},
      {"model.layers.0.self_attn*", "model.language_model.layers.0.self_attn.q_proj", true},
      {"*router*", "model.layers.0.feed_forward.router", true},
      {"model.layers.61", kExpert, false},
      {"model.layers.0.mlp.experts", kExpert, true},
      {"*.mlp.experts", kExpert, true},
      {"model.layers.?.mlp.experts.[0-3].*", kExpert, true},
      {"mtp*", kExpert, false},
      {"mtp*", "mtp.layers.0.mlp.experts.0.up_proj", true},
  };
  for (const Exclusion& row : rows) {
    for (const char* key : {"exclude_modules", "ignore"}) {
      const std::string config = std::string(R"("quant_algo": "FP8", ")") + key +
                                 R"(": ["vision*", ")" + row.entry + "\"]";
      EXPECT_EQ(with(config, row.module), row.excluded ? "plain" : "FP8 float8 t | e4m3 static")
          << row.entry << " of " << row.module;
    }
  }
}

TEST(ModeloptConfig, MixedPrecisionIsByLayer) {
  const std::string config = R"("quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8",
      "exclude_modules": ["mtp*"], "group_size": 16, "quantized_layers": {
        "model.language_model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4",
                                                      "group_size": 16},
        "model.language_model.layers.0.mlp.shared_expert.gate_proj": {"quant_algo": "NVFP4"},
        "model.layers.3.self_attn.q_proj": {"quant_algo": "FP8"},
        "backbone.layers.4.mixer.experts.0.up_proj": {"quant_algo": "FP8_PB_WO",
                                                      "group_size": 64},
        "model.layers.5.a": {"quant_algo": "W9"}, "model.layers.5.b": "FP8",
        "model.layers.5.c": {}}
  )";
  const std::pair<const char*, std::string> rows[] = {
      {"model.language_model.layers.0.mlp.experts.7.up_proj", "W4A16_NVFP4 float4 g16 | none"},
      {"model.language_model.layers.0.mlp.experts.gate_up_proj", "W4A16_NVFP4 float4 g16 | none"},
      {"language_model.model.layers.0.mlp.experts.7.up_proj", "W4A16_NVFP4 float4 g16 | none"},
      {"model.language_model.layers.0.mlp.shared_expert.gate_proj",
       "NVFP4 float4 g16 | e2m1 static group 16 e4m3"},
      {"model.layers.3.self_attn.q_proj", "FP8 float8 t | e4m3 static"},
      {"model.layers.3.self_attn.k_proj", "plain"},
      {"backbone.layers.4.mixer.experts.up_proj", "FP8_PB_WO float8 b64x64 | none"},
      {"mtp.layers.0.mlp.experts.0.up_proj", "plain"},
      {"model.layers.5.b", std::string(kWhere) + ".quantized_layers.model.layers.5.b: got "
                                                 "\"FP8\"; want an object with quant_algo"},
      {"model.layers.5.c", "plain"},
  };
  for (const auto& [module, scheme] : rows) EXPECT_EQ(with(config, module), scheme) << module;
  const std::string wrong = with(config, "model.layers.5.a");
  EXPECT_EQ(wrong.find(std::string(kWhere) +
                       ".quantized_layers.model.layers.5.a.quant_algo: got \"W9\"; want one of"),
            0U)
      << wrong;
  EXPECT_EQ(with(R"("quant_algo": "MIXED_PRECISION")"),
            std::string(kWhere) +
                ".quantized_layers: got nothing; want an object of modules with quant_algo");
}

TEST(ModeloptConfig, TheOldFileSaysItsOwnName) {
  const Files files = {
      {"hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4", "group_size": 8}})"}};
  EXPECT_EQ(line("{}", files, kExpert),
            "hf_quant_config.json: quantization.group_size: got 8; want 16 with NVFP4");
}

}  // namespace
}  // namespace perch::scheme_rig
