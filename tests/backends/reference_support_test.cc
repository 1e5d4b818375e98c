// What the reference says yes and no to: every reason, by field and code.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backend_harness.h"

namespace perch::test {
namespace {

const char kLibrary[] = PERCH_BUILD_DIR "/lib/perch/backends/libperch_reference.so";

// gpt-oss-like: mxfp4 weights with bias, swigluoai.
LayerConfig good_moe() {
  perch_quant quant = make_quant(PERCH_TYPE_E2M1);
  quant.scale_kind = PERCH_SCALE_GROUP;
  quant.scale_dtype = PERCH_TYPE_E8M0;
  quant.group_k = 32;
  quant.flags = PERCH_QUANT_HAS_BIAS;
  LayerConfig config = LayerConfig::make_moe("layer", quant, quant);
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = 4;
  moe.topk = 2;
  moe.hidden = 64;
  moe.intermediate = 48;
  moe.activation = PERCH_ACTIVATION_SWIGLUOAI;
  moe.flags = PERCH_MOE_HAS_ALPHA | PERCH_MOE_HAS_BETA | PERCH_MOE_HAS_LIMIT;
  moe.act_alpha = 1.702f;
  moe.act_beta = 1;
  moe.act_limit = 7;
  return config;
}

const perch_caps kPromised = PERCH_CAP_DETERMINISTIC | PERCH_CAP_BATCH_INVARIANT |
                             PERCH_CAP_EXPERT_LOAD_INVARIANT | PERCH_CAP_NO_ALLOC_EXECUTE |
                             PERCH_CAP_CONCURRENT_EXECUTE | PERCH_CAP_FP32_ACCUM |
                             PERCH_CAP_ROW_STRIDED_ACT | PERCH_CAP_THREADS_FROM_HOST;

TEST(ReferenceSupport, Yes) {
  BackendHarness harness(kLibrary);
  LayerConfig config = good_moe();
  config.layer().require = kPromised;
  const Answer answer = harness.query(config.abi());
  EXPECT_TRUE(answer.yes()) << answer.print();
  EXPECT_EQ(answer.support.caps, kPromised);
  EXPECT_EQ(answer.support.score, 1);
  EXPECT_STREQ(answer.support.kernel, "reference");
  EXPECT_GT(answer.support.workspace_bytes, 0u);
  EXPECT_EQ(harness.api().variant_count(harness.backend(), &config.abi()), 1u);
  EXPECT_STREQ(harness.api().info->id, "reference");
}

struct Refusal {
  std::string name;
  std::function<void(LayerConfig&)> change;
  int32_t code;
  std::string field;
};

std::vector<Refusal> layer_refusals() {
  using C = LayerConfig;
  return {
      {"in_dtype", [](C& c) { c.layer().in_dtype = PERCH_TYPE_INT8; }, PERCH_REASON_DTYPE,
       "in_dtype"},
      {"out_dtype", [](C& c) { c.layer().out_dtype = 0; }, PERCH_REASON_DTYPE, "out_dtype"},
      {"device",
       [](C& c) {
         c.layer().device = {kDLCUDA, 0};
       },
       PERCH_REASON_DEVICE, "device"},
      {"layer_flags", [](C& c) { c.layer().flags = 2; }, PERCH_REASON_FIELD_UNKNOWN, "flags"},
      {"max_tokens", [](C& c) { c.layer().max_tokens = -1; }, PERCH_REASON_SHAPE, "max_tokens"},
      {"option", [](C& c) { c.set_option("isa", "avx2"); }, PERCH_REASON_OPTION, "options.isa"},
      {"cap", [](C& c) { c.layer().require = PERCH_CAP_GRAPH_CAPTURE; }, PERCH_REASON_CAP_MISSING,
       "require"},
      {"unknown_cap", [](C& c) { c.layer().require = perch_caps{1} << 40; },
       PERCH_REASON_CAP_MISSING, "require"},
      {"kind", [](C& c) { c.layer().kind = 3; }, PERCH_REASON_FIELD_UNKNOWN, "kind"},
      {"hidden", [](C& c) { c.moe().hidden = 0; }, PERCH_REASON_SHAPE, "moe.hidden"},
      {"intermediate", [](C& c) { c.moe().intermediate = -5; }, PERCH_REASON_SHAPE,
       "moe.intermediate"},
      {"experts", [](C& c) { c.moe().num_experts_global = 0; }, PERCH_REASON_SHAPE,
       "moe.num_experts_global"},
      {"experts_global", [](C& c) { c.moe().num_experts_global = 3; }, PERCH_REASON_SHAPE,
       "moe.num_experts_global"},
      {"topk", [](C& c) { c.moe().topk = 0; }, PERCH_REASON_TOPK, "moe.topk"},
      {"weight_on_input", [](C& c) { c.moe().flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT; },
       PERCH_REASON_TOPK, "moe.topk"},
      {"weight_on_input_grouped",
       [](C& c) {
         c.moe().flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
         c.moe().topk = 1;
         c.moe().form = PERCH_FORM_GROUPED;
       },
       PERCH_REASON_TOPK, "moe.flags"},
      {"form", [](C& c) { c.moe().form = 4; }, PERCH_REASON_FIELD_UNKNOWN, "moe.form"},
      {"moe_flags", [](C& c) { c.moe().flags |= 0x10; }, PERCH_REASON_FIELD_UNKNOWN, "moe.flags"},
      {"moe_size", [](C& c) { c.moe().struct_size = 8; }, PERCH_REASON_ABI, "moe.struct_size"},
      {"activation_0", [](C& c) { c.moe().activation = 0; }, PERCH_REASON_ACTIVATION,
       "moe.activation"},
      {"activation_12", [](C& c) { c.moe().activation = 12; }, PERCH_REASON_ACTIVATION,
       "moe.activation"},
      {"no_alpha", [](C& c) { c.moe().flags &= ~PERCH_MOE_HAS_ALPHA; }, PERCH_REASON_ACTIVATION,
       "moe.act_alpha"},
      {"no_limit", [](C& c) { c.moe().flags &= ~PERCH_MOE_HAS_LIMIT; }, PERCH_REASON_ACTIVATION,
       "moe.act_limit"},
      {"extra_alpha", [](C& c) { c.moe().activation = PERCH_ACTIVATION_SILU; },
       PERCH_REASON_ACTIVATION, "moe.act_alpha"},
      {"extra_limit", [](C& c) { c.moe().activation = PERCH_ACTIVATION_RELU2_NO_MUL; },
       PERCH_REASON_ACTIVATION, "moe.act_limit"},
      {"situ_limit", [](C& c) { c.moe().activation = PERCH_ACTIVATION_SITU; },
       PERCH_REASON_ACTIVATION, "moe.act_limit"},
      {"bad_limit", [](C& c) { c.moe().act_limit = -1; }, PERCH_REASON_ACTIVATION, "moe.act_limit"},
      {"too_big",
       [](C& c) {
         c.moe().hidden = c.moe().intermediate = 1 << 24;
         c.moe().num_experts = c.moe().num_experts_global = 1 << 24;
       },
       PERCH_REASON_MEMORY, "layer"},
  };
}

std::vector<Refusal> quant_refusals() {
  using C = LayerConfig;
  return {
      {"weight", [](C& c) { c.first().weight = PERCH_TYPE_E8M0; }, PERCH_REASON_DTYPE,
       "moe.w13.weight"},
      {"weight_unknown", [](C& c) { c.second().weight = 99; }, PERCH_REASON_DTYPE, "moe.w2.weight"},
      {"scale_kind", [](C& c) { c.first().scale_kind = 6; }, PERCH_REASON_FIELD_UNKNOWN,
       "moe.w13.scale_kind"},
      {"scale_dtype", [](C& c) { c.first().scale_dtype = PERCH_TYPE_INT8; }, PERCH_REASON_DTYPE,
       "moe.w13.scale_dtype"},
      {"scale_dtype_without", [](C& c) { c.first().scale_kind = PERCH_SCALE_NONE; },
       PERCH_REASON_DTYPE, "moe.w13.scale_dtype"},
      {"group_k", [](C& c) { c.first().group_k = 0; }, PERCH_REASON_GROUP, "moe.w13.group_k"},
      {"group_n", [](C& c) { c.first().group_n = 8; }, PERCH_REASON_GROUP, "moe.w13.group_n"},
      {"num_groups", [](C& c) { c.first().num_groups = 1; }, PERCH_REASON_GROUP,
       "moe.w13.num_groups"},
      {"scale2", [](C& c) { c.first().scale2_kind = 0; }, PERCH_REASON_FIELD_UNKNOWN,
       "moe.w13.scale2_kind"},
      {"zero", [](C& c) { c.first().zero_kind = 5; }, PERCH_REASON_FIELD_UNKNOWN,
       "moe.w13.zero_kind"},
      {"zero_of_float", [](C& c) { c.first().zero_kind = PERCH_ZERO_INT; }, PERCH_REASON_DTYPE,
       "moe.w13.zero_kind"},
      {"offset", [](C& c) { c.first().offset_kind = 3; }, PERCH_REASON_FIELD_UNKNOWN,
       "moe.w13.offset_kind"},
      {"k_order", [](C& c) { c.first().k_order = 0; }, PERCH_REASON_FIELD_UNKNOWN,
       "moe.w13.k_order"},
      {"quant_flags", [](C& c) { c.second().flags = 4; }, PERCH_REASON_FIELD_UNKNOWN,
       "moe.w2.flags"},
      {"act_mode", [](C& c) { c.act_first().mode = 6; }, PERCH_REASON_FIELD_UNKNOWN,
       "moe.act13.mode"},
      {"act_dtype", [](C& c) { c.act_second().dtype = PERCH_TYPE_E5M2; }, PERCH_REASON_DTYPE,
       "moe.act2.dtype"},
      {"act_mode_without", [](C& c) { c.act_first().mode = PERCH_ACT_TOKEN; }, PERCH_REASON_DTYPE,
       "moe.act13.mode"},
      {"act_scheme",
       [](C& c) {
         c.act_first().dtype = PERCH_TYPE_E2M1;
         c.act_first().mode = PERCH_ACT_GROUP;
         c.act_first().group = 32;
         c.act_first().scale_dtype = PERCH_TYPE_F32;
       },
       PERCH_REASON_DTYPE, "moe.act13.scale_dtype"},
      {"act_group", [](C& c) { c.act_first().group = 32; }, PERCH_REASON_GROUP, "moe.act13.group"},
  };
}

class ReferenceRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(ReferenceRefusal, NamesTheField) {
  BackendHarness harness(kLibrary);
  LayerConfig config = good_moe();
  GetParam().change(config);
  const Answer answer = harness.query(config.abi());
  EXPECT_FALSE(answer.yes());
  EXPECT_TRUE(answer.has(GetParam().code, GetParam().field)) << answer.print();
  Layer layer(harness, config);
  harness.prepare({}, &layer);
  EXPECT_EQ(layer.status, PERCH_E_UNSUPPORTED);
}

std::string refusal_name(const testing::TestParamInfo<Refusal>& tested) {
  return tested.param.name;
}
INSTANTIATE_TEST_SUITE_P(Layer, ReferenceRefusal, testing::ValuesIn(layer_refusals()),
                         refusal_name);
INSTANTIATE_TEST_SUITE_P(Quant, ReferenceRefusal, testing::ValuesIn(quant_refusals()),
                         refusal_name);

TEST(ReferenceSupport, AllReasonsAreGiven) {
  BackendHarness harness(kLibrary);
  LayerConfig config = good_moe();
  config.layer().in_dtype = 0;
  config.moe().topk = 0;
  config.first().scale2_kind = 9;
  config.second().weight = 0;
  EXPECT_EQ(harness.query(config.abi()).reasons.size(), 4u);
}

TEST(ReferenceSupport, Extensions) {
  BackendHarness harness(kLibrary);
  LayerConfig config = good_moe();
  perch_ext may_skip{sizeof(perch_ext), 61000, 0, 0, nullptr};
  perch_ext must_know{sizeof(perch_ext), 61001, PERCH_EXT_MUST_UNDERSTAND, 0, nullptr};
  config.first().next = &may_skip;
  EXPECT_TRUE(harness.query(config.abi()).yes());
  may_skip.next = &must_know;
  const Answer answer = harness.query(config.abi());
  ASSERT_TRUE(answer.has(PERCH_REASON_EXT_UNKNOWN, "moe.w13.next")) << answer.print();
  EXPECT_NE(answer.print().find("61001"), std::string::npos);
}

TEST(ReferenceSupport, FieldsOfANewerAbi) {
  BackendHarness harness(kLibrary);
  LayerConfig config = LayerConfig::make_linear("l", 2, 3, make_quant(PERCH_TYPE_F32));
  struct Newer {
    perch_quant quant;
    uint64_t added;
  } newer{config.first(), 0};
  newer.quant.struct_size = sizeof(newer);
  perch_linear_config linear = config.linear();
  linear.weight = &newer.quant;
  perch_layer_config layer = config.abi();
  layer.linear = &linear;
  EXPECT_TRUE(harness.query(layer).yes());
  newer.added = 1;
  EXPECT_TRUE(harness.query(layer).has(PERCH_REASON_FIELD_UNKNOWN, "linear.weight"));
}

TEST(ReferenceSupport, CreateRefusesUnknownOptions) {
  BackendHarness harness(kLibrary);
  const perch_kv option{"threads", "4"};
  perch_backend* backend = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(harness.api().create(harness.host.api(), &option, 1, &backend, &error),
            PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("threads"), std::string::npos);
}

TEST(ReferenceSupport, Device) {
  BackendHarness harness(kLibrary);
  EXPECT_EQ(harness.api().device_count(harness.backend()), 1u);
  perch_device_info device{};
  device.struct_size = sizeof(device);
  EXPECT_EQ(harness.api().device_get(harness.backend(), 0, &device, nullptr), PERCH_OK);
  EXPECT_EQ(device.usable, 1u);
  EXPECT_STREQ(device.arch, "scalar");
  EXPECT_EQ(harness.api().device_get(harness.backend(), 1, &device, nullptr),
            PERCH_E_INVALID_ARGUMENT);
}

TEST(ReferenceSupport, DescribeFollowsTheActivation) {
  BackendHarness harness(kLibrary);
  for (const bool gated : {true, false}) {
    LayerConfig config =
        LayerConfig::make_moe("m", make_quant(PERCH_TYPE_BF16), make_quant(PERCH_TYPE_BF16));
    perch_moe_config& moe = config.moe();
    moe.num_experts = moe.num_experts_global = 12;
    moe.topk = 6;
    moe.hidden = 2688;
    moe.intermediate = 1856;
    moe.activation = gated ? PERCH_ACTIVATION_SILU : PERCH_ACTIVATION_RELU2_NO_MUL;
    perch_buffer_layout buffers[4] = {};
    perch_layout layout{};
    layout.struct_size = sizeof(layout);
    layout.buffers = buffers;
    layout.buffers_capacity = 4;
    const perch_call_shape shape{sizeof(shape), PERCH_FORM_STANDARD, 1};
    ASSERT_EQ(harness.api().describe(harness.backend(), &config.abi(), 0, &shape, &layout, nullptr),
              PERCH_OK);
    ASSERT_EQ(layout.num_matrices, 2u);
    ASSERT_EQ(layout.num_buffers, 3u);
    EXPECT_EQ(layout.num_derived, 0u);
    const int64_t gate_up = gated ? 3712 : 1856;
    EXPECT_EQ(layout.matrices[0].n, gate_up);
    EXPECT_EQ(layout.matrices[0].n_padded, gate_up);
    EXPECT_EQ(layout.matrices[1].k_padded, 1856);
    EXPECT_STREQ(buffers[0].name, "gate_up_output");
    EXPECT_EQ(buffers[0].shape[1], gate_up);
    EXPECT_STREQ(buffers[1].name, "activation_output");
    EXPECT_EQ(buffers[1].shape[1], 1856);
    EXPECT_STREQ(buffers[2].name, "down_output");
    EXPECT_EQ(buffers[2].shape[1], 2688);
  }
}

}  // namespace
}  // namespace perch::test
