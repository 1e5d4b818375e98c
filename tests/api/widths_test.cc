// The width contract (contract §1) through perch_layer_get_info: every size from I and the
// activation, never from the rows of a tensor.
#include "api_rig.h"
#include "base/recipe.h"

namespace perch::test {
namespace {

struct Info {
  explicit Info(perch_layer* layer, const perch_call_shape* shape) {
    info.struct_size = sizeof(info);
    info.layout.struct_size = sizeof(perch_layout);
    info.layout.buffers = buffers;
    info.layout.buffers_capacity = 16;
    info.layout.derived = derived;
    info.layout.derived_capacity = 16;
    perch_host::check(perch_layer_get_info, layer, shape, &info);
  }
  Info(const Info&) = delete;
  Info& operator=(const Info&) = delete;

  const perch_buffer_layout* buffer(const std::string& name) const {
    for (uint32_t i = 0; i < std::min(info.layout.num_buffers, 16U); ++i) {
      if (name == buffers[i].name) return &buffers[i];
    }
    return nullptr;
  }

  perch_layer_info info{};
  perch_buffer_layout buffers[16] = {};
  perch_derived_layout derived[16] = {};
};

perch_call_shape one_token() {
  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = PERCH_FORM_STANDARD;
  shape.num_tokens = 1;
  return shape;
}

// Codes 0 and scales that are numbers: 1 in every type but f16, where the bits are small.
TensorMap zero_weights(const LayerConfig& config) {
  TensorMap tensors;
  for (const TensorSpec& spec : tensor_specs(config)) {
    const bool codes = spec.name.find('.') == std::string::npos;
    const perch_quant& quant = spec.name[1] == '2' ? config.second() : config.first();
    if (spec.type == PERCH_TYPE_INT8) {
      const bool scale = spec.name.find(".scale") != std::string::npos;
      const uint8_t one = quant.scale_dtype == PERCH_TYPE_E8M0 ? 127 : 0x38;
      tensors[spec.name] =
          u8(spec.shape, std::vector<uint8_t>(static_cast<size_t>(spec.bytes()), scale ? one : 0));
      continue;
    }
    const int64_t numel = spec.bytes() / (spec.type == PERCH_TYPE_F32 ? 4 : 2);
    tensors[spec.name] = floats(
        spec.type, spec.shape, std::vector<float>(static_cast<size_t>(numel), codes ? 0.0F : 1.0F));
  }
  return tensors;
}

struct Row {
  const char* backend;
  const char* weight;
  uint32_t activation;
  const char* name;
};

class WidthTest : public ::testing::TestWithParam<Row> {};

TEST_P(WidthTest, E12Topk6H2688I1856) {
  const Row& row = GetParam();
  const perch_quant quant = *parse_weight(row.weight);
  LayerConfig config = LayerConfig::make_moe("nemotron", quant, quant);
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = 12;
  moe.topk = 6;
  moe.hidden = 2688;
  moe.intermediate = 1856;
  moe.activation = row.activation;
  perch_runtime* runtime = shared_runtime(row.backend);
  const json said = explain(config, runtime);
  if (said["chosen"].is_null()) {
    for (const auto& candidate : said["candidates"]) EXPECT_FALSE(candidate["reasons"].empty());
    GTEST_SKIP() << row.backend << " does not offer " << row.weight << ": "
                 << said["candidates"][0]["reasons"][0].dump();
  }
  const TensorMap weights = zero_weights(config);
  const perch_host::Layer layer = build_layer(runtime, config, std::vector<TensorMap>(12, weights));
  const perch_call_shape shape = one_token();
  const Info got(layer.get(), &shape);

  const bool gated = perch_activation_is_gated(row.activation) != 0;
  const int64_t width = gated ? 3712 : 1856;
  const std::vector<int64_t> problem(got.info.problem_size, got.info.problem_size + 5);
  EXPECT_EQ(problem, (std::vector<int64_t>{12, 1, 1856, 2688, 6}));
  EXPECT_STREQ(got.info.backend, row.backend);
  EXPECT_EQ(got.info.kind, PERCH_KIND_MOE);
  EXPECT_STREQ(got.info.name, "nemotron");

  ASSERT_EQ(got.info.layout.num_matrices, 2U);
  const perch_matrix_layout& w13 = got.info.layout.matrices[0];
  const perch_matrix_layout& w2 = got.info.layout.matrices[1];
  EXPECT_STREQ(w13.name, "w13");
  EXPECT_STREQ(w2.name, "w2");
  EXPECT_EQ(w13.n, width);
  EXPECT_EQ(w13.k, 2688);
  EXPECT_EQ(w2.n, 2688);
  EXPECT_EQ(w2.k, 1856);
  for (const perch_matrix_layout* matrix : {&w13, &w2}) {
    EXPECT_GE(matrix->n_padded, matrix->n) << matrix->name;
    EXPECT_GE(matrix->k_padded, matrix->k) << matrix->name;
  }

  ASSERT_LE(got.info.layout.num_buffers, 16U);
  const perch_buffer_layout* gate_up = got.buffer("gate_up_output");
  const perch_buffer_layout* activation = got.buffer("activation_output");
  ASSERT_NE(gate_up, nullptr);
  ASSERT_NE(activation, nullptr);
  EXPECT_EQ(gate_up->shape[1], width);
  EXPECT_EQ(activation->shape[1], 1856);

  // Rows are zero: the layer answers, and with zeros.
  const Tensor y = run(layer.get(), config, random_call(config, 1, 1));
  for (const float value : to_floats(y)) ASSERT_EQ(value, 0.0F);
}

constexpr char kNvfp4[] = "e2m1g16:e4m3+s2t";
const Row kRows[] = {
    {"reference", kNvfp4, PERCH_ACTIVATION_SILU, "reference_nvfp4_silu"},
    {"reference", kNvfp4, PERCH_ACTIVATION_RELU2_NO_MUL, "reference_nvfp4_relu2_no_mul"},
    {"humming-cpu", kNvfp4, PERCH_ACTIVATION_SILU, "humming_cpu_nvfp4_silu"},
    {"humming-cpu", kNvfp4, PERCH_ACTIVATION_RELU2_NO_MUL, "humming_cpu_nvfp4_relu2_no_mul"},
    {"humming-cpu", "int4g32:bf16", PERCH_ACTIVATION_SILU, "humming_cpu_int4g32_silu"},
    {"humming-cpu", "int4g32:bf16", PERCH_ACTIVATION_RELU2_NO_MUL,
     "humming_cpu_int4g32_relu2_no_mul"},
    {"reference", "int4g32:bf16", PERCH_ACTIVATION_RELU2_NO_MUL, "reference_int4g32_relu2_no_mul"},
    {"template", kNvfp4, PERCH_ACTIVATION_SILU, "template_nvfp4_silu"},
};
INSTANTIATE_TEST_SUITE_P(Backends, WidthTest, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

class SmallWidthTest : public ::testing::TestWithParam<const char*> {};

// Field report A1: I 3 gives 3 and 3 without a gate, 6 and 3 with one. A3: I 10 stays 10.
TEST_P(SmallWidthTest, I3AndI10) {
  struct Case {
    int64_t intermediate;
    uint32_t activation;
    int64_t gate_up;
  };
  for (const Case& row :
       {Case{3, PERCH_ACTIVATION_RELU2_NO_MUL, 3}, Case{3, PERCH_ACTIVATION_RELU2, 6},
        Case{3, PERCH_ACTIVATION_SILU, 6}, Case{10, PERCH_ACTIVATION_SILU, 20}}) {
    const LayerConfig config =
        moe_layer({1, 1, 4, row.intermediate}, row.activation, PERCH_TYPE_BF16, PERCH_TYPE_BF16);
    const perch_host::Layer layer =
        build_layer(shared_runtime(GetParam()), config, random_experts(config, 1));
    const perch_call_shape shape = one_token();
    const Info got(layer.get(), &shape);
    ASSERT_NE(got.buffer("gate_up_output"), nullptr);
    ASSERT_NE(got.buffer("activation_output"), nullptr);
    EXPECT_EQ(got.buffer("gate_up_output")->shape[1], row.gate_up);
    EXPECT_EQ(got.buffer("activation_output")->shape[1], row.intermediate);
    EXPECT_EQ(got.info.problem_size[2], row.intermediate);
    EXPECT_EQ(got.info.layout.matrices[0].n, row.gate_up);
    EXPECT_EQ(got.info.layout.matrices[1].k, row.intermediate);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SmallWidthTest, ::testing::Values("reference", "humming-cpu"),
                         [](const auto& row) { return std::string(row.param).substr(0, 7); });

}  // namespace
}  // namespace perch::test
