// canonical/scheme.h: where a configuration is found, which method it is, fused experts, and files
// made to hurt.
#include "canonical/scheme.h"

#include <gtest/gtest.h>

#include "scheme_rig.h"

namespace perch::scheme_rig {
namespace {

const char kExpert[] = "model.layers.0.mlp.experts.3.gate_proj";
const char kGptq[] = R"({"bits": 4, "group_size": 128, "desc_act": false, "sym": true})";
const char kAwq[] = R"({"zero_point": true, "q_group_size": 64, "w_bit": 4, "version": "GEMM"})";
const char kModelopt[] = R"({"producer": {"name": "modelopt", "version": "0.29.0"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                     "exclude_modules": ["lm_head"]}})";

struct Place {
  const char* config;
  Files extra;
  const char* found;
  const char* where;
};

TEST(Scheme, TheConfigurationIsTheFirstOfThese) {
  const Place places[] = {
      {"{}", {}, "unstated", ""},
      {R"({"quantization_config": null})", {}, "unstated", ""},
      {R"({"quantization_config": {"quant_method": "fp8"}})",
       {{"quantize_config.json", kGptq}},
       "float8 t | e4m3 token",
       "config.json: quantization_config"},
      {R"({"compression_config": {"quant_method": "fp8"}})",
       {},
       "float8 t | e4m3 token",
       "config.json: compression_config"},
      {R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})",
       {},
       "float8 t | e4m3 token",
       "config.json: text_config.quantization_config"},
      {"{}",
       {{"hf_quant_config.json", kModelopt}, {"quantize_config.json", kGptq}},
       "NVFP4 float4 g16 | e2m1 static group 16 e4m3",
       "hf_quant_config.json: quantization.quant_algo"},
      {"{}",
       {{"quantize_config.json", kGptq}, {"quant_config.json", kAwq}},
       "gptq int4 g128-1 | none",
       "quantize_config.json"},
      {"{}", {{"quant_config.json", kAwq}}, "gemm int4 g64 z | none", "quant_config.json"},
      {"{}", {{"other.json", "["}}, "unstated", ""},
      // Not looked into, so not wrong either.
      {R"({"quantization_config": {"quant_method": "fp8"}})",
       {{"hf_quant_config.json", "["}},
       "float8 t | e4m3 token",
       "config.json: quantization_config"},
  };
  for (const Place& place : places) {
    const Result<Scheme> scheme = scheme_of(place.config, place.extra, kExpert);
    ASSERT_TRUE(scheme.ok()) << scheme.status().message();
    EXPECT_EQ(print(*scheme), place.found) << place.config;
    EXPECT_EQ(scheme->where, place.where);
  }
  EXPECT_EQ(scheme_of("{}", {{"hf_quant_config.json", kModelopt}}, kExpert)->version, "0.29.0");
}

TEST(Scheme, FilesThatAreNoConfiguration) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"hf_quant_config.json", "[]",
       "hf_quant_config.json: got text that is not a JSON object; want a quantization config as "
       "its "
       "tool writes it"},
      {"hf_quant_config.json", "{}",
       "hf_quant_config.json: quantization: got nothing; want an object with quant_algo"},
      {"hf_quant_config.json", R"({"quantization": []})",
       "hf_quant_config.json: quantization: got array; want an object with quant_algo"},
      {"quantize_config.json", "{",
       "quantize_config.json: got text that is not a JSON object; want a quantization config as "
       "its "
       "tool writes it"},
      {"quantize_config.json", R"({"group_size": 128, "sym": true})",
       "quantize_config.json: bits: got nothing; want 2, 3, 4 or 8"},
      {"quant_config.json", R"({"w_bit": "4"})",
       "quant_config.json: w_bit: got \"4\"; want an integer"},
  };
  for (const auto& [file, text, message] : cases) {
    EXPECT_EQ(line("{}", {{file, text}}, kExpert), message);
  }
  EXPECT_NE(line("{}", {{"quant_config.json", std::string(200, '[')}}, kExpert)
                .find("quant_config.json: got values nested deeper than 127"),
            std::string::npos);
}

const char kMethodsWanted[] = "want one of compressed-tensors, modelopt, fp8, gptq, awq, mxfp4";

