#include "layer_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "hashed_data.h"
#include "numeric/decode.h"

namespace perch_command {
namespace {

namespace numeric = perch::numeric;

uint32_t perch_type(DLDataType dtype) {
  if (dtype.code == kDLBfloat) return PERCH_TYPE_BF16;
  if (dtype.code != kDLFloat || dtype.bits > 32) return 0;
  return dtype.bits == 16 ? PERCH_TYPE_F16 : PERCH_TYPE_F32;
}

const DLTensor* find_tensor(const perch_tensors* tensors, const std::string& name) {
  const perch_named_tensor* found = perch_tensors_find(tensors, name.c_str());
  return found == nullptr ? nullptr : found->tensor;
}

[[noreturn]] void wrong_tensor(const std::string& name, const std::string& want) {
  throw Failure(kExitBadInput, fmt::format("tensor \"{}\": want {}", name, want));
}

// A file's tensor of rank 2 with `columns` columns, converted to the layer's type.
std::vector<std::byte> convert_rows(const DLTensor& tensor, const std::string& name,
                                    int64_t columns, uint32_t type) {
  const uint32_t from = perch_type(tensor.dtype);
  if (tensor.ndim != 2 || tensor.shape[1] != columns || from == 0) {
    wrong_tensor(name, fmt::format("[tokens, {}] of F32, F16 or BF16", columns));
  }
  const int64_t count = tensor.shape[0] * columns;
  std::vector<std::byte> rows(static_cast<size_t>(count * type_bytes(type)));
  for (int64_t i = 0; i < count; ++i) {
    numeric::store_float(type, numeric::load_float(from, tensor.data, i), rows.data(), i);
  }
  return rows;
}

void read_routing(const perch_tensors* tensors, const std::string& layer, int64_t topk,
                  LayerInput* input) {
  const DLTensor* ids = find_tensor(tensors, layer + ".ids");
  const DLTensor* weights = find_tensor(tensors, layer + ".weights");
  if (ids == nullptr && weights == nullptr) return;
  if (ids == nullptr) wrong_tensor(layer + ".ids", "it beside " + layer + ".weights");
  if (weights == nullptr) wrong_tensor(layer + ".weights", "it beside " + layer + ".ids");
  const auto fits = [&](const DLTensor& tensor, uint8_t code) {
    return tensor.ndim == 2 && tensor.shape[0] == input->tokens && tensor.shape[1] == topk &&
           tensor.dtype.code == code && tensor.dtype.bits == 32;
  };
  if (!fits(*ids, kDLInt)) wrong_tensor(layer + ".ids", "I32 [tokens, topk]");
  if (!fits(*weights, kDLFloat)) wrong_tensor(layer + ".weights", "F32 [tokens, topk]");
  const auto count = static_cast<size_t>(input->tokens * topk);
  input->ids.resize(count);
  input->weights.resize(count);
  std::memcpy(input->ids.data(), ids->data, count * sizeof(int32_t));
  std::memcpy(input->weights.data(), weights->data, count * sizeof(float));
}

// The model's own router, where its input is what the experts see; else experts by hash, each row
// with distinct ones and weights that sum to 1.
void make_routing(perch_model* model, uint32_t index, uint64_t seed, LayerInput* input) {
  const perch_layer_config& config = *perch_model_layer_config(model, index);
  const int64_t topk = config.moe->topk;
  const int64_t experts = config.moe->num_experts_global;
  input->ids.resize(static_cast<size_t>(input->tokens * topk));
  input->weights.resize(input->ids.size());
  perch_host::Tensor x(input->x.data(), dlpack_type(config.in_dtype),
                       {input->tokens, config.moe->hidden});
  const perch_route_config* route = perch_model_route_config(model, index);
  if (route != nullptr) {
    perch_host::Tensor logits({kDLFloat, 32, 1}, {input->tokens, experts});
    perch_error error = PERCH_ERROR_INIT;
    if (perch_model_router_logits(model, index, x.get(), logits.get(), &error) == PERCH_OK) {
      perch_host::Tensor ids(input->ids.data(), {kDLInt, 32, 1}, {input->tokens, topk});
      perch_host::Tensor weights(input->weights.data(), {kDLFloat, 32, 1}, {input->tokens, topk});
      perch_host::check(perch_route, route, logits.get(), ids.get(), weights.get());
      return;
    }
  }
  std::vector<int32_t> order(static_cast<size_t>(experts));
  for (int64_t t = 0; t < input->tokens; ++t) {
    std::iota(order.begin(), order.end(), 0);
    for (int64_t s = 0; s < topk; ++s) {
      const auto row = static_cast<uint64_t>(t);
      const auto left = static_cast<uint64_t>(experts - s);
      const uint64_t pick = hash_coordinate(seed, 2, row, static_cast<uint64_t>(s)) % left;
      std::swap(order[static_cast<size_t>(s)], order[static_cast<size_t>(s) + pick]);
      input->ids[static_cast<size_t>(t * topk + s)] = order[static_cast<size_t>(s)];
      input->weights[static_cast<size_t>(t * topk + s)] = 1.0F / static_cast<float>(topk);
    }
  }
}

// Rows of tensor `name` or, without a file, of the seed. False: the file does not have it.
bool make_rows(const InputOptions& options, const perch_tensors* tensors, const std::string& name,
               int64_t width, uint32_t type, LayerInput* input) {
  if (tensors != nullptr) {
    const DLTensor* x = find_tensor(tensors, name);
    if (x == nullptr) return false;
    input->x = convert_rows(*x, name, width, type);
    input->tokens = x->shape[0];
    return true;
  }
  input->tokens = options.tokens;
  input->x.resize(static_cast<size_t>(input->tokens * width * type_bytes(type)));
  for (int64_t t = 0; t < input->tokens; ++t) {
    for (int64_t k = 0; k < width; ++k) {
      const float value =
          hashed_unit(options.seed, 1, static_cast<uint64_t>(t), static_cast<uint64_t>(k));
      numeric::store_float(type, value, input->x.data(), t * width + k);
    }
  }
  return true;
}

}  // namespace

int64_t input_width(const perch_layer_config& config) {
  return config.kind == PERCH_KIND_MOE ? config.moe->hidden : config.linear->in_features;
}

int64_t output_width(const perch_layer_config& config) {
  return config.kind == PERCH_KIND_MOE ? config.moe->hidden : config.linear->out_features;
}

int64_t router_width(perch_model* model, uint32_t index) {
  const auto document = nlohmann::json::parse(perch_host::json(perch_model_inspect, model));
  const auto& layer = document["layers"][index];
  return layer.contains("latent") ? layer["latent"]["hidden"].get<int64_t>()
                                  : input_width(*perch_model_layer_config(model, index));
}

int64_t type_bytes(uint32_t type) { return type == PERCH_TYPE_F32 ? 4 : 2; }

DLDataType dlpack_type(uint32_t type) {
  if (type == PERCH_TYPE_BF16) return {kDLBfloat, 16, 1};
  return {kDLFloat, static_cast<uint8_t>(type == PERCH_TYPE_F16 ? 16 : 32), 1};
}

void add_input_options(CLI::App* app, InputOptions* options, const std::string& expect) {
  app->add_option("--tokens", options->tokens, "rows per layer (default 1)")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--seed", options->seed, "of the rows made here");
  CLI::Option* input = app->add_option("--input", options->file,
                                       "safetensors file with <layer>.input [, .ids, .weights]");
  if (expect.empty()) return;
  app->add_option_function<std::string>(
         "--expect",
         [options](const std::string& file) {
           options->file = file;
           options->expect = true;
         },
         expect)
      ->excludes(input);
}

std::optional<LayerInput> make_input(perch_model* model, uint32_t index,
                                     const InputOptions& options, const perch_tensors* tensors) {
  const perch_layer_config& config = *perch_model_layer_config(model, index);
  const std::string layer = config.name;
  LayerInput input;
  const bool there =
      make_rows(options, tensors, layer + ".input", input_width(config), config.in_dtype, &input);
  if (!there) return std::nullopt;
  if (tensors != nullptr) {
    if (options.expect) {
      input.expected = find_tensor(tensors, layer + ".output");
      if (input.expected == nullptr) wrong_tensor(layer + ".output", "the expected output");
    }
    if (config.kind == PERCH_KIND_MOE) read_routing(tensors, layer, config.moe->topk, &input);
  }
  if (config.kind == PERCH_KIND_MOE && input.ids.empty()) {
    make_routing(model, index, options.seed, &input);
  }
  return input;
}

std::optional<LayerInput> make_router_input(perch_model* model, uint32_t index,
                                            const InputOptions& options,
                                            const perch_tensors* tensors) {
  const perch_layer_config& config = *perch_model_layer_config(model, index);
  const std::string layer = config.name;
  LayerInput input;
  const int64_t width = router_width(model, index);
  const std::string name =
      layer + (width == input_width(config) ? std::string(".input") : ".router_input");
  const bool there = make_rows(options, tensors, name, width, config.in_dtype, &input);
  return there ? std::optional(std::move(input)) : std::nullopt;
}

}  // namespace perch_command
