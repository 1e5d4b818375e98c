#include "run/execute.h"

#include <fmt/format.h>

#include <cstring>

#include "base/extensions.h"
#include "run/exec_tensors.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace perch {
namespace {

constexpr const char* kFunction = "perch_layer_execute";

// The default floating-point state for the call, the caller's afterwards: a host's flush-to-zero or
// rounding mode must not change results, nor make them depend on which thread took a task.
class DefaultFloatState {
 public:
#if defined(__SSE__)
  DefaultFloatState() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatState() { _mm_setcsr(saved_); }
#else
  DefaultFloatState() = default;
#endif
  DefaultFloatState(const DefaultFloatState&) = delete;
  DefaultFloatState& operator=(const DefaultFloatState&) = delete;

 private:
#if defined(__SSE__)
  unsigned saved_;
#endif
};

Status check_workspace(const LayerState& layer, const perch_exec_args& args, ExecTensors* tensors) {
  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = layer.config().is_moe() ? layer.config().moe().form : PERCH_FORM_STANDARD;
  shape.num_tokens = tensors->num_tokens;
  PERCH_ASSIGN_OR_RETURN(const perch_workspace_req request, query_workspace(layer, shape));
  if (args.workspace_bytes < request.bytes) {
    return {PERCH_E_BUFFER_TOO_SMALL,
            fmt::format("{}: workspace: size: got {} bytes; want {} for {} tokens (layer '{}')",
                        kFunction, args.workspace_bytes, request.bytes, tensors->num_tokens,
                        layer.config().name())};
  }
  if (request.bytes == 0) return {};
  const auto begin = reinterpret_cast<uint64_t>(args.workspace);
  if (begin == 0) {
    return invalid_argument(
        fmt::format("{}: workspace: got NULL; want {} bytes", kFunction, request.bytes));
  }
  if (request.align > 1 && begin % request.align != 0) {
    return invalid_argument(
        fmt::format("{}: workspace: got address % {} = {}; want {}-byte "
                    "alignment",
                    kFunction, request.align, begin % request.align, request.align));
  }
  tensors->workspace_begin = begin;
  tensors->workspace_end = begin + args.workspace_bytes;
  return {};
}

// Everything 0xFF: a row that is not written, or scratch that is read, shows as NaN. For BATCHED
// and GROUPED rows beyond the counts stay the caller's.
void poison(const LayerState& layer, const ExecTensors& tensors) {
  if (tensors.workspace_begin != 0) {
    std::memset(tensors.args.workspace, 0xFF, static_cast<size_t>(tensors.args.workspace_bytes));
  }
  const bool whole = !layer.config().is_moe() || layer.config().moe().form == PERCH_FORM_STANDARD;
  if (!whole || overlaps(tensors.y, tensors.x)) return;
  const int64_t width = tensors.y.shape[1] * (tensors.y.tensor.dtype.bits / 8);
  const int64_t stride = tensors.y.strides[0] * (tensors.y.tensor.dtype.bits / 8);
  for (int64_t row = 0; row < tensors.y.shape[0]; ++row) {
    std::memset(static_cast<std::byte*>(tensors.y.tensor.data) + row * stride, 0xFF,
                static_cast<size_t>(width));
  }
}

}  // namespace

Status check_args_header(const perch_exec_args& args) {
  if (args.struct_size < sizeof(perch_exec_args) || args.struct_size > 65536) {
    return {PERCH_E_ABI_MISMATCH,
            fmt::format("{}: args: struct_size: got {}; want {} to 65536", kFunction,
                        args.struct_size, sizeof(perch_exec_args))};
  }
  if (args.flags != 0) {
    return unsupported(fmt::format("{}: args: flags: got {}; want 0", kFunction, args.flags));
  }
  return check_extensions(args.next, "perch_layer_execute: args");
}

Status check_call_shape(const char* function, const LayerConfig& config,
                        const perch_call_shape& shape) {
  const uint32_t form = config.is_moe() ? config.moe().form : PERCH_FORM_STANDARD;
  if (shape.struct_size < sizeof(perch_call_shape) || shape.struct_size > 65536) {
    return {PERCH_E_ABI_MISMATCH,
            fmt::format("{}: shape: struct_size: got {}; want {} to 65536", function,
                        shape.struct_size, sizeof(perch_call_shape))};
  }
  if (shape.form != form) {
    return invalid_argument(
        fmt::format("{}: shape.form: got {}; want {}, the config's", function, shape.form, form));
  }
  if (shape.num_tokens < 0 || shape.num_tokens > config.abi().max_tokens) {
    return invalid_argument(
        fmt::format("{}: num_tokens: got {}; want 0 to {} (max_tokens of layer "
                    "'{}')",
                    function, shape.num_tokens, config.abi().max_tokens, config.name()));
  }
  return {};
}

Result<perch_workspace_req> query_workspace(const LayerState& layer,
                                            const perch_call_shape& shape) {
  perch_workspace_req request{};
  request.struct_size = sizeof(request);
  perch_error error;
  error.struct_size = sizeof(error);
  error.message[0] = '\0';
  const perch_status status =
      layer.prepared.api().workspace(layer.prepared.handle(), &shape, &request, &error);
  if (status != PERCH_OK) {
    return backend_status(layer.candidate.backend, "workspace", status, error);
  }
  return request;
}

Status execute_layer(LayerState& layer, const perch_exec_args& args) {
  PERCH_RETURN_IF_ERROR(check_args_header(args));
  const CallRules rules{layer.config(), layer.candidate.caps, layer.candidate.align};
  ExecTensors tensors;
  PERCH_RETURN_IF_ERROR(check_exec_tensors(rules, args, &tensors));
  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = layer.config().is_moe() ? layer.config().moe().form : PERCH_FORM_STANDARD;
  shape.num_tokens = tensors.num_tokens;
  PERCH_RETURN_IF_ERROR(check_call_shape(kFunction, layer.config(), shape));
  PERCH_RETURN_IF_ERROR(check_routing_values(rules, tensors));
  if (tensors.num_tokens == 0) return {};
  PERCH_RETURN_IF_ERROR(check_workspace(layer, args, &tensors));
  PERCH_RETURN_IF_ERROR(check_overlap(rules, tensors));
  if (layer.validate) poison(layer, tensors);

  const bool concurrent = (rules.caps & PERCH_CAP_CONCURRENT_EXECUTE) != 0;
  std::unique_lock<std::mutex> lock(layer.serial, std::defer_lock);
  if (!concurrent) lock.lock();
  perch_error error;
  error.struct_size = sizeof(error);
  error.message[0] = '\0';
  perch_status status = PERCH_OK;
  {
    const DefaultFloatState state;
    status = layer.prepared.api().execute(layer.prepared.handle(), &tensors.args, &error);
  }
  if (status == PERCH_OK) return {};
  return backend_status(layer.candidate.backend, "execute", status, error)
      .with_context(fmt::format("layer '{}'", layer.config().name()));
}

}  // namespace perch