TEST(Scheme, MethodsThatAreNotRead) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"quant_method": "bitsandbytes"})", "got \"bitsandbytes\", which is nf4, fp4 or"},
      {R"({"load_in_4bit": true})", "got the keys of \"bitsandbytes\", which is nf4"},
      {R"({"bits": 4, "group_size": 64})", "got the keys of \"mlx\", which is MLX's"},
      {R"({"quant_method": "fbgemm_fp8"})", "got \"fbgemm_fp8\", which is fp8 weights"},
      {R"({"quant_method": "auto-round"})", "got \"auto-round\", which is GPTQ or AWQ tensors"},
      {R"({"quant_method": "quark"})", "got \"quark\", which is"},
      {R"({"quant_method": "hqq"})", "got \"hqq\", which is"},
      {R"({"quant_method": "quanto"})", "got \"quanto\", which is"},
      {R"({"quant_method": "torchao"})", "got \"torchao\", which is"},
      {R"({"quant_method": "bitnet"})", "got \"bitnet\", which is"},
      {R"({"quant_method": "aqlm"})", "got \"aqlm\", which is"},
      {R"({"quant_method": "vptq"})", "got \"vptq\", which is"},
      {R"({"quant_method": "higgs"})", "got \"higgs\", which is"},
      {R"({"quant_method": "spqr"})", "got \"spqr\", which is"},
      {R"({"quant_method": "exl3"})", "got \"exl3\", which is"},
      {R"({"quant_method": "gguf"})", "got \"gguf\", which is"},
      {R"({"quant_method": "marlin"})", "got \"marlin\", which is"},
      {R"({"quant_method": "new"})", "got \"new\"; want one of"},
      {R"({"quant_method": "compressed_tensors"})", "did you mean \"compressed-tensors\"?"},
  };
  for (const auto& [config, text] : cases) {
    const Result<Scheme> scheme =
        scheme_of(std::string(R"({"quantization_config": )") + config + "}", {}, kExpert);
    ASSERT_FALSE(scheme.ok()) << config;
    EXPECT_EQ(scheme.status().code(), PERCH_E_UNSUPPORTED);
    const std::string message = scheme.status().message();
    EXPECT_EQ(message.find("config.json: quantization_config.quant_method: got "), 0U) << message;
    EXPECT_NE(message.find(text), std::string::npos) << message;
    EXPECT_NE(message.find(kMethodsWanted), std::string::npos) << message;
  }
}

TEST(Scheme, ConfigurationsOfTheWrongType) {
  const std::string where = "config.json: quantization_config";
  const std::pair<const char*, std::string> cases[] = {
      {"[]", ": got []; want an object with quant_method"},
      {"\"fp8\"", ": got \"fp8\"; want an object with quant_method"},
      {"0", ": got 0; want an object with quant_method"},
      {"{}", std::string(".quant_method: got nothing; ") + kMethodsWanted},
      {R"({"quant_method": 4})", ".quant_method: got 4; want a string"},
      {R"({"quant_method": ["fp8"]})", ".quant_method: got [\"fp8\"]; want a string"},
  };
  for (const auto& [config, message] : cases) {
    EXPECT_EQ(line(config, kExpert), where + message);
  }
}

// ---- Fused experts

std::string groups(const std::string& first, const std::string& second, const char* ignore = "") {
  return R"({"quant_method": "compressed-tensors", "ignore": [)" + std::string(ignore) +
         R"(], "config_groups": {"a": {"targets": [)" + first +
         R"(], "weights": {"num_bits": 8, "strategy": "channel"}}, "b": {"targets": [)" + second +
         R"(], "weights": {"num_bits": 4, "group_size": 32}}}})";
}

