// perch synth: a small synthetic checkpoint, in the layout of a model type and a weight format.
//
//   perch synth 'qwen3_moe layers=2 e=8 top=2 h=64 i=96 w=int4g32' DIR
// Weights are hashed by coordinate: the same recipe and seed give the same bytes.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "base/recipe.h"
#include "command.h"
#include "hashed_data.h"
#include "numeric/float_formats.h"
#include "safetensors_writer.h"

namespace perch_command {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

enum class Storage { kPerExpert, kMixtral, kNonGated, kFused, kTransposed, kInterleaved, kGranite };

struct ModelRow {
  const char* model_type;
  Storage storage;
  const char* layer;  // the module of layer {}, down to the one above the experts
  const char* router;
  const char* activation;
};

constexpr ModelRow kModels[] = {
    {"qwen3_moe", Storage::kPerExpert, "model.layers.{}.mlp", "gate", "silu"},
    {"mixtral", Storage::kMixtral, "model.layers.{}.block_sparse_moe", "gate", "silu"},
    {"nemotron_h", Storage::kNonGated, "backbone.layers.{}.mixer", "gate", "relu2"},
    {"qwen3_5_moe", Storage::kFused, "model.language_model.layers.{}.mlp", "gate", "silu"},
    {"qwen3_vl_moe", Storage::kTransposed, "model.language_model.layers.{}.mlp", "gate", "silu"},
    {"llama4", Storage::kTransposed, "language_model.model.layers.{}.feed_forward", "router",
     "silu"},
    {"gpt_oss", Storage::kInterleaved, "model.layers.{}.mlp", "router", "silu"},
    {"granitemoe", Storage::kGranite, "model.layers.{}.block_sparse_moe", "router.layer", "silu"},
};

struct Recipe {
  ModelRow model{};
  int64_t layers = 1, experts = 8, topk = 2, hidden = 64, intermediate = 96;
  uint64_t seed = 1;
  perch_quant weight{};

  bool packed() const {
    return weight.weight == PERCH_TYPE_INT4 || weight.weight == PERCH_TYPE_INT8;
  }
  int bits() const { return perch::type_bits(weight.weight); }
};

[[noreturn]] void bad_recipe(const std::string& text) {
  throw Failure(kExitBadInput, "RECIPE: " + text);
}

const ModelRow& find_model(const std::string& name) {
  std::string known;
  for (const ModelRow& row : kModels) {
    if (name == row.model_type) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.model_type);
  }
  bad_recipe(fmt::format("got model type \"{}\"; want one of {}", name, known));
}

void check_weight(const Recipe& recipe) {
  const perch_quant& weight = recipe.weight;
  const bool is_float = weight.weight >= PERCH_TYPE_F32 && weight.weight <= PERCH_TYPE_BF16 &&
                        weight.scale_kind == PERCH_SCALE_NONE;
  const bool scaled =
      weight.scale_kind == PERCH_SCALE_GROUP || weight.scale_kind == PERCH_SCALE_CHANNEL;
  const bool zero = weight.zero_kind == PERCH_ZERO_MIDPOINT || weight.zero_kind == PERCH_ZERO_INT;
  const bool per_expert = recipe.model.storage == Storage::kPerExpert ||
                          recipe.model.storage == Storage::kMixtral ||
                          recipe.model.storage == Storage::kNonGated;
  const bool plain = weight.scale2_kind == PERCH_SCALE2_NONE && weight.flags == 0 &&
                     weight.offset_kind == PERCH_OFFSET_NONE && weight.k_order == PERCH_K_NATURAL;
  if (is_float || (recipe.packed() && scaled && zero && per_expert && plain)) return;
  bad_recipe(
      fmt::format("got w={} for {}; want f32, f16 or bf16, or (per-expert types) int4 or int8 "
                  "with group or channel scales, such as int4g32:bf16 or int4g32:bf16+z",
                  perch::print_weight(weight), recipe.model.model_type));
}

