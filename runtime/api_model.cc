// perch_model_* and perch_canonicalize.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api.h"
#include "api_tensors.h"
#include "base/checked.h"
#include "base/config_rules.h"
#include "base/extensions.h"
#include "base/recipe.h"
#include "base/tensor_rules.h"
#include "run/compare_output.h"
#include "run/exec_tensors.h"
#include "run/router_logits.h"
#include "select/report.h"

namespace perch {
namespace {

using nlohmann::ordered_json;

Result<CanonicalOptions> canonical_options(const perch_runtime& runtime,
                                           const perch_model_opts& opts, const char* function) {
  PERCH_RETURN_IF_ERROR(check_extensions(opts.next, function));
  CanonicalOptions options;
  const auto or_one = [](uint32_t size) { return size == 0 ? 1U : size; };
  options.split = {opts.tp_rank, or_one(opts.tp_size), opts.ep_rank, or_one(opts.ep_size)};
  options.orientation = opts.orientation;
  options.in_dtype = opts.in_dtype;
  options.out_dtype = opts.out_dtype;
  if (opts.device.device_type != 0) options.device = opts.device;
  if (opts.max_tokens != 0) options.max_tokens = opts.max_tokens;
  options.require = opts.require;
  options.prefer = opts.prefer;
  options.allow_unexpected = (opts.flags & PERCH_MODEL_ALLOW_UNEXPECTED) != 0;
  options.allow_nan = (opts.flags & PERCH_MODEL_ALLOW_NAN) != 0 || runtime.config.allow_nan.value;
  const auto dtype_ok = [](uint32_t type) {
    return type == 0 || (type >= PERCH_TYPE_F32 && type <= PERCH_TYPE_BF16);
  };
  constexpr uint32_t kFlags = PERCH_MODEL_ALLOW_UNEXPECTED | PERCH_MODEL_ALLOW_NAN;
  const bool known = (opts.flags & ~kFlags) == 0 && opts.orientation <= 2 &&
                     (opts.require & ~PERCH_CAPS_KNOWN) == 0 &&
                     (opts.prefer & ~PERCH_CAPS_KNOWN) == 0;
  if (!known) {
    return unsupported(
        fmt::format("{}: opts: got a flag, orientation, promise or extension that "
                    "this library does not know",
                    function));
  }
  if (opts.max_tokens < 0 || !dtype_ok(opts.in_dtype) || !dtype_ok(opts.out_dtype)) {
    return invalid_argument(
        fmt::format("{}: opts: got max_tokens {}, in_dtype {}, out_dtype {}; "
                    "want 0 or more, and F32, F16 or BF16",
                    function, opts.max_tokens, opts.in_dtype, opts.out_dtype));
  }
  return options;
}

// `open` gives the checkpoint. Layers of the model pass the same rules as a host's own.
template <typename Open>
Status open_model(perch_runtime* runtime, const perch_model_opts* given, const char* function,
                  perch_model** out, Open&& open) {
  if (runtime == nullptr || out == nullptr) {
    return null_argument(function, runtime == nullptr ? "runtime" : "model");
  }
  PERCH_ASSIGN_OR_RETURN(const perch_model_opts opts, read_options(given, function, "opts"));
  PERCH_ASSIGN_OR_RETURN(const CanonicalOptions options,
                         canonical_options(*runtime, opts, function));
  PERCH_ASSIGN_OR_RETURN(Checkpoint checkpoint, open());
  auto model = std::make_unique<perch_model>();
  model->runtime = runtime;
  model->backend = opts.backend == nullptr ? "" : opts.backend;
  PERCH_ASSIGN_OR_RETURN(model->model, canonicalize_model(std::move(checkpoint), options));
  for (const CanonicalLayer& layer : model->model.layers) {
    const std::vector<RuleBreach> breaches = check_layer_config(layer.config.abi());
    PERCH_RETURN_IF_ERROR(
        breach_status(breaches).with_context(fmt::format("layer \"{}\"", layer.config.name())));
  }
  for (const std::string& warning : model->model.warnings) {
    runtime->log.write(PERCH_LOG_INFO, "model", warning);
  }
  *out = model.release();
  return {};
}

// Where a borrowed tensor may lie: on the CPU, inside the address space, without foreign flags.
Status check_borrowed(const perch_named_tensor& given) {
  constexpr const char* kFunction = "perch_canonicalize";
  constexpr int32_t kPinnedHost = 3;
  int32_t device_type = 0;
  std::memcpy(&device_type, &given.tensor->device, sizeof(device_type));
  if (device_type != kDLCPU && device_type != kPinnedHost) {
    return invalid_argument(fmt::format("{}: {}: device: got DLPack type {}; want 1, the CPU",
                                        kFunction, given.name, device_type));
  }
  if ((given.flags & ~uint64_t{PERCH_TENSOR_READ_ONLY}) != 0) {
    return invalid_argument(fmt::format("{}: {}: flags: got {:#x}; want 0 or 1 (read-only)",
                                        kFunction, given.name, given.flags));
  }
  uint64_t begin = 0;
  if (__builtin_add_overflow(reinterpret_cast<uint64_t>(given.tensor->data),
                             given.tensor->byte_offset, &begin)) {
    return invalid_argument(fmt::format("{}: {}: byte_offset: got {}, beyond the address space",
                                        kFunction, given.name, given.tensor->byte_offset));
  }
  return {};
}

Result<RawTensor> borrow_raw(const perch_named_tensor& given) {
  constexpr const char* kFunction = "perch_canonicalize";
  if (given.name == nullptr || given.tensor == nullptr) {
    return null_argument(kFunction, given.name == nullptr ? "tensors[].name" : "tensors[].tensor");
  }
  RawTensor raw;
  raw.name = given.name;
  const DLTensor& tensor = *given.tensor;
  const auto dtype = raw_dtype_of(tensor.dtype);
  if (!dtype) {
    return invalid_argument(fmt::format("{}: {}: dtype: got {}; want a type that checkpoints have",
                                        kFunction, raw.name, print_dtype(tensor.dtype)));
  }
  raw.dtype = *dtype;
  PERCH_RETURN_IF_ERROR(check_borrowed(given));
  if (tensor.ndim < 0 || tensor.ndim > 8 || (tensor.ndim > 0 && tensor.shape == nullptr)) {
    return invalid_argument(fmt::format("{}: {}: ndim: got {}; want 0 to 8 with a shape", kFunction,
                                        raw.name, tensor.ndim));
  }
  raw.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  int64_t regular = 1;
  for (size_t i = raw.shape.size(); i-- > 0;) {
    if (tensor.strides != nullptr && raw.shape[i] > 1 && tensor.strides[i] != regular) {
      return invalid_argument(
          fmt::format("{}: {}: strides: want row-major; hint: pass a "
                      "contiguous copy",
                      kFunction, raw.name));
    }
    regular *= std::max<int64_t>(raw.shape[i], 1);
  }
  const auto numel = checked_numel(raw.shape);
  const auto bits = numel ? checked_mul(*numel, raw_dtype_bits(raw.dtype)) : std::nullopt;
  if (!bits) {
    return invalid_argument(
        fmt::format("{}: {}: shape: got a size that overflows 64 bits, or a negative dimension",
                    kFunction, raw.name));
  }
  raw.bytes = ceil_div(*bits, 8);
  if (tensor.data == nullptr && raw.bytes > 0) {
    return invalid_argument(
        fmt::format("{}: {}: data: got NULL; want the tensor's memory", kFunction, raw.name));
  }
  raw.data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  raw.file = -1;
  return raw;
}

Result<Checkpoint> borrow_checkpoint(const perch_named_tensor* tensors, uint32_t count,
                                     const char* config_json) {
  if (config_json == nullptr || (tensors == nullptr && count > 0)) {
    return null_argument("perch_canonicalize", config_json == nullptr ? "config_json" : "tensors");
  }
  Checkpoint checkpoint;
  checkpoint.config_json = config_json;
  for (uint32_t i = 0; i < count; ++i) {
    PERCH_ASSIGN_OR_RETURN(RawTensor raw, borrow_raw(tensors[i]));
    checkpoint.tensors.push_back(std::move(raw));
  }
  std::sort(checkpoint.tensors.begin(), checkpoint.tensors.end(),
            [](const RawTensor& a, const RawTensor& b) { return a.name < b.name; });
  for (size_t i = 1; i < checkpoint.tensors.size(); ++i) {
    if (checkpoint.tensors[i - 1].name == checkpoint.tensors[i].name) {
      return invalid_argument(fmt::format(
          "perch_canonicalize: {}: name: got it twice; want it once", checkpoint.tensors[i].name));
    }
  }
  return checkpoint;
}

// Keys only where there is such a neighbour.
void add_neighbours(const Neighbours& neighbours, ordered_json* document) {
  if (const auto& shared = neighbours.shared) {
    ordered_json& out = (*document)["shared_expert"];
    out = {{"module", shared->module}, {"width", nullptr}, {"gate", nullptr}};
    if (shared->width != 0) out["width"] = shared->width;
    if (!shared->gate.empty()) out["gate"] = shared->gate;
  }
  if (const auto& latent = neighbours.latent) {
    ordered_json& out = (*document)["latent"];
    out = {{"width", latent->width}, {"hidden", latent->hidden}};
    out["down"] = latent->down;
    out["up"] = latent->up;
  }
}

ordered_json layer_json(CanonicalLayer& layer, const Neighbours& neighbours) {
  const LayerConfig& config = layer.config;
  ordered_json document = {{"name", config.name()},
                           {"kind", config.is_moe() ? "moe" : "linear"},
                           {"recipe", recipe_text(config)},
                           {"format", print_weight(config.first())}};
  if (config.is_moe()) {
    const perch_moe_config& moe = config.moe();
    document["sizes"] = {{"experts", moe.num_experts},
                         {"experts_global", moe.num_experts_global},
                         {"topk", moe.topk},
                         {"hidden", moe.hidden},
                         {"intermediate", moe.intermediate}};
    document["activation"] = print_activation(moe);
    document["routing"] = layer.router ? layer.router->formula : layer.note;
    document["orientation"] = {{"value", orientation_name(layer.source.orientation.value)},
                               {"decided_by", layer.source.orientation.decided_by}};
    add_neighbours(neighbours, &document);
  } else {
    document["sizes"] = {{"n", config.rows(0)}, {"k", config.columns(0)}};
  }
  document["tensors"] = layer.source.tensors;
  document["bytes"] = layer.checkpoint_bytes;
  return document;
}

std::string inspect_json(CanonicalModel& model) {
  ordered_json document = {{"model_type", model.config.model_type},
                           {"transformers_version", model.config.transformers_version},
                           {"files", ordered_json::array()},
                           {"warnings", model.warnings},
                           {"layers", ordered_json::array()}};
  for (const auto& file : model.checkpoint.files) document["files"].push_back(file->path());
  for (size_t i = 0; i < model.layers.size(); ++i) {
    document["layers"].push_back(layer_json(model.layers[i], model.neighbours[i]));
  }
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Layer `index` of the model, or an error that says how many there are.
Result<CanonicalLayer*> find_layer(perch_model* model, uint32_t index, const char* function) {
  if (model == nullptr) return null_argument(function, "model");
  const size_t count = model->model.layers.size();
  if (index < count) return &model->model.layers[index];
  return invalid_argument(
      fmt::format("{}: index: got {}; want less than {}", function, index, count));
}

Status make_model_layer(perch_model* model, uint32_t index, const perch_stream* stream,
                        perch_layer** out) {
  constexpr const char* kFunction = "perch_model_layer";
  if (out == nullptr) return null_argument(kFunction, "layer");
  PERCH_ASSIGN_OR_RETURN(const CanonicalLayer* layer, find_layer(model, index, kFunction));
  PERCH_ASSIGN_OR_RETURN(
      Selection selection,
      choose(model->runtime, layer->config, model->model.config.model_type, model->backend));
  const perch_stream on = stream_or_cpu(stream, layer->config.abi().device);
  PERCH_ASSIGN_OR_RETURN(*out, make_layer(model->runtime, std::move(selection),
                                          [&](const Selection& s, const Candidate& c) {
                                            return prepare_layer(*layer, s, c, on);
                                          }));
  return {};
}

}  // namespace
}  // namespace perch

extern "C" {

perch_status perch_model_open(perch_runtime* runtime, const char* directory,
                              const perch_model_opts* opts, perch_model** model,
                              perch_error* error) {
  constexpr const char* kFunction = "perch_model_open";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    if (directory == nullptr) return perch::null_argument(kFunction, "directory");
    return perch::open_model(runtime, opts, kFunction, model,
                             [&] { return perch::open_checkpoint(directory); });
  });
}

