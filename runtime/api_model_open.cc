// perch_model_open and perch_canonicalize: how a checkpoint becomes a model.
#include <fmt/format.h>

#include "api.h"
#include "api_tensors.h"
#include "base/checked.h"
#include "base/config_rules.h"
#include "base/extensions.h"
#include "base/tensor_rules.h"

namespace perch {
namespace {

Result<CanonicalOptions> canonical_options(const perch_runtime& runtime,
                                           const perch_model_opts& opts, const char* function) {
  PERCH_RETURN_IF_ERROR(check_extensions(opts.next, function));
  CanonicalOptions options;
  const auto or_one = [](uint32_t size) { return size == 0 ? 1U : size; };
  options.split = {opts.tp_rank, or_one(opts.tp_size), opts.ep_rank, or_one(opts.ep_size),
                   opts.placement == PERCH_PLACEMENT_ROUND_ROBIN};
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
                     opts.placement <= PERCH_PLACEMENT_ROUND_ROBIN &&
                     (opts.require & ~PERCH_CAPS_KNOWN) == 0 &&
                     (opts.prefer & ~PERCH_CAPS_KNOWN) == 0;
  if (!known) {
    return unsupported(
        fmt::format("{}: opts: got a flag, orientation, placement, promise or extension that "
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
  model->requant = opts.requant == nullptr ? "" : opts.requant;
  PERCH_ASSIGN_OR_RETURN(model->model, canonicalize_model(std::move(checkpoint), options));
  for (const CanonicalLayer& layer : model->model.layers) {
    const std::vector<RuleBreach> breaches = check_layer_config(layer.config.abi());
    PERCH_RETURN_IF_ERROR(in_folder(
        model->model.checkpoint,
        breach_status(breaches).with_context(fmt::format("layer \"{}\"", layer.config.name()))));
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
  const auto numel = checked_numel(raw.shape);
  const auto bits = numel ? checked_mul(*numel, raw_dtype_bits(raw.dtype)) : std::nullopt;
  if (!bits) {
    return invalid_argument(
        fmt::format("{}: {}: shape: got a size that overflows 64 bits, or a negative dimension",
                    kFunction, raw.name));
  }
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
  raw.bytes = ceil_div(*bits, 8);
  if (tensor.data == nullptr && raw.bytes > 0) {
    return invalid_argument(
        fmt::format("{}: {}: data: got NULL; want the tensor's memory", kFunction, raw.name));
  }
  raw.data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
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

}  // extern "C"