Recipe parse_recipe(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  Recipe recipe;
  recipe.model = find_model(word);
  recipe.weight = *perch::parse_weight("bf16");
  if (std::string(recipe.model.model_type) == "llama4") recipe.topk = 1;
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "w") {
      auto weight = perch::parse_weight(value);
      if (!weight.ok()) bad_recipe(weight.status().message());
      recipe.weight = *weight;
      continue;
    }
    int64_t* slot = key == "layers" ? &recipe.layers
                    : key == "e"    ? &recipe.experts
                    : key == "top"  ? &recipe.topk
                    : key == "h"    ? &recipe.hidden
                    : key == "i"    ? &recipe.intermediate
                                    : nullptr;
    char* end = nullptr;
    const long long number = std::strtoll(value.c_str(), &end, 10);
    if (value.empty() || *end != '\0' || number < 1 || number > (1 << 20) ||
        (slot == nullptr && key != "seed")) {
      bad_recipe(
          fmt::format("got \"{}\"; want layers=, e=, top=, h=, i=, seed= with a number from 1, "
                      "or w=",
                      word));
    }
    if (slot != nullptr) {
      *slot = number;
    } else {
      recipe.seed = static_cast<uint64_t>(number);
    }
  }
  if (recipe.topk > recipe.experts) bad_recipe("top is larger than e");
  check_weight(recipe);
  return recipe;
}

// One tensor to be: its header entry and how to fill rows [0, rows) of `row_bytes` each.
struct Planned {
  OutputTensor tensor;
  int64_t rows = 0;
  int64_t row_bytes = 0;
  std::function<void(int64_t row, std::byte* out)> fill;
};

class Planner {
 public:
  explicit Planner(const Recipe& recipe) : recipe_(recipe) {}

  std::vector<Planned> plan() {
    for (int64_t layer = 0; layer < recipe_.layers; ++layer) {
      const std::string module = fmt::format(fmt::runtime(recipe_.model.layer), layer);
      add_floats(module + "." + recipe_.model.router + ".weight", {recipe_.experts, recipe_.hidden},
                 "BF16");
      add_experts(module);
    }
    return std::move(planned_);
  }

