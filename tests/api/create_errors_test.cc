// perch_layer_create against weights and configs that break a rule: names, shapes and sizes in the
// message, and a runtime that goes on working.
#include "api_rig.h"
#include "base/recipe.h"

namespace perch::test {
namespace {

LayerConfig int4_layer() {
  perch_quant quant = *parse_weight("int4g8:bf16");
  LayerConfig config = LayerConfig::make_moe("experts", quant, quant);
  config.layer().max_tokens = 8;
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = 3;
  moe.topk = 1;
  moe.hidden = 16;
  moe.intermediate = 8;
  moe.activation = PERCH_ACTIVATION_SILU;
  return config;
}

// Stacked tensors of random experts.
TensorMap stacked(const LayerConfig& config) {
  TensorMap all;
  for (const TensorMap& expert : random_experts(config, 1)) {
    for (const auto& [name, tensor] : expert) {
      Tensor& into = all[name];
      into.dtype = tensor.dtype;
      into.shape = tensor.shape;
      into.bytes.insert(into.bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
    }
  }
  for (auto& [name, tensor] : all) {
    std::vector<int64_t> shape = tensor.shape;
    shape.insert(shape.begin(), config.moe().num_experts);
    Tensor fresh = empty_tensor(tensor.dtype, shape);
    fresh.bytes = tensor.bytes;
    tensor = fresh;
  }
  return all;
}

struct BadWeights {
  const char* name;
  void (*spoil)(TensorMap& tensors);
  const char* message;
};

class BadWeightsTest : public ::testing::TestWithParam<BadWeights> {};

TEST_P(BadWeightsTest, AreRefusedByName) {
  const LayerConfig config = int4_layer();
  for (const char* backend : {"reference", "humming-cpu"}) {
    SCOPED_TRACE(backend);
    const perch_host::Runtime runtime = runtime_of(only(backend));
    TensorMap tensors = stacked(config);
    GetParam().spoil(tensors);
    EXPECT_TRUE(says(refusal([&] {
                       perch_host::make_layer(runtime, config.abi(),
                                              BackendHarness::name_tensors(tensors));
                     }),
                     GetParam().message));
    // A refused load leaves the runtime usable.
    EXPECT_EQ(refusal([&] {
                perch_host::make_layer(runtime, config.abi(),
                                       BackendHarness::name_tensors(stacked(config)));
              }),
              "");
  }
}

const BadWeights kWeights[] = {
    {"unknown_name", [](TensorMap& t) { t["w13.scales"] = t["w13.scale"]; },
     "PERCH_E_INVALID_ARGUMENT: perch_layer_create: weights[\"w13.scales\"]: name: not called for"},
    {"missing", [](TensorMap& t) { t.erase("w2.scale"); },
     "perch_layer_create: weights[\"w2.scale\"]: missing;"},
    {"zero_not_in_config", [](TensorMap& t) { t["w2.zero"] = t["w2"]; },
     "weights[\"w2.zero\"]: name: not called for"},
    {"codes_int8",
     [](TensorMap& t) {
       t["w13"].dtype = {kDLInt, 8, 1};
     },
     "weights[\"w13\"]: dtype: got int8; want uint8"},
    {"scale_f32",
     [](TensorMap& t) {
       t["w2.scale"] = f32({3, 16, 1}, std::vector<float>(48, 1));
     },
     "weights[\"w2.scale\"]: dtype: got float32; want bfloat16"},
    {"experts", [](TensorMap& t) { t["w13"].shape[0] = 2; },
     "weights[\"w13\"]: shape: got [2, 16, 8]; want [3, 16, 8]"},
    {"groups", [](TensorMap& t) { t["w13.scale"].shape[2] = 1; },
     "weights[\"w13.scale\"]: shape: got [3, 16, 1]; want [3, 16, 2]"},
    {"rank",
     [](TensorMap& t) {
       t["w2"].shape = {48, 4};
       t["w2"].strides = {4, 1};
     },
     "weights[\"w2\"]: ndim: got 2; want 3"},
    {"transposed",
     [](TensorMap& t) {
       t["w13"].strides = {128, 1, 16};
     },
     "weights[\"w13\"]: strides: got [128, 1, 16] for shape [3, 16, 8]; want row-major"},
};
INSTANTIATE_TEST_SUITE_P(Tensors, BadWeightsTest, ::testing::ValuesIn(kWeights),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(CreateErrors, TheSameNameTwice) {
  const LayerConfig config = int4_layer();
  const TensorMap tensors = stacked(config);
  std::vector<perch_named_tensor> named = BackendHarness::name_tensors(tensors);
  named.push_back(named[0]);
  const perch_host::Runtime runtime = runtime_of(only("reference"));
  EXPECT_TRUE(says(refusal([&] { perch_host::make_layer(runtime, config.abi(), named); }),
                   "weights[\"w13\"]: name: got it twice; want it once"));
}

TEST(CreateErrors, SubBytePadded) {
  const LayerConfig config = int4_layer();
  const TensorMap tensors = stacked(config);
  std::vector<perch_named_tensor> named = BackendHarness::name_tensors(tensors);
  named[0].flags = PERCH_TENSOR_SUBBYTE_PADDED;
  const perch_host::Runtime runtime = runtime_of(only("reference"));
  EXPECT_TRUE(says(refusal([&] { perch_host::make_layer(runtime, config.abi(), named); }),
                   "weights[\"w13\"]: flags: got sub-byte padded data (DLPack flag 4)"));
}

// e4m3 0x7F is NaN: refused at prepare unless the owner allows it.
TEST(CreateErrors, NanCodes) {
  const perch_quant quant = *parse_weight("nvfp4");
  LayerConfig config = LayerConfig::make_linear("fc", 4, 32, quant);
  config.layer().max_tokens = 8;
  TensorMap tensors = random_tensors(config, 1);
  tensors["w.scale"].bytes[3] = 0x7F;
  EXPECT_TRUE(says(refusal([&] { build_layer(shared_runtime("reference"), config, {tensors}); }),
                   "w.scale"));
  config.layer().flags = PERCH_LAYER_ALLOW_NAN;
  EXPECT_EQ(refusal([&] { build_layer(shared_runtime("reference"), config, {tensors}); }), "");
}

// ---- Experts -----------------------------------------------------------------------------------

TEST(Builder, MissingTwiceAndOutOfRangeExpertsAreNamed) {
  const LayerConfig config = int4_layer();
  const std::vector<TensorMap> experts = random_experts(config, 1);
  perch_layer_builder* builder = nullptr;
  perch_host::check(perch_layer_begin, shared_runtime("reference"), &config.abi(),
                    static_cast<const perch_stream*>(nullptr), &builder);
  put_expert(builder, 2, experts[2]);
  put_expert(builder, 0, experts[0]);
  EXPECT_TRUE(says(refusal([&] { put_expert(builder, 0, experts[0]); }),
                   "layer 'experts': expert 0: got it twice; want it once"));
  EXPECT_TRUE(
      says(refusal([&] { put_expert(builder, 3, experts[1]); }), "expert: got 3; want 0 to 2"));
  EXPECT_TRUE(
      says(refusal([&] { put_expert(builder, -1, experts[1]); }), "expert: got -1; want 0 to 2"));
  perch_layer* layer = nullptr;
  EXPECT_TRUE(says(refusal([&] { perch_host::check(perch_layer_end, builder, &layer); }),
                   "layer 'experts': expert 1: missing"));
  put_expert(builder, 1, experts[1]);  // the builder still lives
  perch_host::check(perch_layer_end, builder, &layer);
  perch_layer_destroy(layer);
}

TEST(Builder, AbortAndNothingLeft) {
  const LayerConfig config = int4_layer();
  perch_layer_builder* builder = nullptr;
  perch_host::check(perch_layer_begin, shared_runtime("humming-cpu"), &config.abi(),
                    static_cast<const perch_stream*>(nullptr), &builder);
  put_expert(builder, 0, random_experts(config, 1)[0]);
  perch_layer_abort(builder);
  perch_layer_abort(nullptr);
}

// ---- NULL arguments ----------------------------------------------------------------------------

TEST(NullArguments, AreNamed) {
  perch_error error = PERCH_ERROR_INIT;
  perch_runtime* runtime = shared_runtime("reference");
  EXPECT_EQ(perch_runtime_create(nullptr, nullptr, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error.message, "perch_runtime_create: runtime: got NULL; want a pointer"));
  EXPECT_EQ(perch_layer_create(runtime, nullptr, nullptr, 0, nullptr, nullptr, &error),
            PERCH_E_INVALID_ARGUMENT);
  perch_layer* layer = nullptr;
  EXPECT_EQ(perch_layer_create(runtime, nullptr, nullptr, 0, nullptr, &layer, &error),
            PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error.message, "perch_layer_create: config: got NULL"));
  EXPECT_EQ(perch_layer_execute(nullptr, nullptr, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error.message, "perch_layer_execute: layer: got NULL"));
  EXPECT_EQ(perch_model_open(runtime, nullptr, nullptr, nullptr, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(perch_tensors_open(nullptr, nullptr, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(perch_route(nullptr, nullptr, nullptr, nullptr, &error), PERCH_E_INVALID_ARGUMENT);
  // Also without a place for the text, and destroying nothing.
  EXPECT_EQ(perch_layer_execute(nullptr, nullptr, nullptr), PERCH_E_INVALID_ARGUMENT);
  perch_layer_destroy(nullptr);
  perch_runtime_destroy(nullptr);
  perch_model_destroy(nullptr);
  perch_tensors_destroy(nullptr);
  perch_tensor_release(nullptr);
}

TEST(LongMessages, AreCutAndTellTheirLength) {
  LayerConfig config = int4_layer();
  config.set_name(std::string(2000, 'n'));
  config.layer().require = PERCH_CAP_INPLACE;
  perch_error error = PERCH_ERROR_INIT;
  perch_layer* layer = nullptr;
  EXPECT_EQ(perch_layer_create(shared_runtime("reference"), &config.abi(), nullptr, 0, nullptr,
                               &layer, &error),
            PERCH_E_UNSUPPORTED);
  EXPECT_EQ(std::strlen(error.message), sizeof(error.message) - 1);
  EXPECT_GT(error.message_len, 2000U);
}

}  // namespace
}  // namespace perch::test
