// base/config_rules.h: every rule has one config that breaks it and nothing else.
#include "base/config_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/layer_config.h"
#include "base/recipe.h"

namespace {

using perch::breach_status;
using perch::check_layer_config;
using perch::LayerConfig;
using perch::RuleBreach;

LayerConfig good_moe() {
  const perch_quant quant = *perch::parse_weight("int4g32:bf16+z");
  LayerConfig config = LayerConfig::make_moe("experts", quant, quant);
  perch_moe_config& moe = config.moe();
  moe.num_experts = 8;
  moe.num_experts_global = 16;
  moe.topk = 2;
  moe.hidden = 64;
  moe.intermediate = 96;
  moe.activation = PERCH_ACTIVATION_SILU;
  return config;
}

LayerConfig good_linear() {
  return LayerConfig::make_linear("lin", 64, 96, *perch::parse_weight("e4m3b128:f32"));
}

// Structs as a C host fills them: free to be wrong, unlike a LayerConfig.
struct Raw {
  explicit Raw(const LayerConfig& config) : layer(config.abi()) {
    if (config.is_moe()) {
      moe = *layer.moe;
      first = *moe.w13;
      second = *moe.w2;
      act_first = *moe.act13;
      act_second = *moe.act2;
      moe.w13 = &first;
      moe.w2 = &second;
      moe.act13 = &act_first;
      moe.act2 = &act_second;
      layer.moe = &moe;
    } else {
      linear = *layer.linear;
      first = *linear.weight;
      act_first = *linear.act;
      linear.weight = &first;
      linear.act = &act_first;
      layer.linear = &linear;
    }
  }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  perch_layer_config layer;
  perch_moe_config moe{};
  perch_linear_config linear{};
  perch_quant first{}, second{};
  perch_act_quant act_first{}, act_second{};
  perch_ext ext{sizeof(perch_ext), 42, 0, 0, nullptr};
  perch_kv options[2]{{"isa", "avx2"}, {"stream_k", ""}};
};

std::string text_of(const std::vector<RuleBreach>& breaches) {
  return breach_status(breaches).message();
}

TEST(ConfigRules, GoodConfigsPass) {
  for (const LayerConfig& config : {good_moe(), good_linear()}) {
    EXPECT_EQ(text_of(check_layer_config(config.abi())), "");
    EXPECT_TRUE(breach_status(check_layer_config(config.abi())).ok());
  }
}

TEST(ConfigRules, OptionalPointersAndSoftExtensionsPass) {
  const LayerConfig config = good_moe();
  Raw raw(config);
  raw.moe.act13 = nullptr;
  raw.moe.act2 = nullptr;
  raw.first.next = &raw.ext;
  raw.layer.options = raw.options;
  raw.layer.num_options = 2;
  raw.layer.max_tokens = 0;
  raw.layer.name = "";
  EXPECT_EQ(text_of(check_layer_config(raw.layer)), "");
}

struct Rule {
  const char* name;
  bool moe;
  void (*break_it)(Raw&);
  const char* field;
  perch_status code;
};

constexpr perch_status kBad = PERCH_E_INVALID_ARGUMENT;
constexpr perch_status kNew = PERCH_E_UNSUPPORTED;  // newer than this runtime
constexpr perch_status kAbi = PERCH_E_ABI_MISMATCH;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

void set_options(Raw& r) {
  r.layer.options = r.options;
  r.layer.num_options = 2;
}

void set_limit(Raw& r, float limit) {
  r.moe.flags |= PERCH_MOE_HAS_LIMIT;
  r.moe.act_limit = limit;
}

void set_situ(Raw& r, float alpha, float beta) {
  r.moe.activation = PERCH_ACTIVATION_SITU;
  r.moe.flags |= PERCH_MOE_HAS_ALPHA | PERCH_MOE_HAS_BETA;
  r.moe.act_alpha = alpha;
  r.moe.act_beta = beta;
}

const Rule kLayerRules[] = {
    {"size_small", true, [](Raw& r) { r.layer.struct_size = 95; }, "struct_size", kAbi},
    {"size_huge", true, [](Raw& r) { r.layer.struct_size = 65537; }, "struct_size", kAbi},
    {"kind_0", true, [](Raw& r) { r.layer.kind = 0; }, "kind", kBad},
    {"kind_3", true, [](Raw& r) { r.layer.kind = 3; }, "kind", kNew},
    {"both", true, [](Raw& r) { r.layer.linear = &r.linear; }, "linear", kBad},
    {"both_linear", false, [](Raw& r) { r.layer.moe = &r.moe; }, "moe", kBad},
    {"no_moe", true, [](Raw& r) { r.layer.moe = nullptr; }, "moe", kBad},
    {"no_linear", false, [](Raw& r) { r.layer.linear = nullptr; }, "linear", kBad},
    {"device_0", true, [](Raw& r) { r.layer.device.device_type = 0; }, "device.device_type", kBad},
    {"cpu_1", true, [](Raw& r) { r.layer.device.device_id = 1; }, "device.device_id", kBad},
    {"in_0", true, [](Raw& r) { r.layer.in_dtype = 0; }, "in_dtype", kBad},
    {"in_int8", true, [](Raw& r) { r.layer.in_dtype = PERCH_TYPE_INT8; }, "in_dtype", kBad},
    {"out_20", true, [](Raw& r) { r.layer.out_dtype = 20; }, "out_dtype", kNew},
    {"require", true, [](Raw& r) { r.layer.require = 1ull << 14; }, "require", kNew},
    {"prefer", true, [](Raw& r) { r.layer.prefer = 1ull << 63; }, "prefer", kNew},
    {"tokens", true, [](Raw& r) { r.layer.max_tokens = -1; }, "max_tokens", kBad},
    {"name", true, [](Raw& r) { r.layer.name = nullptr; }, "name", kBad},
    {"flags", true, [](Raw& r) { r.layer.flags = 2; }, "flags", kNew},
    {"options_null", true, [](Raw& r) { r.layer.num_options = 1; }, "options", kBad},
    {"options_many", true, [](Raw& r) { r.layer.num_options = 4000000000u; }, "num_options", kBad},
    {"option_key", true, [](Raw& r) { set_options(r), r.options[1].key = nullptr; },
     "options[1].key", kBad},
    {"option_value", true, [](Raw& r) { set_options(r), r.options[0].value = nullptr; },
     "options[0].value", kBad},
    {"ext_must", true,
     [](Raw& r) { r.ext.flags = PERCH_EXT_MUST_UNDERSTAND, r.layer.next = &r.ext; }, "next", kNew},
    {"ext_flags", false, [](Raw& r) { r.ext.flags = 2, r.linear.next = &r.ext; },
     "linear.next.flags", kNew},
    {"ext_type_0", true, [](Raw& r) { r.ext.type = 0, r.moe.next = &r.ext; }, "moe.next", kBad},
    {"ext_size", true, [](Raw& r) { r.ext.struct_size = 8, r.act_second.next = &r.ext; },
     "moe.act2.next", kAbi},
    {"ext_loop", true, [](Raw& r) { r.ext.next = &r.ext, r.second.next = &r.ext; }, "moe.w2.next",
     kBad},
};

const Rule kSizeRules[] = {
    {"moe_size", true, [](Raw& r) { r.moe.struct_size = 0; }, "moe.struct_size", kAbi},
    {"e_above", true, [](Raw& r) { r.moe.num_experts = 17; }, "moe.num_experts", kBad},
    {"top_0", true, [](Raw& r) { r.moe.topk = 0; }, "moe.topk", kBad},
    {"top_above", true, [](Raw& r) { r.moe.topk = 17; }, "moe.topk", kBad},
    {"eg_int32", true, [](Raw& r) { r.moe.num_experts_global = 1u << 31; },
     "moe.num_experts_global", kBad},
    {"h_0", true, [](Raw& r) { r.moe.hidden = 0; }, "moe.hidden", kBad},
    {"i_neg", true, [](Raw& r) { r.moe.intermediate = -96; }, "moe.intermediate", kBad},
    {"i_huge", true, [](Raw& r) { r.moe.intermediate = kHuge; }, "moe.intermediate", kBad},
    {"n_0", false, [](Raw& r) { r.linear.out_features = 0; }, "linear.out_features", kBad},
    {"k_0", false, [](Raw& r) { r.linear.in_features = 0; }, "linear.in_features", kBad},
    {"nk_overflow", false,
     [](Raw& r) {
       r.layer.max_tokens = 0;
       r.linear.out_features = 1ll << 32;
       r.linear.in_features = 1ll << 32;
     },
     "linear.weight", kBad},
    {"groups_overflow", true,
     [](Raw& r) {
       r.moe.hidden = 1ll << 40;
       r.second.k_order = PERCH_K_G_IDX;
       r.second.num_groups = 1u << 30;
     },
     "moe.w2.num_groups", kBad},
    {"t_overflow", false, [](Raw& r) { r.layer.max_tokens = 1ll << 57, r.linear.in_features = 1; },
     "max_tokens", kBad},
    {"linear_reserved", false, [](Raw& r) { r.linear.reserved0 = 1; }, "linear.reserved0", kNew},
    {"form_0", true, [](Raw& r) { r.moe.form = 0; }, "moe.form", kBad},
    {"form_4", true, [](Raw& r) { r.moe.form = 4; }, "moe.form", kNew},
    {"moe_flags", true, [](Raw& r) { r.moe.flags = 16; }, "moe.flags", kNew},
    {"wx_top2", true, [](Raw& r) { r.moe.flags = PERCH_MOE_ROUTER_WEIGHT_ON_INPUT; }, "moe.flags",
     kBad},
    {"wx_batched", true,
     [](Raw& r) {
       r.moe.flags = PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
       r.moe.topk = 1;
       r.moe.form = PERCH_FORM_BATCHED;
     },
     "moe.flags", kBad},
};

const Rule kActivationRules[] = {
    {"act_0", true, [](Raw& r) { r.moe.activation = 0; }, "moe.activation", kBad},
    {"act_12", true, [](Raw& r) { r.moe.activation = 12; }, "moe.activation", kNew},
    {"silu_alpha", true, [](Raw& r) { r.moe.flags = PERCH_MOE_HAS_ALPHA; }, "moe.act_alpha", kBad},
    {"silu_limit_0", true, [](Raw& r) { set_limit(r, 0.0f); }, "moe.act_limit", kBad},
    {"silu_limit_inf", true, [](Raw& r) { set_limit(r, INFINITY); }, "moe.act_limit", kBad},
    {"silu_limit_nan", true, [](Raw& r) { set_limit(r, NAN); }, "moe.act_limit", kBad},
    {"relu2_limit", true,
     [](Raw& r) {
       r.moe.activation = PERCH_ACTIVATION_RELU2_NO_MUL;
       set_limit(r, 7.0f);
     },
     "moe.act_limit", kBad},
    {"step_needs", true, [](Raw& r) { r.moe.activation = PERCH_ACTIVATION_SWIGLUSTEP; },
     "moe.act_limit", kBad},
    {"oai_needs", true,
     [](Raw& r) {
       r.moe.activation = PERCH_ACTIVATION_SWIGLUOAI;
       r.moe.flags = PERCH_MOE_HAS_BETA;
       set_limit(r, 7.0f);
     },
     "moe.act_alpha", kBad},
    {"situ_needs", true, [](Raw& r) { r.moe.activation = PERCH_ACTIVATION_SITU; }, "moe.act_beta",
     kBad},
    {"situ_beta_0", true, [](Raw& r) { set_situ(r, 0.0f, 0.0f); }, "moe.act_beta", kBad},
    {"situ_alpha_neg", true, [](Raw& r) { set_situ(r, -1.0f, 1.0f); }, "moe.act_alpha", kBad},
};

// On w13, which is int4g32:bf16+z.
const Rule kQuantRules[] = {
    {"w13_null", true, [](Raw& r) { r.moe.w13 = nullptr; }, "moe.w13", kBad},
    {"weight_null", false, [](Raw& r) { r.linear.weight = nullptr; }, "linear.weight", kBad},
    {"quant_size", true, [](Raw& r) { r.first.struct_size = 4; }, "moe.w13.struct_size", kAbi},
    {"weight_none", true, [](Raw& r) { r.first.weight = PERCH_TYPE_NONE; }, "moe.w13.weight", kBad},
    {"weight_e8m0", true, [](Raw& r) { r.first.weight = PERCH_TYPE_E8M0; }, "moe.w13.weight", kBad},
    {"weight_99", true, [](Raw& r) { r.first.weight = 99; }, "moe.w13.weight", kNew},
    {"scale_kind_0", true, [](Raw& r) { r.first.scale_kind = 0; }, "moe.w13.scale_kind", kBad},
    {"scale_kind_6", true, [](Raw& r) { r.first.scale_kind = 6; }, "moe.w13.scale_kind", kNew},
    {"scale_int", true, [](Raw& r) { r.first.scale_dtype = PERCH_TYPE_INT8; },
     "moe.w13.scale_dtype", kBad},
    {"scale_none", true, [](Raw& r) { r.first.scale_dtype = PERCH_TYPE_NONE; },
     "moe.w13.scale_dtype", kBad},
    {"group_k_0", true, [](Raw& r) { r.first.group_k = 0; }, "moe.w13.group_k", kBad},
    {"group_n", true, [](Raw& r) { r.first.group_n = 1; }, "moe.w13.group_n", kBad},
    {"block_n_0", false, [](Raw& r) { r.first.group_n = 0; }, "linear.weight.group_n", kBad},
    {"channel_group", true, [](Raw& r) { r.second.scale_kind = PERCH_SCALE_CHANNEL; },
     "moe.w2.group_k", kBad},
    {"int_no_scale", true, [](Raw& r) { r.first = perch::make_quant(PERCH_TYPE_INT4); },
     "moe.w13.scale_kind", kBad},
    {"fp4_no_scale", true, [](Raw& r) { r.first = perch::make_quant(PERCH_TYPE_E2M1); },
     "moe.w13.scale_kind", kBad},
    {"scale2_alone", true,
     [](Raw& r) {
       r.first = perch::make_quant(PERCH_TYPE_BF16), r.first.scale2_kind = PERCH_SCALE2_TENSOR;
     },
     "moe.w13.scale2_kind", kBad},
    {"scale2_4", true, [](Raw& r) { r.first.scale2_kind = 4; }, "moe.w13.scale2_kind", kNew},
    {"fp8_zero", false, [](Raw& r) { r.first.zero_kind = PERCH_ZERO_MIDPOINT; },
     "linear.weight.zero_kind", kBad},
    {"lut_midpoint", true,
     [](Raw& r) { r.first.weight = PERCH_TYPE_LUT4, r.first.zero_kind = PERCH_ZERO_MIDPOINT; },
     "moe.w13.zero_kind", kBad},
    {"tensor_zero", true,
     [](Raw& r) { r.first.scale_kind = PERCH_SCALE_TENSOR, r.first.group_k = 0; },
     "moe.w13.zero_kind", kBad},
    {"block_offset", false, [](Raw& r) { r.first.offset_kind = PERCH_OFFSET_GROUP; },
     "linear.weight.offset_kind", kBad},
    {"block_gidx", false, [](Raw& r) { r.first.k_order = PERCH_K_G_IDX; }, "linear.weight.k_order",
     kBad},
    {"num_groups", true, [](Raw& r) { r.first.num_groups = 2; }, "moe.w13.num_groups", kBad},
    {"num_groups_int32", true,
     [](Raw& r) { r.first.k_order = PERCH_K_G_IDX, r.first.num_groups = 1u << 31; },
     "moe.w13.num_groups", kBad},
    {"quant_flags", true, [](Raw& r) { r.first.flags = 4; }, "moe.w13.flags", kNew},
};

const Rule kActRules[] = {
    {"act_size", true, [](Raw& r) { r.act_first.struct_size = 1; }, "moe.act13.struct_size", kAbi},
    {"act_int4", true, [](Raw& r) { r.act_first.dtype = PERCH_TYPE_INT4; }, "moe.act13.dtype",
     kBad},
    {"act_mode_only", true, [](Raw& r) { r.act_first.mode = PERCH_ACT_TOKEN; }, "moe.act13.mode",
     kBad},
    {"act_mode_6", false, [](Raw& r) { r.act_first.mode = 6; }, "linear.act.mode", kNew},
    {"act_scale_only", true, [](Raw& r) { r.act_second.scale_dtype = PERCH_TYPE_F32; },
     "moe.act2.scale_dtype", kBad},
    {"act_group_only", true, [](Raw& r) { r.act_second.group = 32; }, "moe.act2.group", kBad},
    {"act_group_0", true,
     [](Raw& r) { r.act_first = *perch::parse_act("int8g32"), r.act_first.group = 0; },
     "moe.act13.group", kBad},
    {"act_reserved", true, [](Raw& r) { r.act_first.reserved0 = 1; }, "moe.act13.reserved0", kNew},
};

class BrokenConfig : public testing::TestWithParam<Rule> {};
const auto kRuleName = [](const auto& one) { return std::string(one.param.name); };
INSTANTIATE_TEST_SUITE_P(Layer, BrokenConfig, testing::ValuesIn(kLayerRules), kRuleName);
INSTANTIATE_TEST_SUITE_P(Size, BrokenConfig, testing::ValuesIn(kSizeRules), kRuleName);
INSTANTIATE_TEST_SUITE_P(Activation, BrokenConfig, testing::ValuesIn(kActivationRules), kRuleName);
INSTANTIATE_TEST_SUITE_P(Quant, BrokenConfig, testing::ValuesIn(kQuantRules), kRuleName);
INSTANTIATE_TEST_SUITE_P(Act, BrokenConfig, testing::ValuesIn(kActRules), kRuleName);

TEST_P(BrokenConfig, IsRefusedByItsFieldAlone) {
  const Rule& rule = GetParam();
  const LayerConfig good = rule.moe ? good_moe() : good_linear();
  Raw raw(good);
  rule.break_it(raw);
  const std::vector<RuleBreach> breaches = check_layer_config(raw.layer);
  ASSERT_EQ(breaches.size(), 1u) << text_of(breaches);
  EXPECT_EQ(breaches[0].field, rule.field) << breaches[0].text;
  EXPECT_EQ(breaches[0].code, rule.code) << breaches[0].text;
  EXPECT_NE(breaches[0].text.find("got "), std::string::npos);
  EXPECT_NE(breaches[0].text.find("; want "), std::string::npos);
}

TEST(ConfigRules, EveryBreachIsReported) {
  const LayerConfig good = good_moe();
  Raw raw(good);
  raw.moe.topk = 0;
  raw.moe.hidden = -1;
  raw.second.group_k = 0;
  raw.act_first.mode = PERCH_ACT_STATIC;
  const std::vector<RuleBreach> breaches = check_layer_config(raw.layer);
  ASSERT_EQ(breaches.size(), 4u) << text_of(breaches);
  EXPECT_EQ(text_of(breaches),
            "moe.topk: got 0; want 1..16 | moe.hidden: got -1; want at least 1 | moe.w2.group_k: "
            "got 0; want at least 1 with scale_kind GROUP | moe.act13.mode: got STATIC; want NONE "
            "with dtype none");
}

TEST(ConfigRules, MustUnderstandExtensionIsNamedByNumber) {
  const LayerConfig good = good_moe();
  Raw raw(good);
  raw.ext.flags = PERCH_EXT_MUST_UNDERSTAND;
  raw.first.next = &raw.ext;
  EXPECT_NE(text_of(check_layer_config(raw.layer)).find("extension 42"), std::string::npos);
}

TEST(ConfigRules, NewerStructsPassWhileTheirNewFieldsAreZero) {
  struct Newer {
    perch_quant known;
    uint64_t added;
  } newer{*perch::parse_weight("bf16"), 0};
  newer.known.struct_size = sizeof(newer);
  const LayerConfig good = good_linear();
  Raw raw(good);
  raw.linear.weight = &newer.known;
  EXPECT_EQ(text_of(check_layer_config(raw.layer)), "");
  newer.added = 1;
  const std::vector<RuleBreach> breaches = check_layer_config(raw.layer);
  ASSERT_EQ(breaches.size(), 1u);
  EXPECT_EQ(breaches[0].field, "linear.weight.struct_size");
  EXPECT_EQ(breaches[0].code, kNew);
}

// Contract §2's table, and nothing beside it.
TEST(ConfigRules, InputQuantizationTable) {
  const std::string allowed[] = {"int8t",        "int8t:e8m0", "int8g64",      "int8g64:e8m0",
                                 "int8s",        "e4m3t",      "e4m3t:e8m0",   "e4m3g64",
                                 "e4m3g64:e8m0", "e4m3s",      "e2m1g64:e8m0", "e2m1sg64:e4m3"};
  const LayerConfig good = good_linear();
  std::size_t passed = 0;
  for (const char* dtype : {"int8", "e4m3", "e2m1"}) {
    for (const char* mode : {"t", "g64", "s", "sg64"}) {
      for (const char* scale : {":f32", ":e8m0", ":e4m3"}) {
        Raw raw(good);
        raw.act_first = *perch::parse_act(std::string(dtype) + mode + scale);
        const std::string text = perch::print_act(raw.act_first);
        const std::vector<RuleBreach> breaches = check_layer_config(raw.layer);
        const bool wanted =
            std::find(std::begin(allowed), std::end(allowed), text) != std::end(allowed);
        EXPECT_EQ(breaches.empty(), wanted) << text << ": " << text_of(breaches);
        passed += breaches.empty() ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(passed, std::size(allowed));
}

}  // namespace
