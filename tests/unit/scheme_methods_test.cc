// quant_method fp8, gptq, awq and mxfp4: configurations as they are found, and refusals.
#include <gtest/gtest.h>

#include "scheme_rig.h"

namespace perch::scheme_rig {
namespace {

const char kExpert[] = "model.layers.0.mlp.experts.3.gate_proj";
const char kDense[] = "model.layers.0.mlp.gate_proj";
const char kRouter[] = "model.layers.0.mlp.gate";
const char kWhere[] = "config.json: quantization_config";

struct Row {
  const char* keys;  // beside quant_method
  const char* module;
  const char* found;  // with "." at its start after the configuration's path
};

template <size_t n>
void check(const char* method, const Row (&rows)[n]) {
  for (const Row& row : rows) {
    const std::string config =
        std::string(R"({"quant_method": ")") + method + "\"" + row.keys + "}";
    const std::string found = row.found[0] == '.' ? std::string(kWhere) + row.found : row.found;
    EXPECT_EQ(line(config, row.module), found) << config;
  }
}

TEST(Fp8Config, Schemes) {
  const Row rows[] = {
      {R"(, "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128])",
       kExpert, "float8 b128x128 | e4m3 group 128"},
      {R"(, "weight_block_size": [128, 128], "scale_fmt": "ue8m0")", kExpert,
       "float8 b128x128 | e4m3 group 128 e8m0"},
      {R"(, "weight_block_size": [64, 32])", kExpert, "float8 b64x32 | e4m3 group 32"},
      {R"(, "activation_scheme": "static")", kExpert, "float8 t | e4m3 static"},
      // Of the whole input in the file, which is not batch invariant.
      {R"(, "activation_scheme": "dynamic", "weight_block_size": null)", kExpert,
       "float8 t | e4m3 token"},
      {R"(, "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "expert_dtype": "fp4")",
       "layers.3.ffn.experts.7.w1", "fp4 float4 g32 | e4m3 group 128 e8m0"},
      {R"(, "weight_block_size": [128, 128], "expert_dtype": "fp4")",
       "layers.3.ffn.shared_experts.w1", "float8 b128x128 | e4m3 group 128"},
      {R"(, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"])", kRouter, "plain"},
      {R"(, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"])", kDense,
       "float8 t | e4m3 token"},
      {R"(, "modules_to_not_convert": ["gate", "e_score_correction_bias"])", kRouter, "plain"},
      {R"(, "modules_to_not_convert": ["gate", "e_score_correction_bias"])", kExpert,
       "float8 t | e4m3 token"},
      {R"(, "ignored_layers": ["model.layers.0"])", kExpert, "plain"},
      {R"(, "ignored_layers": ["re:.*experts.*"])", kExpert, "plain"},
      {R"(, "modules_to_not_convert": null)", kExpert, "float8 t | e4m3 token"},
      {R"(, "weight_block_size": [128, 128], "activation_scheme": "static")", kExpert,
       ".activation_scheme: got \"static\"; want dynamic with weight_block_size"},
      {R"(, "activation_scheme": "none")", kExpert,
       ".activation_scheme: got \"none\"; want dynamic or static"},
      {R"(, "weight_block_size": [128])", kExpert,
       ".weight_block_size: got [128]; want two sizes [rows, columns], or none"},
      {R"(, "weight_block_size": 128)", kExpert,
       ".weight_block_size: got 128; want two sizes [rows, columns], or none"},
      {R"(, "weight_block_size": [128, "128"])", kExpert,
       ".weight_block_size[1]: got \"128\"; want an integer"},
      {R"(, "weight_block_size": [128, -1])", kExpert,
       ".weight_block_size: got [128,-1]; want two sizes [rows, columns], or none"},
      {R"(, "fmt": "e5m2")", kExpert, ".fmt: got \"e5m2\"; want e4m3"},
      {R"(, "scale_fmt": "e3m4")", kExpert, ".scale_fmt: got \"e3m4\"; want ue8m0, float or none"},
      {R"(, "expert_dtype": "fp6")", kExpert,
       ".expert_dtype: got \"fp6\"; want fp4 or fp8 (the key may also stand beside "
       "quantization_config)"},
      {R"(, "ignored_layers": "lm_head")", kExpert,
       ".ignored_layers: got \"lm_head\"; want a list of strings"},
      {R"(, "ignored_layers": ["a", "re:("])", kExpert,
       ".ignored_layers[1]: got the pattern \"(\"; want each ( to have its )"},
  };
  check("fp8", rows);
}

TEST(Fp8Config, ExpertDtypeStandsBesideTheConfiguration) {
  const std::string config = R"({"expert_dtype": "fp4", "quantization_config":
      {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}})";
  EXPECT_EQ(line(config, {}, "layers.3.ffn.experts.7.w1"), "fp4 float4 g32 | e4m3 group 128 e8m0");
  EXPECT_EQ(line(config, {}, "layers.3.attn.wq_a"), "float8 b128x128 | e4m3 group 128 e8m0");
}

