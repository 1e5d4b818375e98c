// base/case_line.h and base/recipe.h: text to struct and back.
#include "base/case_line.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/config_rules.h"
#include "base/recipe.h"

namespace {

using perch::Case;
using perch::parse_case;
using perch::print_case;

// ---- Recipes -----------------------------------------------------------------------------------

struct Spelling {
  const char* text;
  const char* printed;
};

TEST(Recipe, WeightsPrintInFull) {
  const Spelling spellings[] = {
      {"bf16", "bf16"},
      {"int4g32:bf16+z", "int4g32:bf16+z"},
      {"int4g32", "int4g32:f32"},
      {"int8c:f32+z0", "int8c:f32+z0"},
      {"e4m3t:f32", "e4m3t:f32"},
      {"e4m3b128", "e4m3b128:f32"},
      {"e4m3b128x128:f32", "e4m3b128:f32"},
      {"e4m3b1x128:bf16", "e4m3b1x128:bf16"},
      {"int3g64:f16+pre+bias+gidx+s2c+off+zf", "int3g64:f16+zf+off+s2c+gidx+bias+pre"},
      {"int4g128:f16+z+gidx12", "int4g128:f16+z+gidx12"},
      {"lut4g64:f16", "lut4g64:f16"},
      {"mxfp4", "e2m1g32:e8m0"},
      {"mxfp4+bias", "e2m1g32:e8m0+bias"},
      {"mxfp8", "e4m3g32:e8m0"},
      {"nvfp4", "e2m1g16:e4m3+s2t"},
      {"fp8", "e4m3b128:f32"},
  };
  for (const auto& [text, printed] : spellings) {
    const auto quant = perch::parse_weight(text);
    ASSERT_TRUE(quant.ok()) << quant.status().message();
    EXPECT_EQ(perch::print_weight(*quant), printed);
  }
}

TEST(Recipe, BlocksAreRowsByColumns) {
  const perch_quant quant = *perch::parse_weight("e4m3b64x128:f32");
  EXPECT_EQ(quant.group_n, 64u);
  EXPECT_EQ(quant.group_k, 128u);
}

TEST(Recipe, InputsPrintTheirShortForm) {
  const Spelling spellings[] = {
      {"none", "none"},
      {"int8", "int8t"},
      {"int8t:f32", "int8t"},
      {"e4m3g128", "e4m3g128"},
      {"e4m3g32:e8m0", "e4m3g32:e8m0"},
      {"e4m3s", "e4m3s"},
      {"e2m1sg16", "e2m1sg16:e4m3"},
      {"e2m1g32", "e2m1g32:e8m0"},
      {"e2m1g32:f32", "e2m1g32:f32"},
      {"nvfp4", "e2m1sg16:e4m3"},
      {"mxfp4", "e2m1g32:e8m0"},
      {"mxfp8", "e4m3g32:e8m0"},
      {"fp8", "e4m3t"},
  };
  for (const auto& [text, printed] : spellings) {
    const auto act = perch::parse_act(text);
    ASSERT_TRUE(act.ok()) << act.status().message();
    EXPECT_EQ(perch::print_act(*act), printed);
  }
}

TEST(Recipe, FaultsNameThePlaceAndTheWish) {
  EXPECT_EQ(perch::parse_weight("int4q32:bf16").status().message(),
            "weight 'int4q32:bf16': at character 5, 'q32': want t, c, g<int> or b<int>[x<int>] "
            "after the type");
  const std::pair<const char*, std::size_t> faults[] = {
      {"", 0},
      {"int9", 0},
      {"e8m0", 0},
      {"bf16:f32", 4},
      {"int4g", 5},
      {"int4g0", 5},
      {"int4g032", 5},
      {"int4g-1", 5},
      {"int4g32:", 8},
      {"int4g32:int8", 8},
      {"int4g4294967296", 5},
      {"int4g32:f32+", 12},
      {"int4g32+zz", 9},
      {"int4g32+z+z", 10},
      {"int4g32+z+zf", 10},
      {"int4g32+s2t+s2c", 12},
      {"e4m3t+z0", 6},
      {"mxfp4:f32", 5},
      {"e4m3b128x", 9},
      {"int4g32 ", 7},
  };
  for (const auto& [text, offset] : faults) {
    perch_quant quant{};
    const auto fault = perch::scan_weight(text, &quant);
    ASSERT_TRUE(fault) << text;
    EXPECT_EQ(fault->offset, offset) << text << ": " << fault->want;
  }
  for (const char* text : {"int4", "e2m1:", "int8g", "int8x", "nonet", "mxfp4+bias", "int8t:"}) {
    EXPECT_FALSE(perch::parse_act(text).ok()) << text;
  }
}

TEST(Recipe, Aliases) {
  using Names = std::vector<std::string>;
  const std::pair<const char*, Names> cases[] = {
      {"bf16", {"bf16"}},
      {"int4g32:bf16+z", {"int4g32:bf16+z", "int4g32:bf16", "int4g32", "int4"}},
      {"nvfp4", {"e2m1g16:e4m3+s2t", "e2m1g16:e4m3", "e2m1g16", "nvfp4", "e2m1"}},
      {"mxfp4", {"e2m1g32:e8m0", "e2m1g32", "mxfp4", "e2m1"}},
      {"mxfp8", {"e4m3g32:e8m0", "e4m3g32", "mxfp8", "e4m3"}},
      {"fp8", {"e4m3b128:f32", "e4m3b128", "fp8", "e4m3"}},
      {"e5m2c:f32", {"e5m2c:f32", "e5m2c", "fp8", "e5m2"}},
  };
  for (const auto& [text, names] : cases) {
    EXPECT_EQ(perch::format_aliases(*perch::parse_weight(text)), names) << text;
  }
}

TEST(Recipe, ActivationTableIsTheAbis) {
  EXPECT_EQ(perch::activation_table().size(), size_t{PERCH_ACTIVATION_RELU2_NO_MUL});
  for (const perch::ActivationInfo& info : perch::activation_table()) {
    EXPECT_EQ(perch::activation_info(info.activation), &info);
    EXPECT_EQ(perch::activation_info(std::string_view(info.name)), &info);
    EXPECT_EQ(info.needs & ~info.allows, 0u);
    const bool no_mul = std::string(info.name).find("_no_mul") != std::string::npos;
    EXPECT_EQ(perch_activation_is_gated(info.activation) == 0, no_mul) << info.name;
  }
  EXPECT_EQ(perch::activation_info(0u), nullptr);
  EXPECT_EQ(perch::activation_info("mish"), nullptr);
}

TEST(Recipe, Capabilities) {
  const perch_caps caps = PERCH_CAP_BATCH_INVARIANT | PERCH_CAP_ASYNC | (perch_caps{1} << 17);
  EXPECT_EQ(perch::print_caps(caps), "batch_invariant,async,bit17");
  EXPECT_EQ(perch::print_caps(0), "");
  EXPECT_EQ(perch::parse_cap("Batch_INVARIANT"), PERCH_CAP_BATCH_INVARIANT);
  EXPECT_EQ(perch::parse_cap("batch"), std::nullopt);
  for (const std::string& name : perch::cap_names(PERCH_CAPS_KNOWN)) {
    EXPECT_EQ(perch::print_caps(*perch::parse_cap(name)), name);
  }
  EXPECT_EQ(perch::parse_cap("prequantized_input"), PERCH_CAP_PREQUANTIZED_INPUT);
  EXPECT_EQ(perch::cap_names(PERCH_CAPS_KNOWN).size(), 14u);
}

// ---- Case lines --------------------------------------------------------------------------------

constexpr const char* kContractExample =
    "moe t4 e8 top2 h64 i96 w=int4g32:bf16+z a=int8t act=silu load=zipf seed=7";

TEST(CaseLine, ReadsTheContractsExample) {
  const auto problem = parse_case(kContractExample);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const perch::LayerConfig& config = problem->config;
  EXPECT_EQ(problem->t, 4);
  EXPECT_EQ(config.abi().max_tokens, 4);
  EXPECT_EQ(config.moe().num_experts, 8u);
  EXPECT_EQ(config.moe().num_experts_global, 8u);
  EXPECT_EQ(config.moe().topk, 2u);
  EXPECT_EQ(config.moe().hidden, 64);
  EXPECT_EQ(config.moe().intermediate, 96);
  EXPECT_EQ(config.moe().activation, PERCH_ACTIVATION_SILU);
  EXPECT_EQ(config.second().zero_kind, PERCH_ZERO_INT);
  EXPECT_EQ(config.act_second().dtype, PERCH_TYPE_INT8);
  EXPECT_EQ(problem->load, "zipf");
  EXPECT_EQ(problem->seed, 7u);
  EXPECT_EQ(print_case(*problem), kContractExample);
  EXPECT_EQ(perch::recipe_text(config), "w=int4g32:bf16+z a=int8t act=silu");
}

TEST(CaseLine, CanonicalOrderWithoutDefaults) {
  const Spelling spellings[] = {
      {" moe\tact=silu load=uniform seed=0 w=mxfp4 i96 h64 top2 e8 t0 in=bf16 a=none eg8 w2=mxfp4 ",
       "moe t0 e8 top2 h64 i96 w=e2m1g32:e8m0 act=silu"},
      {"linear k4 n3 t2 require=ASYNC,deterministic threads=2 kernel=a_b:c=d strided w=fp8 o=f32",
       "linear t2 n3 k4 w=e4m3b128:f32 o=f32 strided kernel=a_b:c=d threads=2 "
       "require=deterministic,async"},
      {"moe wx ids=i64 ep=1/2 t1 e4 eg8 top1 h8 i8 w=bf16 w2=int8c:f32 a2=int8t "
       "act=swigluoai:1.7020:1.0:7 load=empty:0,7",
       "moe t1 e4 eg8 top1 h8 i8 w=bf16 w2=int8c:f32 a2=int8t act=swigluoai:1.702:1:7 "
       "load=empty:0,7 ids=i64 wx ep=1/2"},
      {"moe t1 e4 top1 h8 i8 w=bf16 act=situ:-:2:- form=grouped a=int8t a2=none",
       "moe t1 e4 top1 h8 i8 w=bf16 a=int8t a2=none act=situ:-:2:- form=grouped"},
  };
  for (const auto& [text, printed] : spellings) {
    const auto problem = parse_case(text);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    EXPECT_EQ(print_case(*problem), printed);
  }
}

// Draws parts of a line; `random` decides alone, so a failure's number is enough to repeat it.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  std::string one_of(const std::vector<std::string>& words) {
    return words[random_() % words.size()];
  }
  std::string maybe(const std::vector<std::string>& words) {
    return random_() % 2 == 0 ? " " + one_of(words) : "";
  }
  std::string number(const std::string& key, unsigned low, unsigned high) {
    return " " + key + std::to_string(low + random_() % (high - low + 1));
  }
  std::string weight() {
    return one_of({"bf16", "f32+bias", "int4g32:bf16", "int4g32:bf16+z", "int8c:f32+z0",
                   "int3g64:f16+zf+off+s2c+gidx+bias+pre", "int5g64:f16+gidx7", "e4m3b128:f32",
                   "e4m3b32x64:bf16", "e5m2t:f32", "e2m1g16:e4m3+s2t", "e2m1g32:e8m0+bias",
                   "e3m2g32:e8m0", "lut4g64:f16+off", "lut4c:f32+zf"});
  }
  std::string act() {
    return one_of({"none", "int8t", "int8g32:e8m0", "int8s", "e4m3t", "e4m3g128", "e2m1g32:e8m0",
                   "e2m1sg16:e4m3"});
  }

 private:
  std::mt19937 random_;
};