perch_status perch_canonicalize(perch_runtime* runtime, const perch_named_tensor* tensors,
                                uint32_t num_tensors, const char* config_json,
                                const perch_model_opts* opts, perch_model** model,
                                perch_error* error) {
  constexpr const char* kFunction = "perch_canonicalize";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    return perch::open_model(runtime, opts, kFunction, model, [&] {
      return perch::borrow_checkpoint(tensors, num_tensors, config_json);
    });
  });
}

void perch_model_destroy(perch_model* model) { delete model; }

perch_status perch_model_inspect(perch_model* model, char* json, uint64_t capacity,
                                 uint64_t* needed, perch_error* error) {
  return perch::guarded_call(error, "perch_model_inspect", [&]() -> perch::Status {
    if (model == nullptr) return perch::null_argument("perch_model_inspect", "model");
    return perch::copy_json(perch::inspect_json(model->model), json, capacity, needed);
  });
}

uint32_t perch_model_num_layers(perch_model* model) {
  return model == nullptr ? 0 : static_cast<uint32_t>(model->model.layers.size());
}

const perch_layer_config* perch_model_layer_config(perch_model* model, uint32_t index) {
  if (index >= perch_model_num_layers(model)) return nullptr;
  return &model->model.layers[index].config.abi();
}

const int32_t* perch_model_expert_map(perch_model* model, uint32_t index) {
  if (index >= perch_model_num_layers(model)) return nullptr;
  const auto& map = model->model.layers[index].expert_map;
  return map.empty() ? nullptr : map.data();
}