TEST(GptqConfig, Schemes) {
  const Row rows[] = {
      {R"(, "bits": 4, "group_size": 128, "desc_act": false, "sym": true, "damp_percent": 0.1,
          "true_sequential": true, "checkpoint_format": "gptq", "pack_dtype": "int32")",
       kExpert, "gptq int4 g128-1 | none"},
      {R"(, "bits": 4, "group_size": 128, "desc_act": true, "sym": false)", kExpert,
       "gptq int4 g128 z-1 idx | none"},
      {R"(, "bits": 8, "group_size": -1, "desc_act": true, "sym": true)", kExpert,
       "gptq int8 c-1 | none"},
      {R"(, "bits": 3, "group_size": 32, "sym": true, "checkpoint_format": "gptq_v2")", kExpert,
       "gptq_v2 int3 g32 | none"},
      {R"(, "bits": 4, "sym": true, "format": "gptq_v2", "checkpoint_format": "gptq_v2")", kExpert,
       "gptq_v2 int4 g? | none"},
      // Zero points are stored in any case, so they are read where sym is not said.
      {R"(, "bits": 4, "group_size": 64)", kExpert, "gptq int4 g64 z-1 | none"},
      {R"(, "bits": 4, "sym": true)", "lm_head", "plain"},
      {R"(, "bits": 4, "sym": true, "lm_head": true)", "lm_head", "gptq int4 g?-1 | none"},
      {R"(, "bits": 4, "sym": true,
          "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.gate_proj"]])",
       kDense, "gptq int4 g?-1 | none"},
      {R"(, "bits": 4, "sym": true, "modules_in_block_to_quantize": ["mlp.gate"])", kDense,
       "plain"},
      {R"(, "bits": 4, "sym": true, "modules_in_block_to_quantize": ["lp.gate_proj"])", kDense,
       "plain"},
      {"", kExpert, ".bits: got nothing; want 2, 3, 4 or 8"},
      {R"(, "bits": 5)", kExpert,
       ".bits: got 5; want 2, 3, 4 or 8: 5 to 7 bits are stored in planes, which are not read"},
      {R"(, "bits": 16)", kExpert, ".bits: got 16; want 2, 3, 4 or 8"},
      {R"(, "bits": 4.0)", kExpert, ".bits: got 4.0; want an integer"},
      {R"(, "bits": 4, "group_size": 0)", kExpert,
       ".group_size: got 0; want -1 (whole rows) or 1 and more"},
      {R"(, "bits": 4, "desc_act": "false")", kExpert,
       ".desc_act: got \"false\"; want true or false"},
      {R"(, "bits": 4, "checkpoint_format": "gptq_p")", kExpert,
       ".checkpoint_format: got \"gptq_p\"; want gptq or gptq_v2: planar (gptq_p) and kernels' own "
       "orders are not read"},
      {R"(, "bits": 4, "checkpoint_format": "marlin")", kExpert,
       ".checkpoint_format: got \"marlin\"; want gptq or gptq_v2: planar (gptq_p) and kernels' own "
       "orders are not read"},
      {R"(, "bits": 4, "is_marlin_format": true)", kExpert,
       ".is_marlin_format: got true; want false: the Marlin kernel's own order is not read"},
      {R"(, "bits": 4, "checkpoint_format": "gptq", "format": "gptq_v2")", kExpert,
       ".format: got \"gptq_v2\"; want \"gptq\", as checkpoint_format says"},
      {R"(, "bits": 4, "pack_dtype": "int16")", kExpert, ".pack_dtype: got \"int16\"; want int32"},
  };
  check("gptq", rows);
}

TEST(GptqConfig, OverridesByPattern) {
  const Row rows[] = {
      {R"(, "bits": 4, "group_size": 128, "sym": true,
          "dynamic": {"+:.*\\.experts\\..*": {"bits": 8, "group_size": -1}})",
       kExpert, "gptq int8 c-1 | none"},
      {R"(, "bits": 4, "group_size": 128, "sym": true,
          "dynamic": {".*experts": {"sym": false, "desc_act": true, "mse": 2.4}})",
       kExpert, "gptq int4 g128 z-1 idx | none"},
      {R"(, "bits": 4, "group_size": 128, "sym": true, "dynamic": {"-:.*experts": {}})", kExpert,
       "plain"},
      {R"(, "bits": 4, "group_size": 128, "sym": true, "dynamic": {"-:.*mlp\\.gate$": {}})", kDense,
       "gptq int4 g128-1 | none"},
      {R"(, "bits": 4, "group_size": 128, "sym": true, "dynamic": {"-:.*mlp\\.gate$": {}})",
       kRouter, "plain"},
      // From the start of the name, as its tool has it.
      {R"(, "bits": 4, "group_size": 128, "sym": true, "dynamic": {"-:experts": {}})", kExpert,
       "gptq int4 g128-1 | none"},
      {R"(, "bits": 4, "sym": true, "dynamic": {"lm_head": {"bits": 8}})", "lm_head",
       "gptq int8 g?-1 | none"},
      {R"(, "bits": 4, "sym": true, "dynamic": {"-:.*experts": {}, "-:.*gate_proj": {}})", kExpert,
       "plain"},
      {R"(, "bits": 4, "dynamic": {"-:.*experts": {}, ".*gate_proj": {"bits": 8}})", kExpert,
       ".dynamic: got the patterns \"-:.*experts\" and \".*gate_proj\", which both match module "
       "\"model.layers.0.mlp.experts.3.gate_proj\" and differ; want one to match"},
      {R"(, "bits": 4, "dynamic": {".*experts": {"bits": 16}})", kExpert,
       ".dynamic..*experts.bits: got 16; want 2, 3, 4 or 8"},
      {R"(, "bits": 4, "dynamic": {".*experts": {"adapter": {}}})", kExpert,
       ".dynamic..*experts.adapter: got {}; want only bits, group_size, sym and desc_act by "
       "module"},
      {R"(, "bits": 4, "dynamic": {".*experts": 8})", kExpert,
       ".dynamic..*experts: got 8; want an object of settings"},
      {R"(, "bits": 4, "dynamic": ["a"])", kExpert,
       ".dynamic: got [\"a\"]; want an object of patterns"},
      {R"(, "bits": 4, "dynamic": {"-:(?<!a)b": {}})", kExpert,
       ".dynamic.-:(?<!a)b: got the pattern \"(?<!a)b\"; want no (? but (?: (?= (?! and "
       "(?P<name>"},
  };
  check("gptq", rows);
}

