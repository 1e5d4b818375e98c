// One call of a model's layer: everything in it that must outlive it, and the same rows on the
// reference backend.
#pragma once

#include <memory>

#include "layer_input.h"

namespace perch_command {

struct LayerCall {
  // `rows` rows of `given`, from `first_row` on. expert_map: of the model, or null.
  LayerCall(const perch_layer_config& config, const LayerInput& given, const int32_t* expert_map,
            int64_t first_row, int64_t rows);

  static int64_t y_bytes(const perch_layer_config& config, int64_t rows);

  perch_host::Tensor x, y;
  std::unique_ptr<perch_host::Tensor> ids, weights, map;
  perch_exec_args args{};  // all but the workspace
};

// The rows of `input` through layer `index` on the reference backend, with the output in f32.
// `options` opened the model whose layer has `config`.
std::unique_ptr<LayerCall> run_reference(const perch_host::Runtime& runtime, ModelOptions options,
                                         const perch_layer_config& config, uint32_t index,
                                         const LayerInput& input);

perch_layer_info layer_info(perch_layer* layer);

// How far the call's y is from `expected`.
perch_comparison compare_call(perch_model* model, uint32_t index, perch_layer* layer,
                              const LayerCall& call, const DLTensor* expected);

}  // namespace perch_command