std::string tail_of_line(Draw& draw) {
  return draw.maybe({"in=f16", "in=f32", "in=bf16"}) + draw.maybe({"o=f32", "o=f16"}) +
         draw.maybe({"strided"}) + draw.maybe({"seed=1", "seed=18446744073709551615"}) +
         draw.maybe({"kernel=bf16_mxfp4_bf16_8x32_avx512"}) + draw.maybe({"threads=3"}) +
         draw.maybe({"require=batch_invariant", "require=deterministic,async,inplace"});
}

std::string draw_line(unsigned seed) {
  Draw draw(seed);
  if (seed % 4 == 0) {
    return "linear" + draw.number("t", 0, 300) + draw.number("n", 1, 5000) +
           draw.number("k", 1, 5000) + " w=" + draw.weight() + draw.maybe({"a=" + draw.act()}) +
           tail_of_line(draw);
  }
  return "moe" + draw.number("t", 0, 300) + draw.number("e", 4, 64) +
         draw.maybe({"eg64", "eg128"}) + draw.number("top", 1, 4) + draw.number("h", 1, 4096) +
         draw.number("i", 1, 4096) + " w=" + draw.weight() + draw.maybe({"w2=" + draw.weight()}) +
         draw.maybe({"a=" + draw.act()}) + draw.maybe({"a2=" + draw.act()}) + " act=" +
         draw.one_of({"silu", "silu:-:-:7", "gelu", "gelu_tanh", "swigluoai:1.702:1:7.5", "relu2",
                      "swiglustep:-:-:0.1", "situ:-:2:-", "situ:1e-05:3:-", "relu2_no_mul"}) +
         draw.maybe({"form=batched", "form=grouped"}) +
         draw.maybe({"load=zipf", "load=one:3", "load=empty:0", "load=empty:2,1,3"}) +
         draw.maybe({"ids=i64"}) + draw.maybe({"ep=0/4", "ep=3/4"}) + tail_of_line(draw);
}