TEST(GptqConfig, TheVersionIsTheQuantizers) {
  const char kConfig[] = R"({"quantization_config": {"quant_method": "gptq", "bits": 4,
      "meta": {"quantizer": ["gptqmodel:4.0.0"]}}})";
  EXPECT_EQ(scheme_of(kConfig, {}, kExpert)->version, "gptqmodel:4.0.0");
}

TEST(AwqConfig, Schemes) {
  const Row rows[] = {
      {R"(, "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm",
          "modules_to_not_convert": null)",
       kExpert, "gemm int4 g128 z | none"},
      {R"(, "w_bit": 4, "q_group_size": 64, "zero_point": false, "version": "GEMM")", kExpert,
       "gemm int4 g64 | none"},
      {R"(, "bits": 4, "group_size": -1)", kExpert, "gemm int4 c z | none"},
      {R"(, "bits": 4)", kExpert, "gemm int4 g? z | none"},
      {R"(, "bits": 4)", "lm_head", "plain"},
      // Any part of the name, as its tool has it.
      {R"(, "bits": 4, "modules_to_not_convert": ["gate"])", kRouter, "plain"},
      {R"(, "bits": 4, "modules_to_not_convert": ["gate"])", kExpert, "plain"},
      {R"(, "bits": 4, "modules_to_not_convert": ["mlp.gate"])", kExpert, "gemm int4 g? z | none"},
      {R"(, "bits": 4, "modules_to_not_convert": [""])", kExpert, "gemm int4 g? z | none"},
      {"", kExpert, ".bits: got nothing; want 4"},
      {R"(, "w_bit": 3)", kExpert, ".w_bit: got 3; want 4"},
      {R"(, "bits": 4, "group_size": 0)", kExpert,
       ".group_size: got 0; want -1 (whole rows) or 1 and more"},
      {R"(, "bits": 4, "version": "gemv")", kExpert,
       ".version: got \"gemv\"; want gemm: gemv, gemv_fast, llm-awq and marlin have orders that "
       "are "
       "not read"},
      {R"(, "bits": 4, "version": "GEMV_FAST")", kExpert,
       ".version: got \"GEMV_FAST\"; want gemm: gemv, gemv_fast, llm-awq and marlin have orders "
       "that are not read"},
      {R"(, "bits": 4, "backend": "llm-awq")", kExpert,
       ".backend: got \"llm-awq\"; want autoawq: llm-awq's order is not read"},
      {R"(, "bits": 4, "dynamic": {"a":{}})", kExpert,
       ".dynamic: got {\"a\":{}}; want none with awq"},
  };
  check("awq", rows);
}

TEST(Mxfp4Config, OnlyExperts) {
  const char kSkips[] =
      R"(, "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
          "model.embed_tokens", "lm_head"])";
  const Row rows[] = {
      {kSkips, "model.layers.0.mlp.experts.gate_up_proj", "float4 g32 | none"},
      {kSkips, "model.layers.0.mlp.experts.down_proj", "float4 g32 | none"},
      {kSkips, "model.layers.0.self_attn.q_proj", "plain"},
      {"", "model.layers.0.self_attn.q_proj", "plain"},
      {"", kExpert, "float4 g32 | none"},
      {R"(, "modules_to_not_convert": ["model.layers.0"])",
       "model.layers.0.mlp.experts.gate_up_proj", "plain"},
      {R"(, "modules_to_not_convert": [0])", kExpert,
       ".modules_to_not_convert[0]: got 0; want a string"},
  };
  check("mxfp4", rows);
}

}  // namespace
}  // namespace perch::scheme_rig