perch_status perch_model_explain(perch_model* model, uint32_t index, char* json, uint64_t capacity,
                                 uint64_t* needed, perch_error* error) {
  constexpr const char* kFunction = "perch_model_explain";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    PERCH_ASSIGN_OR_RETURN(const perch::CanonicalLayer* layer,
                           perch::find_layer(model, index, kFunction));
    PERCH_ASSIGN_OR_RETURN(
        const perch::Selection selection,
        perch::select_in(model->runtime,
                         {&layer->config, model->model.config.model_type, model->backend}));
    return perch::copy_json(perch::selection_json(selection).dump(
                                -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
                            json, capacity, needed);
  });
}

perch_status perch_model_layer(perch_model* model, uint32_t index, const perch_stream* stream,
                               perch_layer** layer, perch_error* error) {
  return perch::guarded_call(error, "perch_model_layer",
                             [&] { return perch::make_model_layer(model, index, stream, layer); });
}

perch_status perch_model_tensors(perch_model* model, uint32_t index, int32_t expert,
                                 perch_tensors** tensors, perch_error* error) {
  constexpr const char* kFunction = "perch_model_tensors";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    if (tensors == nullptr) return perch::null_argument(kFunction, "tensors");
    PERCH_ASSIGN_OR_RETURN(const perch::CanonicalLayer* layer,
                           perch::find_layer(model, index, kFunction));
    auto owned = std::make_unique<perch_tensors>();
    PERCH_ASSIGN_OR_RETURN(owned->canonical, perch::read_expert(*layer, expert));
    perch::add_canonical_tensors(owned->canonical, &owned->list);
    *tensors = owned.release();
    return {};
  });
}

