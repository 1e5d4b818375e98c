// The input of one layer run: rows, routing, and what the output should be.
//
// From a file (--input, --expect: <layer>.input, .ids, .weights, .output) or made from a seed, with
// the model's own router where it has one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"

namespace perch_command {

struct LayerInput {
  int64_t tokens = 0;
  std::vector<std::byte> x;  // [tokens, K] of the layer's in_dtype
  std::vector<int32_t> ids;  // MoE: [tokens, topk]
  std::vector<float> weights;
  const DLTensor* expected = nullptr;  // of the file, or null
};

struct InputOptions {
  std::string file;  // --input or --expect
  bool expect = false;
  int64_t tokens = 1;  // where there is no file
  uint64_t seed = 1;
};

// --tokens, --seed, --input and, where `expect` says what it is good for, --expect.
void add_input_options(CLI::App* app, InputOptions* options, const std::string& expect = "");

// `tensors` is the opened file, or null. nullopt: the file has nothing for this layer.
std::optional<LayerInput> make_input(perch_model* model, uint32_t index,
                                     const InputOptions& options, const perch_tensors* tensors);

// What the layer's router sees, x alone: of another width than the experts' input where they work
// in a latent space, and then <layer>.router_input of the file.
std::optional<LayerInput> make_router_input(perch_model* model, uint32_t index,
                                            const InputOptions& options,
                                            const perch_tensors* tensors);

int64_t router_width(perch_model* model, uint32_t index);
int64_t input_width(const perch_layer_config& config);
int64_t output_width(const perch_layer_config& config);
int64_t type_bytes(uint32_t type);
DLDataType dlpack_type(uint32_t type);

}  // namespace perch_command