TEST(CaseLine, ParseOfPrintIsTheIdentity) {
  for (unsigned seed = 0; seed < 800; ++seed) {
    const std::string line = draw_line(seed);
    const auto first = parse_case(line);
    ASSERT_TRUE(first.ok()) << seed << ": " << line << "\n" << first.status().message();
    const std::string printed = print_case(*first);
    const auto second = parse_case(printed);
    ASSERT_TRUE(second.ok()) << printed << "\n" << second.status().message();
    EXPECT_EQ(print_case(*second), printed);
    // Every field, not only what is printed; the structs have no padding.
    EXPECT_EQ(std::memcmp(&first->config.first(), &second->config.first(), sizeof(perch_quant)), 0);
    EXPECT_EQ(std::memcmp(&first->config.second(), &second->config.second(), sizeof(perch_quant)),
              0);
    EXPECT_EQ(std::memcmp(&first->config.act_first(), &second->config.act_first(),
                          sizeof(perch_act_quant)),
              0);
    EXPECT_EQ(
        std::memcmp(&first->config.moe(), &second->config.moe(), offsetof(perch_moe_config, w13)),
        0);
    EXPECT_EQ(first->config.linear().in_features, second->config.linear().in_features);
    EXPECT_EQ(first->config.abi().require, second->config.abi().require);
    EXPECT_EQ(first->t, second->t);
    EXPECT_EQ(first->seed, second->seed);
    EXPECT_EQ(first->load, second->load);
    EXPECT_EQ(first->kernel, second->kernel);
    EXPECT_EQ(first->threads, second->threads);
  }
}