perch_status perch_model_compare(perch_model* model, uint32_t index, perch_layer* layer,
                                 const perch_exec_args* args, const DLTensor* expected,
                                 perch_comparison* comparison, perch_error* error) {
  constexpr const char* kFunction = "perch_model_compare";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    if (layer == nullptr || args == nullptr || expected == nullptr || comparison == nullptr) {
      return perch::null_argument(kFunction, "layer, args, expected or comparison");
    }
    if (comparison->struct_size < sizeof(perch_comparison)) {
      return {PERCH_E_ABI_MISMATCH,
              fmt::format("{}: comparison.struct_size: got {}; want {}", kFunction,
                          comparison->struct_size, sizeof(perch_comparison))};
    }
    PERCH_ASSIGN_OR_RETURN(const perch::CanonicalLayer* canonical,
                           perch::find_layer(model, index, kFunction));
    const perch::LayerState& state = layer->state;
    if (state.config().name() != canonical->config.name()) {
      return perch::invalid_argument(fmt::format("{}: layer: got '{}'; want '{}', layer {}",
                                                 kFunction, state.config().name(),
                                                 canonical->config.name(), index));
    }
    const perch::CallRules rules{state.config(), state.candidate.caps, 0};
    perch::ExecTensors tensors;
    PERCH_RETURN_IF_ERROR(perch::check_args_header(*args));
    PERCH_RETURN_IF_ERROR(perch::check_exec_tensors(rules, *args, &tensors));
    PERCH_RETURN_IF_ERROR(perch::check_routing_values(rules, tensors));
    return perch::compare_output(*canonical, state.config(), state.candidate.flags, tensors.args,
                                 *expected, comparison);
  });
}

const perch_route_config* perch_model_route_config(perch_model* model, uint32_t index) {
  if (index >= perch_model_num_layers(model)) return nullptr;
  const auto& router = model->model.layers[index].router;
  return router ? &router->config : nullptr;
}

perch_status perch_model_router_logits(perch_model* model, uint32_t index, const DLTensor* x,
                                       const DLTensor* logits, perch_error* error) {
  constexpr const char* kFunction = "perch_model_router_logits";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    PERCH_ASSIGN_OR_RETURN(const perch::CanonicalLayer* layer,
                           perch::find_layer(model, index, kFunction));
    if (!layer->router) {
      return perch::not_found(fmt::format("{}: layer '{}' has no router: {}", kFunction,
                                          layer->config.name(), layer->note));
    }
    return perch::router_logits(*layer->router, x, logits);
  });
}

}  // extern "C"
