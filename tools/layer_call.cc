#include "layer_call.h"

#include <cstring>

namespace perch_command {

LayerCall::LayerCall(const perch_layer_config& config, const LayerInput& given,
                     const int32_t* expert_map, int64_t first_row, int64_t rows)
    : x(const_cast<std::byte*>(given.x.data()) +
            first_row * input_width(config) * type_bytes(config.in_dtype),
        dlpack_type(config.in_dtype), {rows, input_width(config)}),
      y(dlpack_type(config.out_dtype), {rows, output_width(config)}) {
  std::memset(y.data<std::byte>(), 0xFF, static_cast<size_t>(y_bytes(config, rows)));
  args.struct_size = sizeof(args);
  args.x = x.get();
  args.y = y.get();
  if (config.kind != PERCH_KIND_MOE) return;
  const int64_t topk = config.moe->topk;
  ids = std::make_unique<perch_host::Tensor>(
      const_cast<int32_t*>(given.ids.data()) + first_row * topk, DLDataType{kDLInt, 32, 1},
      std::vector<int64_t>{rows, topk});
  weights = std::make_unique<perch_host::Tensor>(
      const_cast<float*>(given.weights.data()) + first_row * topk, DLDataType{kDLFloat, 32, 1},
      std::vector<int64_t>{rows, topk});
  args.topk_ids = ids->get();
  args.topk_weights = weights->get();
  if (expert_map == nullptr) return;
  map = std::make_unique<perch_host::Tensor>(
      const_cast<int32_t*>(expert_map), DLDataType{kDLInt, 32, 1},
      std::vector<int64_t>{static_cast<int64_t>(config.moe->num_experts_global)});
  args.expert_map = map->get();
}

int64_t LayerCall::y_bytes(const perch_layer_config& config, int64_t rows) {
  return rows * output_width(config) * type_bytes(config.out_dtype);
}

std::unique_ptr<LayerCall> run_reference(const perch_host::Runtime& runtime, ModelOptions options,
                                         const perch_layer_config& config, uint32_t index,
                                         const LayerInput& input) {
  options.backend = "reference";
  options.require.clear();
  options.out_dtype = "f32";
  if (options.dtype.empty()) {
    const uint32_t type = config.in_dtype;
    options.dtype = type == PERCH_TYPE_F32 ? "f32" : type == PERCH_TYPE_F16 ? "f16" : "bf16";
  }
  const perch_host::Model model = open_model(runtime, options);
  const perch_host::Layer layer = perch_host::make_layer(model, index);
  auto call =
      std::make_unique<LayerCall>(*perch_model_layer_config(model.get(), index), input,
                                  perch_model_expert_map(model.get(), index), 0, input.tokens);
  perch_host::Executor(layer.get()).run(call->args, input.tokens);
  // The map is the model's, which goes now; y is what is wanted.
  call->map.reset();
  call->args.expert_map = nullptr;
  return call;
}

perch_layer_info layer_info(perch_layer* layer) {
  perch_layer_info info{};
  info.struct_size = sizeof(info);
  info.layout.struct_size = sizeof(perch_layout);
  perch_host::check(perch_layer_get_info, layer, static_cast<const perch_call_shape*>(nullptr),
                    &info);
  return info;
}

perch_comparison compare_call(perch_model* model, uint32_t index, perch_layer* layer,
                              const LayerCall& call, const DLTensor* expected) {
  perch_comparison comparison{};
  comparison.struct_size = sizeof(comparison);
  perch_host::check(perch_model_compare, model, index, layer, &call.args, expected, &comparison);
  return comparison;
}

}  // namespace perch_command