TEST(CaseLine, ErrorsNameColumnTokenAndWish) {
  const char* kMoe = "moe t4 e8 top2 h64 i96 w=bf16 act=silu";  // 38 columns
  const struct {
    std::string line;
    const char* message;  // its beginning
  } cases[] = {
      {"", "column 1: '': want moe or linear first"},
      {"  mo t4", "column 3: 'mo': want moe or linear first"},
      {"moe t4 e8", "column 10: '': want top<int>, which is missing"},
      {"linear t4 n8 k8", "column 16: '': want w=, which is missing"},
      {"moe t-1", "column 6: '-1': want a number in 0..9223372036854775807"},
      {"moe t04", "column 6: '04': want a number"},
      {"moe t4 e0", "column 9: '0': want a number in 1..2147483647"},
      {"moe t4 h9223372036854775808", "column 9: '9223372036854775808': want a number in 1.."},
      {"moe t4 t4", "column 8: 't4': want t<int> only once"},
      {"moe t4 tpo2",
       "column 8: 'tpo2': want a key of this kind of layer; did you mean 'top<int>'?"},
      {"moe lod=zipf",
       "column 5: 'lod=zipf': want a key of this kind of layer; did you mean 'load='?"},
      {"moe zzzzzz", "column 5: 'zzzzzz': want one of: t<int> e<int> eg<int> top<int> h<int>"},
      {"moe n4", "column 5: 'n4': want no n<int> in a moe case"},
      {"linear w2=bf16", "column 8: 'w2=bf16': want no w2= in a linear case"},
      {"moe w", "column 5: 'w': want w="},
      {"moe t=4", "column 5: 't=4': want t<int>"},
      {"moe w=int4q32", "column 11: 'q32': want t, c, g<int>"},
      {"moe a=int8g", "column 12: '': want a number"},
      {"moe act=silly", "column 9: 'silly': want an activation: silu gelu"},
      {"moe act=silu:-:x:7", "column 16: 'x': want a number, or '-' for absent"},
      {"moe act=silu:-:1", "column 17: '': want all of :alpha:beta:limit"},
      {"moe act=silu:-:-:7:8", "column 19: ':8': want three parameters and no more"},
      {"moe in=e4m3", "column 8: 'e4m3': want f32, f16 or bf16"},
      {"moe form=standard", "column 10: 'standard': want batched or grouped"},
      {"moe ids=i32", "column 9: 'i32': want i64"},
      {"moe ep=4/4", "column 8: '4/4': want <rank>/<number of ranks>"},
      {"moe ep=4", "column 8: '4': want <rank>/<number of ranks>"},
      {"moe load=one:", "column 14: '': want an expert's number"},
      {"moe load=one:1,2", "column 16: '2': want one expert only"},
      {"moe load=empty:1,,2", "column 18: '': want an expert's number"},
      {"moe load=most", "column 10: 'most': want uniform, zipf"},
      {"moe seed=-1", "column 10: '-1': want a number"},
      {"moe threads=0", "column 13: '0': want a number in 1.."},
      {"moe kernel=", "column 12: '': want a kernel's name"},
      {"moe require=async,fast", "column 19: 'fast': want capabilities by comma, of determin"},
      {std::string(kMoe) + " load=one:8", "column 40: 'load=one:8': want experts below 8"},
      {std::string(kMoe) + " wx",
       "column 40: 'wx': moe.flags: got ROUTER_WEIGHT_ON_INPUT with top"},
      {std::string(kMoe) + " eg4", "column 8: 'e8': moe.num_experts: got 8; want 0..4"},
      {"moe t4 e8 top9 h64 i96 w=bf16 act=silu", "column 11: 'top9': moe.topk: got 9; want 1..8"},
      {"moe t4 e8 top2 h64 i96 w=bf16 act=situ", "column 31: 'act=situ': moe.act_beta: got none"},
      {"moe t4 e8 top2 h64 i96 w=int4 act=silu", "column 24: 'w=int4': moe.w13.scale_kind: got"},
      {std::string(kMoe) + " a2=e4m3sg8", "column 40: 'a2=e4m3sg8': moe.act2.mode: got e4m3 STATI"},
      {"linear t1 n4294967296 k4294967296 w=bf16", "column 35: 'w=bf16': linear.weight: got 42949"},
  };
  for (const auto& [line, message] : cases) {
    const auto problem = parse_case(line);
    ASSERT_FALSE(problem.ok()) << line;
    EXPECT_EQ(problem.status().message().substr(0, std::string(message).size()), message);
  }
}

TEST(CaseLine, Loads) {
  const auto load = perch::parse_load("empty:3,0");
  ASSERT_TRUE(load.ok());
  EXPECT_EQ(load->kind, perch::ExpertLoad::Kind::kEmpty);
  EXPECT_EQ(load->experts, (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(perch::parse_load("one:2")->experts, std::vector<int64_t>{2});
  EXPECT_EQ(perch::parse_load("zipf")->kind, perch::ExpertLoad::Kind::kZipf);
  EXPECT_FALSE(perch::parse_load("one:02").ok());
}

}  // namespace