 private:
  // Values of order 1/sqrt(columns), so that outputs stay of order 1.
  void add_floats(const std::string& name, std::vector<int64_t> shape, const std::string& dtype) {
    const int64_t columns = shape.back();
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    const int64_t width = dtype == "F32" ? 4 : 2;
    const uint64_t tensor = next_tensor_++;
    const float scale = 1.5F / std::sqrt(static_cast<float>(columns));
    const uint64_t seed = recipe_.seed;
    const auto fill = [=](int64_t row, std::byte* out) {
      for (int64_t k = 0; k < columns; ++k) {
        const float value =
            scale * hashed_unit(seed, tensor, static_cast<uint64_t>(row), static_cast<uint64_t>(k));
        if (width == 4) {
          std::memcpy(out + k * 4, &value, 4);
          continue;
        }
        const uint16_t half = dtype == "BF16" ? perch::numeric::bf16_from_f32(value)
                                              : perch::numeric::f16_from_f32(value);
        std::memcpy(out + k * 2, &half, 2);
      }
    };
    add(name, dtype, std::move(shape), {rows, columns * width}, fill);
  }

  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
           std::pair<int64_t, int64_t> size, std::function<void(int64_t, std::byte*)> fill) {
    const auto bytes = static_cast<uint64_t>(size.first * size.second);
    planned_.push_back(
        {{name, dtype, std::move(shape), bytes}, size.first, size.second, std::move(fill)});
  }

  void add_words(const std::string& name, int64_t rows, int64_t columns) {
    const uint64_t tensor = next_tensor_++;
    const uint64_t seed = recipe_.seed;
    add(name, "I32", {rows, columns}, {rows, columns * 4}, [=](int64_t row, std::byte* out) {
      for (int64_t c = 0; c < columns; ++c) {
        const auto word = static_cast<uint32_t>(
            hash_coordinate(seed, tensor, static_cast<uint64_t>(row), static_cast<uint64_t>(c)));
        std::memcpy(out + c * 4, &word, 4);
      }
    });
  }

  // weight_packed, weight_scale, weight_shape and, where asked for, weight_zero_point of [n,k].
  void add_packed(const std::string& module, int64_t n, int64_t k) {
    const int bits = recipe_.bits();
    const int64_t group = recipe_.weight.group_k;
    const int64_t groups = group == 0 ? 1 : (k + group - 1) / group;
    add_words(module + ".weight_packed", n, (k * bits + 31) / 32);
    const uint64_t tensor = next_tensor_++;
    const uint64_t seed = recipe_.seed;
    const float base = 2.0F / (std::sqrt(static_cast<float>(k)) * static_cast<float>(1 << bits));
    add(module + ".weight_scale", "BF16", {n, groups}, {n, groups * 2},
        [=](int64_t row, std::byte* out) {
          for (int64_t g = 0; g < groups; ++g) {
            const float spread =
                hashed_unit(seed, tensor, static_cast<uint64_t>(row), static_cast<uint64_t>(g));
            const uint16_t scale = perch::numeric::bf16_from_f32(base * (1.5F + 0.5F * spread));
            std::memcpy(out + g * 2, &scale, 2);
          }
        });
    if (recipe_.weight.zero_kind == PERCH_ZERO_INT) {
      add_words(module + ".weight_zero_point", (n * bits + 31) / 32, groups);
    }
    add(module + ".weight_shape", "I64", {2}, {1, 16}, [=](int64_t, std::byte* out) {
      const int64_t shape[2] = {n, k};
      std::memcpy(out, shape, sizeof(shape));
    });
  }

  void add_matrix(const std::string& module, int64_t n, int64_t k) {
    if (recipe_.packed()) {
      add_packed(module, n, k);
    } else {
      add_floats(module + ".weight", {n, k}, float_dtype());
    }
  }

  std::string float_dtype() const {
    if (recipe_.weight.weight == PERCH_TYPE_F32) return "F32";
    return recipe_.weight.weight == PERCH_TYPE_F16 ? "F16" : "BF16";
  }

  void add_experts(const std::string& module) {
    const Storage storage = recipe_.model.storage;
    const int64_t e = recipe_.experts;
    const int64_t h = recipe_.hidden;
    const int64_t i = recipe_.intermediate;
    const std::string experts = module + ".experts";
    switch (storage) {
      case Storage::kFused:
        add_floats(experts + ".gate_up_proj", {e, 2 * i, h}, float_dtype());
        add_floats(experts + ".down_proj", {e, h, i}, float_dtype());
        return;
      case Storage::kTransposed:
      case Storage::kInterleaved:
        add_floats(experts + ".gate_up_proj", {e, h, 2 * i}, float_dtype());
        add_floats(experts + ".down_proj", {e, i, h}, float_dtype());
        if (storage == Storage::kTransposed) return;
        add_floats(experts + ".gate_up_proj_bias", {e, 2 * i}, float_dtype());
        add_floats(experts + ".down_proj_bias", {e, h}, float_dtype());
        return;
      case Storage::kGranite:
        add_floats(module + ".input_linear.weight", {e, 2 * i, h}, float_dtype());
        add_floats(module + ".output_linear.weight", {e, h, i}, float_dtype());
        return;
      default:
        break;
    }
    const bool mixtral = storage == Storage::kMixtral;
    for (int64_t expert = 0; expert < e; ++expert) {
      const std::string prefix = fmt::format("{}.{}.", experts, expert);
      if (storage != Storage::kNonGated) add_matrix(prefix + (mixtral ? "w1" : "gate_proj"), i, h);
      add_matrix(prefix + (mixtral ? "w3" : "up_proj"), i, h);
      add_matrix(prefix + (mixtral ? "w2" : "down_proj"), h, i);
    }
  }

  const Recipe& recipe_;
  std::vector<Planned> planned_;
  uint64_t next_tensor_ = 1;
};

