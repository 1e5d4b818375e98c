// Field reports on stored formats (A3, B1, B3, D1, D3), each by a checkpoint or a layer as small as
// the report's own, with the report's right answer; on every backend where numbers are run.
#include <cmath>

#include "../abi/shell.h"
#include "api_rig.h"
#include "base/recipe.h"
#include "checkpoint_rig.h"
#include "stored_matrix.h"

namespace perch::test {
namespace {

class FormatReports : public ::testing::TestWithParam<const char*> {
 protected:
  static perch_runtime* runtime() { return shared_runtime(GetParam()); }
};

perch_model_opts rank_opts(uint32_t rank, uint32_t ranks) {
  perch_model_opts opts = model_opts();
  opts.in_dtype = opts.out_dtype = PERCH_TYPE_F32;
  opts.tp_rank = rank;
  opts.tp_size = ranks;
  return opts;
}

// Leaves memory behind in which every byte is 0xFF, for whatever is allocated next: what a backend
// pads and does not write is NaN then.
void spoil_heap() {
  std::vector<std::vector<uint8_t>> blocks;
  for (size_t bytes = 64; bytes <= 65536; bytes *= 2) {
    for (int i = 0; i < 8; ++i) blocks.emplace_back(bytes - 16, 0xFF);
  }
}

// ---- A3: I 10, no multiple of any tile ----------------------------------------------------------

Checkpoint a3_checkpoint(const std::string& format) {
  const MoeSizes sizes{1, 1, 1, 10};
  const std::vector<float> ones(10, 1.0F);
  if (format == "bf16") {
    return store(Storage::kP, sizes, {{ones, std::vector<float>(10, 2.0F), ones}});
  }
  const bool grouped = format == "int4g8";
  const int bits = grouped ? 4 : 8;
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", sizes);
  checkpoint.config["quantization_config"] =
      grouped ? packed_config(bits, "group", 8) : packed_config(bits, "channel");
  const std::string expert = "model.layers.0.mlp.experts.0.";
  const std::vector<int> codes(10, 1);
  store_packed(expert + "gate_proj", bits, 10, 1, codes, ones, &checkpoint);
  store_packed(expert + "up_proj", bits, 10, 1, codes, std::vector<float>(10, 2.0F), &checkpoint);
  // The second group has 2 of its 8 columns.
  store_packed(expert + "down_proj", bits, 1, 10, codes, std::vector<float>(grouped ? 2 : 1, 1.0F),
               &checkpoint);
  return checkpoint;
}

TEST_P(FormatReports, A3IntermediateOf10) {
  for (const char* format : {"bf16", "int8c", "int4g8"}) {
    const Checkpoint checkpoint = a3_checkpoint(format);
    for (const uint32_t ranks : {1U, 2U}) {
      SCOPED_TRACE(std::string(format) + " tp " + std::to_string(ranks));
      float sum = 0;
      int64_t intermediate = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const perch_model_opts opts = rank_opts(rank, ranks);
        const perch_host::Model model = checkpoint.open(runtime(), &opts);
        spoil_heap();
        const perch_host::Layer layer = perch_host::make_layer(model, 0);
        const LayerConfig config(*perch_model_layer_config(model.get(), 0));
        intermediate += config.moe().intermediate;
        spoil_heap();
        sum += to_floats(run(layer.get(), config, moe_call(config, {1}, {0}, {1})))[0];
      }
      // 5.84846863 would be a pad behind both halves instead of behind each.
      EXPECT_NEAR(sum, 14.62117157F, 2e-5F);
      EXPECT_EQ(intermediate, 10);
    }
  }
}

// ---- D1: f32 to e4m3 ----------------------------------------------------------------------------

// What the codes of the list stand for.
const std::vector<std::pair<float, float>> kD1 = {
    {0.0F, 0.0F},         {1.0F, 1.0F},     {17.0F, 16.0F},   {19.0F, 20.0F},     {0.3F, 0.3125F},
    {300.0F, 288.0F},     {304.0F, 320.0F}, {447.9F, 448.0F}, {448.0F, 448.0F},   {464.0F, 448.0F},
    {480.0F, 448.0F},     {1e6F, 448.0F},   {-1e6F, -448.0F}, {0x1p-9F, 0x1p-9F}, {0x1p-10F, 0.0F},
    {0x1.8p-9F, 0x1p-8F}, {-17.0F, -16.0F}, {3e38F, 448.0F},
};

// A linear layer that is the identity shows what its input became. All lengths, for the tails of
// loops over vectors.
TEST_P(FormatReports, D1QuantizedInputsOfEveryLength) {
  for (int64_t k = 1; k <= 33; ++k) {
    SCOPED_TRACE(k);
    LayerConfig config = LayerConfig::make_linear("fc", k, k, *parse_weight("e4m3c:f32"));
    config.act_first() = *parse_act("e4m3s");
    config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
    config.layer().max_tokens = 4;
    ASSERT_TRUE(accepts(config, runtime()));
    const auto size = static_cast<size_t>(k);
    std::vector<uint8_t> identity(size * size, 0);
    for (size_t i = 0; i < size; ++i) identity[i * size + i] = 0x38;
    TensorMap tensors;
    tensors["w"] = u8({k, k}, identity);
    tensors["w.scale"] = f32({k}, std::vector<float>(size, 1.0F));
    tensors["w.input_scale"] = f32({1}, {1});
    std::vector<float> x;
    std::vector<float> want;
    for (size_t i = 0; i < size; ++i) {
      const auto& [given, becomes] = kD1[(i + size) % kD1.size()];
      x.push_back(given);
      want.push_back(becomes);
    }
    const perch_host::Layer layer = build_layer(runtime(), config, {tensors});
    Call call;
    call.x = f32({1, k}, x);
    EXPECT_EQ(to_floats(run(layer.get(), config, call)), want);
  }
}

// All 256 codes of a checkpoint arrive as they are, NaN and -0 with the others.
TEST(FormatReportsOfCodes, D1EveryCodeIsUnchanged) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  const StoredPart scale = scalar_part("weight_scale", 1.0F);
  const TempDir folder;
  const std::string module = "model.layers.0.self_attn.o_proj.";
  write_safetensors(folder / "model.safetensors",
                    {{module + "weight", "F8_E4M3", {16, 16}, &codes},
                     {module + "weight_scale", scale.dtype, scale.shape, &scale.bytes}});
  json config = moe_config_json("qwen3_moe", {1, 1, 16, 16});
  config["quantization_config"] = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  write_text(folder / "config.json", config.dump());
  const perch_host::Model model =
      open_directory(shared_runtime("reference"), folder.path(), model_opts());
  EXPECT_EQ(canonical(model, -1)["w"].bytes, codes);
}

