// perch_select and perch_layer_*.
#include <fmt/format.h>

#include "api.h"
#include "base/config_rules.h"
#include "base/recipe.h"
#include "select/report.h"

namespace perch {
namespace {

// An incoming config, checked and copied.
Result<LayerConfig> read_config(const perch_layer_config* config, const char* function) {
  if (config == nullptr) return null_argument(function, "config");
  const std::vector<RuleBreach> breaches = check_layer_config(*config);
  PERCH_RETURN_IF_ERROR(breach_status(breaches).with_context(std::string(function) + ": config"));
  return LayerConfig(*config);
}

std::span<const perch_named_tensor> span_of(const perch_named_tensor* tensors, uint32_t count) {
  return {tensors, tensors == nullptr ? 0 : count};
}

// A layer whose tensors the host hands over: they must be in the format that the backend gets.
Result<Selection> choose_for_host(perch_runtime* runtime, const LayerConfig& config) {
  PERCH_ASSIGN_OR_RETURN(Selection selection, choose(runtime, {&config, "", "", ""}));
  if (selection.requant.empty()) return selection;
  return unsupported(fmt::format(
      "layer '{}': got requant \"{}\" by {}; want it for a model's layers only, or the tensors "
      "converted by the host",
      config.name(), selection.requant, selection.rule));
}

Result<Prepared> prepare_stacked(const Selection& selection, const Candidate& candidate,
                                 std::span<const perch_named_tensor> tensors,
                                 const perch_stream& stream) {
  const LayerConfig& config = selection.config;
  PERCH_ASSIGN_OR_RETURN(const std::unique_ptr<Preparation> preparation,
                         Preparation::begin(candidate, config, stream));
  const int64_t experts = config.is_moe() ? config.moe().num_experts : 0;
  for (int64_t e = config.is_moe() ? 0 : -1; e < experts; ++e) {
    ExpertTensors ready;
    PERCH_RETURN_IF_ERROR(
        check_expert_tensors("perch_layer_create", config, experts, e, tensors, &ready));
    PERCH_RETURN_IF_ERROR(preparation->put(static_cast<int32_t>(e), ready));
  }
  return preparation->end();
}

Status create_layer(perch_runtime* runtime, const perch_layer_config* given,
                    std::span<const perch_named_tensor> tensors, const perch_stream* stream,
                    perch_layer** out) {
  constexpr const char* kFunction = "perch_layer_create";
  if (runtime == nullptr || out == nullptr) {
    return null_argument(kFunction, runtime == nullptr ? "runtime" : "layer");
  }
  PERCH_ASSIGN_OR_RETURN(const LayerConfig config, read_config(given, kFunction));
  PERCH_ASSIGN_OR_RETURN(Selection selection, choose_for_host(runtime, config));
  const perch_stream on = stream_or_cpu(stream, config.abi().device);
  PERCH_ASSIGN_OR_RETURN(
      *out, make_layer(runtime, std::move(selection), [&](const Selection& s, const Candidate& c) {
        return prepare_stacked(s, c, tensors, on);
      }));
  return {};
}

Status begin_layer(perch_runtime* runtime, const perch_layer_config* given,
                   const perch_stream* stream, perch_layer_builder** out) {
  constexpr const char* kFunction = "perch_layer_begin";
  if (runtime == nullptr || out == nullptr) {
    return null_argument(kFunction, runtime == nullptr ? "runtime" : "builder");
  }
  PERCH_ASSIGN_OR_RETURN(const LayerConfig config, read_config(given, kFunction));
  auto builder = std::make_unique<perch_layer_builder>();
  builder->runtime = runtime;
  PERCH_ASSIGN_OR_RETURN(builder->selection, choose_for_host(runtime, config));
  PERCH_ASSIGN_OR_RETURN(builder->preparation,
                         Preparation::begin(*builder->selection.chosen(), builder->selection.config,
                                            stream_or_cpu(stream, config.abi().device)));
  *out = builder.release();
  return {};
}

Status put_expert(perch_layer_builder* builder, int32_t expert,
                  std::span<const perch_named_tensor> tensors) {
  if (builder == nullptr) return null_argument("perch_layer_put", "builder");
  ExpertTensors ready;
  PERCH_RETURN_IF_ERROR(check_expert_tensors("perch_layer_put", builder->selection.config, 0,
                                             expert, tensors, &ready));
  return builder->preparation->put(expert, ready);
}

Status end_layer(perch_layer_builder* builder, perch_layer** out) {
  if (builder == nullptr || out == nullptr) {
    return null_argument("perch_layer_end", builder == nullptr ? "builder" : "layer");
  }
  PERCH_ASSIGN_OR_RETURN(Prepared prepared, builder->preparation->end());
  const Candidate chosen = *builder->selection.chosen();
  *out =
      new perch_layer(builder->runtime, std::move(builder->selection), chosen, std::move(prepared));
  delete builder;
  return {};
}

Status update_layer(perch_layer* layer, int32_t expert,
                    std::span<const perch_named_tensor> tensors) {
  if (layer == nullptr) return null_argument("perch_layer_update", "layer");
  const LayerConfig& config = layer->state.config();
  const int64_t experts = config.is_moe() ? config.moe().num_experts : 0;
  if (config.is_moe() ? (expert < 0 || expert >= experts) : expert != -1) {
    return invalid_argument(fmt::format(
        "perch_layer_update: expert: got {}; want {}", expert,
        config.is_moe() ? fmt::format("0 to {}", experts - 1) : std::string("-1 (linear)")));
  }
  ExpertTensors ready;
  PERCH_RETURN_IF_ERROR(
      check_expert_tensors("perch_layer_update", config, 0, expert, tensors, &ready));
  return update_expert(layer->state.prepared, layer->state.candidate, expert, ready);
}

// What a backend without `describe` holds: its matrices, unpadded.
void describe_logical(const LayerConfig& config, perch_layout* layout) {
  const char* names[2] = {config.is_moe() ? "w13" : "w", "w2"};
  layout->num_matrices = config.is_moe() ? 2 : 1;
  for (uint32_t m = 0; m < layout->num_matrices; ++m) {
    perch_matrix_layout& matrix = layout->matrices[m];
    std::memset(matrix.name, 0, sizeof(matrix.name));
    std::memcpy(matrix.name, names[m], std::strlen(names[m]));
    matrix.n = matrix.n_padded = config.rows(static_cast<int>(m));
    matrix.k = matrix.k_padded = config.columns(static_cast<int>(m));
  }
  layout->num_buffers = 0;
  layout->num_derived = 0;
}

Status describe(const LayerState& state, const perch_call_shape& shape, perch_layout* layout) {
  if (layout->struct_size < sizeof(perch_layout)) {
    return {PERCH_E_ABI_MISMATCH,
            fmt::format("perch_layer_get_info: info.layout.struct_size: got {}; want {}",
                        layout->struct_size, sizeof(perch_layout))};
  }
  if ((layout->buffers_capacity > 0 && layout->buffers == nullptr) ||
      (layout->derived_capacity > 0 && layout->derived == nullptr)) {
    return invalid_argument(
        "perch_layer_get_info: info.layout: got a capacity with NULL; want the "
        "array it counts, or 0");
  }
  const Candidate& candidate = state.candidate;
  if (!PERCH_HAS_FIELD(candidate.api, perch_backend_api, describe) ||
      candidate.api->describe == nullptr) {
    describe_logical(state.config(), layout);
    return {};
  }
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status = candidate.api->describe(candidate.instance, &state.config().abi(),
                                                      candidate.variant, &shape, layout, &error);
  return backend_status(candidate.backend, "describe", status, error);
}

Status fill_info(perch_layer* layer, const perch_call_shape* given, perch_layer_info* info) {
  constexpr const char* kFunction = "perch_layer_get_info";
  if (layer == nullptr || info == nullptr) {
    return null_argument(kFunction, layer == nullptr ? "layer" : "info");
  }
  if (info->struct_size < sizeof(perch_layer_info)) {
    return {PERCH_E_ABI_MISMATCH, fmt::format("{}: info.struct_size: got {}; want {}", kFunction,
                                              info->struct_size, sizeof(perch_layer_info))};
  }
  const LayerState& state = layer->state;
  const LayerConfig& config = state.config();
  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = config.is_moe() ? config.moe().form : PERCH_FORM_STANDARD;
  shape.num_tokens = config.abi().max_tokens;
  if (given != nullptr) shape = *given;
  PERCH_RETURN_IF_ERROR(check_call_shape(kFunction, config, shape));
  PERCH_RETURN_IF_ERROR(describe(state, shape, &info->layout));
  info->kind = config.kind();
  info->name = config.name().c_str();
  info->backend = state.candidate.backend.c_str();
  info->kernel = state.candidate.kernel.c_str();
  info->recipe = layer->recipe.c_str();
  info->variant = state.candidate.variant;
  info->fallback = state.selection.fallback ? 1 : 0;
  info->device = config.abi().device;
  info->caps = state.candidate.caps;
  info->support_flags = state.candidate.flags;
  info->num_options = config.abi().num_options;
  info->options = config.abi().options;
  info->packed_bytes = state.candidate.packed_bytes;
  const int64_t moe_size[5] = {config.is_moe() ? config.moe().num_experts : 1, shape.num_tokens,
                               config.is_moe() ? config.moe().intermediate : config.rows(0),
                               config.columns(0), config.is_moe() ? config.moe().topk : 1};
  std::memcpy(info->problem_size, moe_size, sizeof(moe_size));
  return {};
}

Status layer_workspace(perch_layer* layer, const perch_call_shape* shape,
                       perch_workspace_req* request) {
  constexpr const char* kFunction = "perch_layer_workspace";
  if (layer == nullptr || shape == nullptr || request == nullptr) {
    return null_argument(kFunction, layer == nullptr   ? "layer"
                                    : shape == nullptr ? "shape"
                                                       : "request");
  }
  if (request->struct_size < sizeof(perch_workspace_req)) {
    return {PERCH_E_ABI_MISMATCH, fmt::format("{}: request.struct_size: got {}; want {}", kFunction,
                                              request->struct_size, sizeof(perch_workspace_req))};
  }
  PERCH_RETURN_IF_ERROR(check_call_shape(kFunction, layer->state.config(), *shape));
  const uint32_t size = request->struct_size;
  PERCH_ASSIGN_OR_RETURN(*request, query_workspace(layer->state, *shape));
  request->struct_size = size;
  return {};
}

}  // namespace
}  // namespace perch