ordered_json make_config(const Recipe& recipe) {
  const bool vl = std::string(recipe.model.layer).find("language_model") != std::string::npos;
  ordered_json text = {{"model_type", recipe.model.model_type},
                       {"hidden_size", recipe.hidden},
                       {"num_local_experts", recipe.experts},
                       {"num_experts_per_tok", recipe.topk},
                       {recipe.model.storage == Storage::kGranite ||
                                std::string(recipe.model.model_type) == "gpt_oss" ||
                                std::string(recipe.model.model_type) == "llama4" ||
                                std::string(recipe.model.model_type) == "mixtral"
                            ? "intermediate_size"
                            : "moe_intermediate_size",
                        recipe.intermediate},
                       {"hidden_act", recipe.model.activation},
                       {"norm_topk_prob", true},
                       {"torch_dtype", "bfloat16"}};
  if (recipe.packed()) {
    const bool channel = recipe.weight.scale_kind == PERCH_SCALE_CHANNEL;
    ordered_json weights = {{"num_bits", recipe.bits()},
                            {"type", "int"},
                            {"symmetric", recipe.weight.zero_kind != PERCH_ZERO_INT},
                            {"strategy", channel ? "channel" : "group"}};
    if (!channel) weights["group_size"] = recipe.weight.group_k;
    text["quantization_config"] = {
        {"quant_method", "compressed-tensors"},
        {"format", "pack-quantized"},
        {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
        {"ignore", {"lm_head", "re:.*gate$"}}};
  }
  if (!vl) return text;
  return {{"model_type", recipe.model.model_type},
          {"transformers_version", "4.57.6"},
          {"text_config", text}};
}

int run_synth(const CommonOptions& common, const std::string& text, const std::string& directory) {
  const Recipe recipe = parse_recipe(text);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    throw Failure(kExitBadInput, fmt::format("{}: {}", directory, error.message()));
  }
  const fs::path file = fs::path(directory) / "model.safetensors";
  if (fs::exists(file, error) || fs::exists(fs::path(directory) / "config.json", error)) {
    throw Failure(kExitBadInput,
                  fmt::format("{}: holds a checkpoint already; want a new directory", directory));
  }
  const std::vector<Planned> planned = Planner(recipe).plan();
  std::vector<OutputTensor> tensors;
  uint64_t bytes = 0;
  for (const Planned& tensor : planned) {
    tensors.push_back(tensor.tensor);
    bytes += tensor.tensor.bytes;
  }
  std::ofstream config(fs::path(directory) / "config.json");
  config << make_config(recipe).dump(2) << "\n";
  config.close();
  Progress progress(!common.quiet);
  SafetensorsWriter writer(file.string(), tensors);
  std::vector<std::byte> data;
  for (size_t i = 0; i < planned.size(); ++i) {
    if (i % 64 == 0) progress.show(fmt::format("tensor {} of {}", i + 1, planned.size()));
    data.resize(planned[i].tensor.bytes);
    for (int64_t row = 0; row < planned[i].rows; ++row) {
      planned[i].fill(row, data.data() + row * planned[i].row_bytes);
    }
    writer.append(data.data(), data.size());
  }
  writer.close();
  if (config.fail()) throw Failure(kExitBadInput, directory + "/config.json: could not be written");
  if (common.json) {
    std::cout << ordered_json{{"directory", directory},
                              {"tensors", planned.size()},
                              {"bytes", bytes}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << fmt::format("{}: {} tensors, {}\n", directory, planned.size(),
                             print_bytes(static_cast<double>(bytes)));
  }
  return kExitFine;
}

}  // namespace

void register_synth(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command = app->add_subcommand("synth", "write a small synthetic checkpoint");
  auto recipe = std::make_shared<std::string>();
  auto directory = std::make_shared<std::string>();
  command
      ->add_option("RECIPE", *recipe,
                   "model type and sizes: 'qwen3_moe layers=2 e=8 top=2 h=64 i=96 w=int4g32:bf16'")
      ->required();
  command->add_option("DIR", *directory, "a new directory")->required();
  add_common_options(command, common);
  command->callback([=] { *handler = [=] { return run_synth(*common, *recipe, *directory); }; });
}

}  // namespace perch_command
