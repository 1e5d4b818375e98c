// Checkpoints that the quantizing packages wrote (tests/fixtures): their weights are the package's
// own dequantized ones, and the ranks of Qwen3.5's int8 experts sum to the whole.
#include <cmath>

#include "../fixtures/quantized_fixtures.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint_rig.h"
#include "decoded_weights.h"

namespace perch::test {
namespace {

std::string folder_of(const std::string& name) { return PERCH_FIXTURES_DIR "/hf/" + name; }

perch::Checkpoint expectations(const std::string& name) {
  perch::Result<perch::Checkpoint> file = open_tensor_file(folder_of(name) + "/expect.safetensors");
  if (!file.ok()) throw std::runtime_error(file.status().message());
  return std::move(*file);
}

// "<layer>.<expert>.<projection>", or a linear layer.
struct Module {
  explicit Module(const std::string& text) {
    const size_t dot = text.rfind('.');
    const size_t before = text.rfind('.', dot - 1);
    const std::string number = text.substr(before + 1, dot - before - 1);
    if (text.find(".experts.") == std::string::npos) {
      layer = text;
      return;
    }
    layer = text.substr(0, before);
    expert = std::stoi(number);
    projection = text.substr(dot + 1);
  }
  bool down() const { return projection == "down_proj" || projection == "w2"; }
  bool up() const { return projection == "up_proj" || projection == "w3"; }

  std::string layer;
  int32_t expert = -1;
  std::string projection;
};

uint32_t index_of(perch_model* model, const std::string& layer) {
  for (uint32_t i = 0; i < perch_model_num_layers(model); ++i) {
    if (layer == perch_model_layer_config(model, i)->name) return i;
  }
  throw std::runtime_error("no layer " + layer);
}

class PackageFilesTest : public ::testing::TestWithParam<QuantizedFixture> {};

// One product of code and scale is the package's to the last bit. With a second scale there are two
// products, whose order is the package's own.
TEST_P(PackageFilesTest, WeightsAreThePackagesOwn) {
  const perch::Checkpoint expect = expectations(GetParam().name);
  const perch_host::Model model =
      open_directory(shared_runtime("reference"), folder_of(GetParam().name), model_opts());
  size_t compared = 0;
  for (const RawTensor& tensor : expect.tensors) {
    if (!tensor.name.ends_with(".dequant")) continue;
    SCOPED_TRACE(tensor.name);
    ++compared;
    const Module module(tensor.name.substr(0, tensor.name.size() - 8));
    const uint32_t index = index_of(model.get(), module.layer);
    const LayerConfig config(*perch_model_layer_config(model.get(), index));
    const int matrix = module.down() ? 1 : 0;
    const bool gated = config.is_moe() && config.rows(0) == 2 * config.moe().intermediate;
    std::vector<float> got = decoded(canonical(model, module.expert, index),
                                     !config.is_moe() ? "w"
                                     : module.down()  ? "w2"
                                                      : "w13",
                                     config, matrix, gated);
    const auto size = static_cast<size_t>(tensor.shape[0] * tensor.shape[1]);
    const size_t skip = gated && module.up() ? size : 0;
    ASSERT_EQ(got.size(), gated && !module.down() ? 2 * size : size);
    std::vector<float> want(size);
    std::memcpy(want.data(), tensor.data, size * sizeof(float));
    const perch_quant& quant = matrix == 0 ? config.first() : config.second();
    const float room = quant.scale2_kind == PERCH_SCALE2_NONE ? 0.0F : 0x1p-22F;
    for (size_t i = 0; i < size; ++i) {
      ASSERT_LE(std::fabs(got[skip + i] - want[i]), room * std::fabs(want[i]))
          << i << ": got " << got[skip + i] << ", want " << want[i];
    }
  }
  EXPECT_GE(compared, 2U);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PackageFilesTest, ::testing::ValuesIn(quantized_fixtures()),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- Qwen3.5's fused int8 experts, scales [E,2I,1], over ranks ---------------------------------

constexpr const char* kQwen = "qwen3_5_moe_w8a8";
constexpr const char* kExperts = "model.language_model.layers.0.mlp.experts";

std::vector<float> floats_of(const perch::Checkpoint& file, const std::string& name) {
  const RawTensor* tensor = file.find(name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
  const bool bf16 = tensor->dtype == RawDtype::kBF16;
  std::vector<float> values(static_cast<size_t>(tensor->shape[0] * tensor->shape[1]));
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + (bf16 ? 2 : 0),
                tensor->data + i * (bf16 ? 2 : 4), bf16 ? 2 : 4);
    std::memcpy(&values[i], &bits, sizeof(bits));
  }
  return values;
}

// The sum of all ranks' outputs.
std::vector<double> sum_of_ranks(perch_runtime* runtime, uint32_t ranks) {
  const perch::Checkpoint expect = expectations(kQwen);
  const std::string prefix = kExperts;
  const std::vector<float> x = floats_of(expect, prefix + ".input");
  const std::vector<float> weights = floats_of(expect, prefix + ".weights");
  const RawTensor* ids = expect.find(prefix + ".ids");
  std::vector<int32_t> chosen(weights.size());
  std::memcpy(chosen.data(), ids->data, chosen.size() * sizeof(int32_t));
  const int64_t rows = ids->shape[0];
  std::vector<double> sum(x.size(), 0.0);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    perch_model_opts opts = model_opts();
    opts.in_dtype = opts.out_dtype = PERCH_TYPE_F32;
    opts.tp_rank = rank;
    opts.tp_size = ranks;
    const perch_host::Model model = open_directory(runtime, folder_of(kQwen), opts);
    const uint32_t index = index_of(model.get(), prefix);
    const perch_host::Layer layer = perch_host::make_layer(model, index);
    Call call;
    call.x = f32({rows, static_cast<int64_t>(x.size()) / rows}, x);
    call.ids = i32({rows, ids->shape[1]}, chosen);
    call.weights = f32({rows, ids->shape[1]}, weights);
    const LayerConfig config(*perch_model_layer_config(model.get(), index));
    const std::vector<float> part = to_floats(run(layer.get(), config, call));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{part[i]};
  }
  return sum;
}

// |got - want| / |want|, Euclidean.
template <typename Values>
double distance(const std::vector<double>& got, const Values& want) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - double{want[i]}) * (got[i] - double{want[i]});
    size += double{want[i]} * double{want[i]};
  }
  return std::sqrt(difference / size);
}

TEST(Qwen35Int8, RanksSumToTheWholeOnPlainInputs) {
  const perch_host::Runtime plain = runtime_of(only("reference", "act: none"));
  const std::vector<double> whole = sum_of_ranks(plain.get(), 1);
  for (const uint32_t ranks : {2U, 4U}) {
    EXPECT_LT(distance(sum_of_ranks(plain.get(), ranks), whole), 1e-6) << ranks;
  }
}

// Each rank quantizes its own part of a row, with its own scale, as every engine does: about half a
// step of 1/127 from the whole's, never more than two.
TEST(Qwen35Int8, RanksAreNearThePackagesOutput) {
  const std::vector<float> want = floats_of(expectations(kQwen), std::string(kExperts) + ".output");
  EXPECT_LT(distance(sum_of_ranks(shared_runtime("reference"), 1), want), 1e-5);
  for (const uint32_t ranks : {2U, 4U}) {
    const double far = distance(sum_of_ranks(shared_runtime("reference"), ranks), want);
    EXPECT_LT(far, 2.0 / 127) << ranks;
    EXPECT_GT(far, 1e-5) << ranks;  // one scale for all ranks would need their maxima exchanged
  }
}

}  // namespace
}  // namespace perch::test