TEST(Scheme, FusedExpertsGoByTheirPartsToo) {
  const std::string gate_up = "model.layers.0.mlp.experts.gate_up_proj";
  const std::string down = "model.layers.0.mlp.experts.down_proj";
  const char kAll[] = R"("re:.*experts\\..*")";
  const char kEach[] = R"("re:.*experts\\.\\d+\\..*_proj$")";
  const char kUp[] = R"("re:.*\\.up_proj$")";
  const char kByName[] = R"("model.layers.0.mlp.experts.gate_up_proj")";
  EXPECT_EQ(line(groups("", kAll), gate_up), "int4 g32 | none");
  EXPECT_EQ(line(groups("", kEach), gate_up), "int4 g32 | none");
  EXPECT_EQ(line(groups("", kEach), down), "int4 g32 | none");
  EXPECT_EQ(line(groups("", kByName), gate_up), "int4 g32 | none");
  EXPECT_EQ(line(groups("", kByName), down), "plain");
  EXPECT_EQ(line(groups(R"("Linear")", "", kByName), gate_up), "plain");
  EXPECT_EQ(line(groups(R"("Linear")", "", kByName), down), "int8 c | none");
  EXPECT_EQ(line(groups(R"("re:.*attn")", ""), gate_up), "plain");
  EXPECT_EQ(line(groups(kAll, kUp), gate_up),
            "config.json: quantization_config.config_groups: got "
            "config.json: quantization_config.config_groups.a and "
            "config.json: quantization_config.config_groups.b, which match module "
            "\"model.layers.0.mlp.experts.0.up_proj\" equally well and differ; want one to match");
  EXPECT_EQ(line(groups(R"("Linear")", kUp), gate_up),
            "config.json: quantization_config: got 8 bits int (config.json: "
            "quantization_config.config_groups.a) for "
            "\"model.layers.0.mlp.experts.0.gate_proj\" and 4 bits int (config.json: "
            "quantization_config.config_groups.b) for \"model.layers.0.mlp.experts.0.up_proj\" in "
            "the fused tensor \"model.layers.0.mlp.experts.gate_up_proj\"; want one scheme for all "
            "of it");
  EXPECT_NE(line(groups(R"("Linear")", "", kUp), gate_up)
                .find("not quantized (config.json: "
                      "quantization_config.ignore[0])"),
            std::string::npos);
}

// ---- Files made to hurt

TEST(Scheme, EveryMethodRefusesEveryWrongType) {
  const std::map<std::string, std::vector<const char*>> keys = {
      {"compressed-tensors",
       {"config_groups", "ignore", "version", "transform_config", "sparsity_config"}},
      {"modelopt", {"quant_algo", "exclude_modules", "ignore", "group_size"}},
      {"fp8",
       {"weight_block_size", "activation_scheme", "modules_to_not_convert", "ignored_layers",
        "scale_fmt", "fmt", "expert_dtype"}},
      {"gptq",
       {"bits", "group_size", "sym", "desc_act", "lm_head", "dynamic", "checkpoint_format",
        "format", "pack_dtype", "is_marlin_format", "modules_in_block_to_quantize"}},
      {"awq", {"bits", "group_size", "zero_point", "version", "modules_to_not_convert", "lm_head"}},
      {"mxfp4", {"modules_to_not_convert"}},
  };
  // Right but for the key under test; a value of a type that no key has.
  const std::map<std::string, const char*> rest = {
      {"compressed-tensors", R"(, "config_groups": {})"},
      {"modelopt", R"(, "quant_algo": "NVFP4")"},
      {"gptq", R"(, "bits": 4)"},
      {"awq", R"(, "bits": 4)"},
  };
  for (const auto& [method, names] : keys) {
    for (const char* name : names) {
      for (const char* value : {"1.5", "[1]", "[[]]", "18446744073709551615"}) {
        // The later of two equal keys counts.
        const std::string other = rest.contains(method) ? rest.at(method) : "";
        const std::string config =
            R"({"quant_method": ")" + method + "\"" + other + ", \"" + name + "\": " + value + "}";
        if (std::string(name).ends_with("quantize") && value == std::string("[[]]")) continue;
        const std::string got = line(config, kExpert);
        EXPECT_EQ(got.find("config.json: quantization_config."), 0U) << config << " -> " << got;
        EXPECT_NE(got.find("; want "), std::string::npos) << config << " -> " << got;
      }
    }
  }
}

TEST(Scheme, MessagesStayShort) {
  const std::string huge(100000, 'x');
  const std::string configs[] = {
      R"({"quant_method": ")" + huge + "\"}",
      R"({"quant_method": "gptq", "bits": ")" + huge + "\"}",
      R"({"quant_method": "gptq", "bits": 4, "dynamic": {"(?i))" + huge + "\": {}}}",
      R"({"quant_method": "compressed-tensors", "config_groups": {")" + huge + "\": 1}}",
      R"({"quant_method": "fp8", "ignored_layers": ["re:(?i))" + huge + "\"]}",
      std::string(R"({"quant_method": "compressed-tensors", "config_groups": {"a\nb": 1}})"),
  };
  for (const std::string& config : configs) {
    const std::string message = line(config, kExpert);
    EXPECT_LT(message.size(), 700U) << message.substr(0, 200);
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_NE(message.find("; want "), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace perch::scheme_rig