extern "C" {

perch_status perch_select(perch_runtime* runtime, const perch_layer_config* config, char* json,
                          uint64_t capacity, uint64_t* needed, perch_error* error) {
  return perch::guarded_call(error, "perch_select", [&]() -> perch::Status {
    if (runtime == nullptr) return perch::null_argument("perch_select", "runtime");
    PERCH_ASSIGN_OR_RETURN(const perch::LayerConfig checked,
                           perch::read_config(config, "perch_select"));
    PERCH_ASSIGN_OR_RETURN(const perch::Selection selection,
                           perch::select_in(runtime, {&checked, "", "", ""}));
    return perch::copy_json(perch::selection_json(selection).dump(
                                -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
                            json, capacity, needed);
  });
}

perch_status perch_layer_create(perch_runtime* runtime, const perch_layer_config* config,
                                const perch_named_tensor* tensors, uint32_t num_tensors,
                                const perch_stream* stream, perch_layer** layer,
                                perch_error* error) {
  return perch::guarded_call(error, "perch_layer_create", [&] {
    return perch::create_layer(runtime, config, perch::span_of(tensors, num_tensors), stream,
                               layer);
  });
}

perch_status perch_layer_begin(perch_runtime* runtime, const perch_layer_config* config,
                               const perch_stream* stream, perch_layer_builder** builder,
                               perch_error* error) {
  return perch::guarded_call(error, "perch_layer_begin",
                             [&] { return perch::begin_layer(runtime, config, stream, builder); });
}

perch_status perch_layer_put(perch_layer_builder* builder, int32_t expert,
                             const perch_named_tensor* tensors, uint32_t num_tensors,
                             perch_error* error) {
  return perch::guarded_call(error, "perch_layer_put", [&] {
    return perch::put_expert(builder, expert, perch::span_of(tensors, num_tensors));
  });
}

perch_status perch_layer_end(perch_layer_builder* builder, perch_layer** layer,
                             perch_error* error) {
  return perch::guarded_call(error, "perch_layer_end",
                             [&] { return perch::end_layer(builder, layer); });
}

void perch_layer_abort(perch_layer_builder* builder) { delete builder; }

perch_status perch_layer_update(perch_layer* layer, int32_t expert,
                                const perch_named_tensor* tensors, uint32_t num_tensors,
                                perch_error* error) {
  return perch::guarded_call(error, "perch_layer_update", [&] {
    return perch::update_layer(layer, expert, perch::span_of(tensors, num_tensors));
  });
}

void perch_layer_destroy(perch_layer* layer) { delete layer; }

perch_status perch_layer_get_info(perch_layer* layer, const perch_call_shape* shape,
                                  perch_layer_info* info, perch_error* error) {
  return perch::guarded_call(error, "perch_layer_get_info",
                             [&] { return perch::fill_info(layer, shape, info); });
}

perch_status perch_layer_explain(perch_layer* layer, char* json, uint64_t capacity,
                                 uint64_t* needed, perch_error* error) {
  return perch::guarded_call(error, "perch_layer_explain", [&]() -> perch::Status {
    if (layer == nullptr) return perch::null_argument("perch_layer_explain", "layer");
    nlohmann::ordered_json document = perch::selection_json(layer->state.selection);
    if (layer->load) {
      document["load"] = {{"bytes_read", layer->load->bytes_read},
                          {"seconds", layer->load->seconds}};
    }
    return perch::copy_json(
        document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), json,
        capacity, needed);
  });
}

perch_status perch_layer_workspace(perch_layer* layer, const perch_call_shape* shape,
                                   perch_workspace_req* request, perch_error* error) {
  return perch::guarded_call(error, "perch_layer_workspace",
                             [&] { return perch::layer_workspace(layer, shape, request); });
}

perch_status perch_layer_execute(perch_layer* layer, const perch_exec_args* args,
                                 perch_error* error) {
  return perch::guarded_call(error, "perch_layer_execute", [&]() -> perch::Status {
    if (layer == nullptr || args == nullptr) {
      return perch::null_argument("perch_layer_execute", layer == nullptr ? "layer" : "args");
    }
    return perch::execute_layer(layer->state, *args);
  });
}

}  // extern "C"