// ---- B1, case 2: an in-out checkpoint -----------------------------------------------------------

// H 4 and I 2 in blocks of 2 x 2; the stored grid is (blocks of H) x (blocks of 2I).
TEST(FormatReportsOfScales, B1BlocksOfATransposedCheckpoint) {
  const std::vector<uint8_t> ones13(16, 0x38);
  const std::vector<uint8_t> ones2(8, 0x38);
  const StoredPart grid13 = float_part("", "F32", {1, 2, 2}, {10, 20, 30, 40});
  const StoredPart grid2 = float_part("", "F32", {1, 1, 2}, {50, 60});
  const TempDir folder;
  const std::string experts = "model.language_model.layers.0.mlp.experts.";
  write_safetensors(folder / "model.safetensors",
                    {{experts + "gate_up_proj", "F8_E4M3", {1, 4, 4}, &ones13},
                     {experts + "gate_up_proj_scale_inv", "F32", grid13.shape, &grid13.bytes},
                     {experts + "down_proj", "F8_E4M3", {1, 2, 4}, &ones2},
                     {experts + "down_proj_scale_inv", "F32", grid2.shape, &grid2.bytes}});
  json config = moe_config_json("qwen3_vl_moe", {1, 1, 4, 2});
  config["transformers_version"] = "4.57.0";
  config["quantization_config"] = {
      {"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {2, 2}}};
  write_text(folder / "config.json", config.dump());
  // Twice in a row: nothing that loading does stays behind.
  for (int visit = 0; visit < 2; ++visit) {
    const perch_host::Model model =
        open_directory(shared_runtime("reference"), folder.path(), model_opts());
    TensorMap tensors = canonical(model, 0);
    EXPECT_EQ(to_floats(tensors["w13.scale"]), (std::vector<float>{10, 30, 20, 40}));
    EXPECT_EQ(to_floats(tensors["w2.scale"]), (std::vector<float>{50, 60}));
  }
}

// ---- B3: 1856 columns in groups of 16 over 8 ranks ----------------------------------------------

// 14.5 groups for each rank: 15 and 14 of them, and the sum is exact.
TEST_P(FormatReports, B3HalfAGroupForEachRank) {
  std::vector<float> scales;
  float want = 0;
  for (int g = 0; g < 116; ++g) {
    scales.push_back(static_cast<float>(g % 7 + 1));
    want += 16 * scales.back();
  }
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", {1, 1, 1856, 16});
  checkpoint.config["quantization_config"] = packed_config(4, "group", 16);
  store_packed("model.layers.0.self_attn.o_proj", 4, 1, 1856, std::vector<int>(1856, 1), scales,
               &checkpoint);
  float sum = 0;
  int64_t columns = 0;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    const perch_model_opts opts = rank_opts(rank, 8);
    const perch_host::Model model = checkpoint.open(runtime(), &opts);
    const LayerConfig config(*perch_model_layer_config(model.get(), 0));
    const int64_t k = config.linear().in_features;
    EXPECT_TRUE(k == 224 || k == 240) << k;
    columns += k;
    const perch_host::Layer layer = perch_host::make_layer(model, 0);
    Call call;
    call.x = f32({1, k}, std::vector<float>(static_cast<size_t>(k), 1.0F));
    sum += to_floats(run(layer.get(), config, call))[0];
  }
  EXPECT_EQ(columns, 1856);
  EXPECT_EQ(sum, want);
}

// ---- D3: a row of zeros, whose largest value is 0 -----------------------------------------------

// Beside rows that are not, in each way that inputs are quantized: +0, and neither NaN nor what a
// neighbour has.
TEST_P(FormatReports, D3ZeroRowsGiveZeros) {
  for (const char* fixture : {"ct_nvfp4", "ct_fp8_dynamic", "ct_fp8_static", "ct_w8a8",
                              "ct_nvfp4a16", "ct_mxfp8", "modelopt_nvfp4"}) {
    SCOPED_TRACE(fixture);
    const perch_model_opts opts = rank_opts(0, 1);
    const perch_host::Model model =
        open_directory(runtime(), std::string(PERCH_FIXTURES_DIR) + "/hf/" + fixture, opts);
    bool found = false;
    for (uint32_t index = 0; perch_model_layer_config(model.get(), index) != nullptr; ++index) {
      const LayerConfig config(*perch_model_layer_config(model.get(), index));
      if (!config.is_moe()) continue;
      found = true;
      const perch_host::Layer layer = perch_host::make_layer(model, index);
      Call call = random_call(config, 3, 1);
      const auto width = static_cast<size_t>(config.moe().hidden);
      std::vector<float> x = to_floats(call.x);
      std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(width), width, 0.0F);
      call.x = f32({3, config.moe().hidden}, x);
      const std::vector<float> y = to_floats(run(layer.get(), config, call));
      for (size_t i = 0; i < width; ++i) {
        ASSERT_EQ(y[width + i], 0.0F) << i;
        ASSERT_TRUE(std::isfinite(y[i]) && std::isfinite(y[2 * width + i])) << i;
      }
      EXPECT_NE(y[0], 0.0F);
    }
    EXPECT_TRUE(found);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FormatReports, ::testing::Values("reference", "humming-cpu"),
                         [](const auto& row) {
                           return row.param == std::string("reference") ? "reference"
                                                                        : "humming_cpu";
                         });

}  // namespace
}  // namespace perch::test
