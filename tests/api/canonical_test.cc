// perch_canonicalize: the same weights in every layout give the same canonical bytes; a layout read
// the wrong way round is refused; field reports A5 and B1 through checkpoint-like tensors.
#include "checkpoint_rig.h"

namespace perch::test {
namespace {

perch_runtime* reference() { return shared_runtime("reference"); }

struct LayoutRow {
  Storage storage;
  MoeSizes sizes;
  std::string name;
};

class SameBytesTest : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(SameBytesTest, AsPerExpertTensors) {
  const auto& [storage, sizes, name] = GetParam();
  const std::vector<ExpertWeights> weights = random_weights(sizes, 5);
  const Checkpoint plain = store(Storage::kP, sizes, weights);
  const Checkpoint other = store(storage, sizes, weights);
  const perch_host::Model want = plain.open(reference());
  const perch_host::Model got = other.open(reference());
  ASSERT_EQ(perch_model_num_layers(got.get()), 1U);
  for (uint32_t e = 0; e < sizes.experts; ++e) {
    TensorMap a = canonical(want, static_cast<int32_t>(e));
    TensorMap b = canonical(got, static_cast<int32_t>(e));
    ASSERT_EQ(a.size(), 2U);
    ASSERT_EQ(b.size(), 2U);
    for (const char* part : {"w13", "w2"}) {
      EXPECT_EQ(a[part].shape, b[part].shape) << part;
      EXPECT_EQ(a[part].bytes, b[part].bytes) << part << " of expert " << e;
    }
    // And those are the stored numbers: gate rows, then up rows.
    std::vector<float> rows = weights[e].gate;
    rows.insert(rows.end(), weights[e].up.begin(), weights[e].up.end());
    EXPECT_EQ(to_floats(b["w13"]), rows);
    EXPECT_EQ(to_floats(b["w2"]), weights[e].down);
  }
}

class OtherOrientationTest : public ::testing::TestWithParam<LayoutRow> {};

// Reading it the other way round must be noticed: gate_up and down are never both square. Tensors
// of gate and up each are, where I == H.
TEST_P(OtherOrientationTest, IsRefused) {
  const auto& [storage, sizes, name] = GetParam();
  const Checkpoint checkpoint = store(storage, sizes, random_weights(sizes, 5));
  perch_model_opts opts = model_opts();
  const bool turned = storage == Storage::kT || storage == Storage::kTI;
  opts.orientation = turned ? PERCH_ORIENTATION_NATIVE : PERCH_ORIENTATION_TRANSPOSED;
  const std::string text = refusal([&] { checkpoint.open(reference(), &opts); });
  EXPECT_TRUE(says(text, "PERCH_E_INVALID_ARGUMENT"));
  EXPECT_TRUE(says(text, "decided by option"));
  EXPECT_TRUE(says(text, std::string("hint: its dimensions fit the ") +
                             (turned ? "transposed" : "native") + " orientation"));
}

std::vector<LayoutRow> layout_rows(bool fused_only) {
  std::vector<LayoutRow> rows;
  const std::pair<const char*, MoeSizes> sizes[] = {{"rectangular", {3, 2, 10, 6}},
                                                    {"I_equals_H", {2, 1, 6, 6}},
                                                    {"H_equals_2I", {2, 2, 8, 4}},
                                                    {"odd", {3, 1, 5, 3}}};
  const std::pair<const char*, Storage> storages[] = {
      {"P", Storage::kP}, {"M", Storage::kM},   {"F", Storage::kF},
      {"T", Storage::kT}, {"TI", Storage::kTI}, {"granite", Storage::kGranite},
      {"S", Storage::kS}};
  for (const auto& [storage_name, storage] : storages) {
    if (fused_only && (storage == Storage::kP || storage == Storage::kM)) continue;
    for (const auto& [size_name, size] : sizes) {
      const bool square = storage == Storage::kS && size.hidden == size.intermediate;
      if (fused_only && square) continue;
      rows.push_back({storage, size, std::string(storage_name) + "_" + size_name});
    }
  }
  return rows;
}
INSTANTIATE_TEST_SUITE_P(Layouts, SameBytesTest, ::testing::ValuesIn(layout_rows(false)),
                         [](const auto& row) { return row.param.name; });
INSTANTIATE_TEST_SUITE_P(Layouts, OtherOrientationTest, ::testing::ValuesIn(layout_rows(true)),
                         [](const auto& row) { return row.param.name; });

// Where every dimension fits both ways, the override is what counts.
TEST(Orientation, IsObeyedWhereNoShapeTells) {
  const MoeSizes sizes{2, 1, 6, 6};
  const std::vector<ExpertWeights> weights = random_weights(sizes, 1);
  std::vector<ExpertWeights> stored = weights;
  for (ExpertWeights& expert : stored) {
    for (std::vector<float>* part : {&expert.gate, &expert.up, &expert.down}) {
      *part = turned(*part, 6, 6);
    }
  }
  const Checkpoint checkpoint = store(Storage::kS, sizes, stored);
  perch_model_opts opts = model_opts();
  opts.orientation = PERCH_ORIENTATION_TRANSPOSED;
  const perch_host::Model model = checkpoint.open(reference(), &opts);
  EXPECT_EQ(to_floats(canonical(model, 1)["w2"]), weights[1].down);
  EXPECT_EQ(inspect(model)["layers"][0]["orientation"]["decided_by"], "option");
}

TEST(Orientation, ResavedByTransformers5IsNative) {
  const MoeSizes sizes{2, 1, 6, 6};
  Checkpoint checkpoint = store(Storage::kF, sizes, random_weights(sizes, 1));
  checkpoint.config["model_type"] = "qwen3_vl_moe";
  checkpoint.config["transformers_version"] = "5.1.0";
  const json layer = inspect(checkpoint.open(reference()))["layers"][0];
  EXPECT_EQ(layer["orientation"]["value"], "native");
  EXPECT_TRUE(says(layer["orientation"]["decided_by"], "transformers_version \"5.1.0\""));
}

TEST(Orientation, UnknownModelTypeIsNativeAndReported) {
  const MoeSizes sizes{2, 1, 10, 6};
  Checkpoint checkpoint = store(Storage::kF, sizes, random_weights(sizes, 1));
  checkpoint.config["model_type"] = "newcomer_moe";
  const json document = inspect(checkpoint.open(reference()));
  EXPECT_EQ(document["layers"][0]["orientation"]["value"], "native");
  EXPECT_TRUE(says(document["layers"][0]["orientation"]["decided_by"],
                   "model_type \"newcomer_moe\" is not in the table"));
  EXPECT_TRUE(says(document["warnings"].dump(), "newcomer_moe"));

  // Checked against the sizes: transposed tensors under an unknown type are refused with a hint.
  Checkpoint other = store(Storage::kT, sizes, random_weights(sizes, 1));
  other.config["model_type"] = "newcomer_moe";
  EXPECT_TRUE(says(refusal([&] { other.open(reference()); }),
                   "hint: its dimensions fit the transposed orientation"));
}

TEST(Orientation, UnknownTagIsRefused) {
  const MoeSizes sizes{1, 1, 4, 2};
  const Checkpoint checkpoint = store(Storage::kF, sizes, random_weights(sizes, 1));
  perch_model_opts opts = model_opts();
  opts.orientation = 3;
  EXPECT_TRUE(says(refusal([&] { checkpoint.open(reference(), &opts); }), "UNSUPPORTED"));
}

// ---- A5 ----------------------------------------------------------------------------------------

float answer(const Checkpoint& checkpoint) {
  const perch_host::Model model = checkpoint.open(reference());
  const perch_host::Layer layer = perch_host::make_layer(model, 0);
  const LayerConfig config(*perch_model_layer_config(model.get(), 0));
  return to_floats(run(layer.get(), config, moe_call(config, {1}, {0}, {1})))[0];
}

const MoeSizes kA5{1, 1, 1, 2};
const std::vector<ExpertWeights> kA5Weights = {{{1, 2}, {3, 5}, {1, 10}}};

void expect_a5(float y) {
  EXPECT_NEAR(y, 90.27288353F, 2e-5F);
  EXPECT_GT(std::fabs(y - 102.18843729F), 1.0F) << "gate|up read as up|gate";
  EXPECT_GT(std::fabs(y - 144.34823618F), 1.0F) << "gate|up read as interleaved";
}

TEST(A5GateUpOrder, PerExpertTensors) {
  expect_a5(answer(store(Storage::kP, kA5, kA5Weights, PERCH_TYPE_F32)));
}

TEST(A5GateUpOrder, MixtralNames) {
  expect_a5(answer(store(Storage::kM, kA5, kA5Weights, PERCH_TYPE_F32)));
}

TEST(A5GateUpOrder, Halves) {
  const Checkpoint checkpoint = store(Storage::kF, kA5, kA5Weights, PERCH_TYPE_F32);
  EXPECT_EQ(to_floats(checkpoint.tensors.at("model.layers.0.mlp.experts.gate_up_proj")),
            (std::vector<float>{1, 2, 3, 5}));
  expect_a5(answer(checkpoint));
}

// gpt-oss: rows, and the bias with them, go from interleaved to halves. Its activation is its own.
TEST(A5GateUpOrder, InterleavedWithItsBias) {
  Checkpoint checkpoint = store(Storage::kTI, kA5, kA5Weights, PERCH_TYPE_F32);
  EXPECT_EQ(to_floats(checkpoint.tensors.at("model.layers.0.mlp.experts.gate_up_proj")),
            (std::vector<float>{1, 3, 2, 5}));
  checkpoint.tensors["model.layers.0.mlp.experts.gate_up_proj_bias"] =
      f32({1, 4}, {0.25F, 0.5F, 0.75F, 1.0F});
  checkpoint.tensors["model.layers.0.mlp.experts.down_proj_bias"] = f32({1, 1}, {7});
  const perch_host::Model model = checkpoint.open(reference());
  TensorMap tensors = canonical(model, 0);
  EXPECT_EQ(to_floats(tensors["w13"]), (std::vector<float>{1, 2, 3, 5}));
  EXPECT_EQ(to_floats(tensors["w13.bias"]), (std::vector<float>{0.25F, 0.75F, 0.5F, 1.0F}));
  const auto swigluoai = [](double g, double u) {
    g = std::min(g, 7.0);
    u = std::min(std::max(u, -7.0), 7.0);
    return g / (1 + std::exp(-1.702 * g)) * (u + 1);
  };
  const double want = 7 + swigluoai(1.25, 3.5) + 10 * swigluoai(2.75, 6.0);
  EXPECT_NEAR(double{answer(checkpoint)}, want, 1e-4);
}

// Unit weights with per-row scales 1, 2 (gate) and 3, 5 (up).
TEST(A5GateUpOrder, PerRowScales) {
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", kA5);
  checkpoint.config["quantization_config"] = packed_config(8, "channel");
  const std::string expert = "model.layers.0.mlp.experts.0.";
  store_packed(expert + "gate_proj", 8, 2, 1, {1, 1}, {1, 2}, &checkpoint);
  store_packed(expert + "up_proj", 8, 2, 1, {1, 1}, {3, 5}, &checkpoint);
  store_packed(expert + "down_proj", 8, 1, 2, {1, 10}, {1}, &checkpoint);
  EXPECT_EQ(to_floats(canonical(checkpoint.open(reference()), 0)["w13.scale"]),
            (std::vector<float>{1, 2, 3, 5}));
  expect_a5(answer(checkpoint));
}

// ---- B1, case 1 --------------------------------------------------------------------------------

// E 2, I 4, H 6, int8 with a scale per channel: w13 scale j of expert e is 100 e + j + 1.
TEST(B1ChannelScales, SplitByRankW2Whole) {
  const MoeSizes sizes{2, 1, 6, 4};
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", sizes);
  checkpoint.config["quantization_config"] = packed_config(8, "channel");
  for (int e = 0; e < 2; ++e) {
    const std::string expert = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
    const auto scales = [&](int first, int count) {
      std::vector<float> values;
      for (int j = 0; j < count; ++j) values.push_back(static_cast<float>(100 * e + first + j + 1));
      return values;
    };
    store_packed(expert + "gate_proj", 8, 4, 6, std::vector<int>(24, 1), scales(0, 4), &checkpoint);
    store_packed(expert + "up_proj", 8, 4, 6, std::vector<int>(24, 2), scales(4, 4), &checkpoint);
    store_packed(expert + "down_proj", 8, 6, 4, std::vector<int>(24, 3), scales(20, 6),
                 &checkpoint);
  }
  perch_model_opts opts = model_opts();
  opts.tp_rank = 1;
  opts.tp_size = 2;
  const perch_host::Model model = checkpoint.open(reference(), &opts);
  for (int e = 0; e < 2; ++e) {
    TensorMap tensors = canonical(model, e);
    const auto base = static_cast<float>(100 * e);
    EXPECT_EQ(to_floats(tensors["w13.scale"]),
              (std::vector<float>{base + 3, base + 4, base + 7, base + 8}));
    EXPECT_EQ(tensors["w2.scale"].shape, (std::vector<int64_t>{6}));
    EXPECT_EQ(to_floats(tensors["w2.scale"])[5], base + 26);
    EXPECT_EQ(tensors["w2"].shape, (std::vector<int64_t>{6, 2}));
  }
}

// ---- B1, case 3 --------------------------------------------------------------------------------

LayerConfig tensor_scaled_sq() {
  LayerConfig config = sq_layer(3, 1, PERCH_TYPE_F32);
  for (perch_quant* quant : {&config.first(), &config.second()}) {
    *quant = make_quant(PERCH_TYPE_INT8);
    quant->scale_kind = PERCH_SCALE_TENSOR;
    quant->scale_dtype = PERCH_TYPE_F32;
  }
  return config;
}

class ScalarFormTest : public ::testing::TestWithParam<int> {};

TEST_P(ScalarFormTest, OneScalePerExpert) {
  const LayerConfig config = tensor_scaled_sq();
  std::vector<int64_t> shape(static_cast<size_t>(GetParam()), 1);
  shape[0] = 3;
  TensorMap tensors;  // stacked: a leading E
  tensors["w13"] = u8({3, 1, 1}, {129, 129, 129});
  tensors["w13.scale"] = f32(shape, {1, 1, 1});
  tensors["w2"] = u8({3, 1, 1}, {129, 129, 129});
  tensors["w2.scale"] = f32(shape, {1, 2, 4});
  const perch_host::Runtime runtime = runtime_of(only("reference"));
  const perch_host::Layer layer =
      perch_host::make_layer(runtime, config.abi(), BackendHarness::name_tensors(tensors));
  const Call call = moe_call(config, {1, 1, 1}, {0, 1, 2}, {1, 1, 1});
  EXPECT_EQ(to_floats(run(layer.get(), config, call)), (std::vector<float>{1, 2, 4}));
}

std::string rank_name(const ::testing::TestParamInfo<int>& row) {
  return std::to_string(row.param);
}
INSTANTIATE_TEST_SUITE_P(Rank, ScalarFormTest, ::testing::Values(1, 2, 3), rank_name);

class LinearScalarFormTest : public ::testing::TestWithParam<int> {};

TEST_P(LinearScalarFormTest, AreTheSameScalar) {
  perch_quant quant = make_quant(PERCH_TYPE_INT8);
  quant.scale_kind = PERCH_SCALE_TENSOR;
  quant.scale_dtype = PERCH_TYPE_F32;
  LayerConfig config = LayerConfig::make_linear("fc", 1, 2, quant);
  config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
  config.layer().max_tokens = 4;
  TensorMap tensors;
  tensors["w"] = u8({1, 2}, {129, 130});
  tensors["w.scale"] = f32(std::vector<int64_t>(static_cast<size_t>(GetParam()), 1), {3});
  const perch_host::Layer layer = build_layer(reference(), config, {tensors});
  Call call;
  call.x = f32({1, 2}, {1, 1});
  EXPECT_EQ(to_floats(run(layer.get(), config, call)), (std::vector<float>{9}));
}

INSTANTIATE_TEST_SUITE_P(Rank, LinearScalarFormTest, ::testing::Values(0, 1, 2), rank_name);

}  // namespace
}  // namespace perch::test
