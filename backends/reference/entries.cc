// The border: from C to the C++ behind it, and back.
#include "entries.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <perch/guard.hpp>
#include <string>

#include "execute.h"
#include "layer_spec.h"
#include "prepare.h"
#include "status.h"
#include "support.h"

namespace reference {
namespace {

// fn returns a Status.
template <typename Fn>
perch_status entry(perch_error* error, Fn&& fn) noexcept {
  return perch_guard::guarded(error, [&]() -> perch_status {
    const Status status = fn();
    if (status.ok()) return PERCH_OK;
    return perch_guard::fail(error, status.code, status.text.c_str());
  });
}

Status check_variant(uint32_t variant) {
  if (variant == 0) return {};
  return invalid(text("variant %u: there is only variant 0", variant));
}

// OK, or UNSUPPORTED with the first reason and how many there are.
Status require_support(const perch_backend& backend, const perch_layer_config& config) {
  perch_reason reason{};
  perch_support support{};
  support.struct_size = sizeof(support);
  support.reasons = &reason;
  support.reasons_capacity = 1;
  answer(*backend.host, config, &support);
  if (support.verdict == PERCH_VERDICT_YES) return {};
  return {PERCH_E_UNSUPPORTED,
          text("%s: %s (reason 1 of %u)", reason.field, reason.text, support.num_reasons)};
}

void add_buffer(perch_layout* layout, const char* name, int64_t rows, int64_t width) {
  const uint32_t index = layout->num_buffers++;
  if (index >= layout->buffers_capacity) return;
  perch_buffer_layout& buffer = layout->buffers[index];
  buffer = {};
  std::snprintf(buffer.name, sizeof(buffer.name), "%s", name);
  buffer.dtype = PERCH_TYPE_F32;
  buffer.alias_group = index + 1;  // each its own memory
  buffer.shape[0] = rows;
  buffer.shape[1] = width;
}

void describe_layer(const LayerSpec& spec, int64_t rows, perch_layout* layout) {
  layout->num_matrices = static_cast<uint32_t>(spec.num_matrices);
  layout->num_buffers = 0;
  layout->num_derived = 0;
  for (int i = 0; i < spec.num_matrices; ++i) {
    const MatrixSpec& matrix = spec.matrices[i];
    perch_matrix_layout& out = layout->matrices[i];
    out = {};
    std::snprintf(out.name, sizeof(out.name), "%s", matrix.name);
    out.n = out.n_padded = matrix.n;
    out.k = out.k_padded = matrix.k;
  }
  if (!spec.is_moe()) return;
  add_buffer(layout, "gate_up_output", rows, spec.matrices[0].n);
  add_buffer(layout, "activation_output", rows, spec.moe.intermediate);
  add_buffer(layout, "down_output", rows, spec.moe.hidden);
}

}  // namespace

perch_status PERCH_CALL create(const perch_host_api* host, const perch_kv* options,
                               uint32_t num_options, perch_backend** backend, perch_error* error) {
  return entry(error, [&]() -> Status {
    if (num_options > 0) {
      return invalid(text("unknown option '%s': the reference has none", options[0].key));
    }
    *backend = new perch_backend{host, {}};
    return {};
  });
}

void PERCH_CALL destroy(perch_backend* backend) { delete backend; }

uint32_t PERCH_CALL device_count(perch_backend*) { return 1; }

perch_status PERCH_CALL device_get(perch_backend*, uint32_t index, perch_device_info* info,
                                   perch_error* error) {
  return entry(error, [&]() -> Status {
    if (index != 0) return invalid(text("device %u: there is only device 0", index));
    perch_device_info device{};
    device.struct_size = info->struct_size;
    device.usable = 1;
    device.device = {kDLCPU, 0};
    std::snprintf(device.name, sizeof(device.name), "CPU");
    std::snprintf(device.arch, sizeof(device.arch), "scalar");
    std::memcpy(info, &device, std::min<size_t>(info->struct_size, sizeof(device)));
    return {};
  });
}

uint32_t PERCH_CALL variant_count(perch_backend*, const perch_layer_config*) { return 1; }

perch_status PERCH_CALL query_support(perch_backend* backend, const perch_layer_config* config,
                                      uint32_t variant, perch_support* support,
                                      perch_error* error) {
  return entry(error, [&]() -> Status {
    REFERENCE_RETURN_IF_BAD(check_variant(variant));
    if (support->struct_size < sizeof(perch_support)) {
      return {PERCH_E_ABI_MISMATCH, "perch_support is shorter than that of ABI 1.0"};
    }
    answer(*backend->host, *config, support);
    return {};
  });
}

perch_status PERCH_CALL describe(perch_backend* backend, const perch_layer_config* config,
                                 uint32_t variant, const perch_call_shape* shape,
                                 perch_layout* layout, perch_error* error) {
  return entry(error, [&]() -> Status {
    REFERENCE_RETURN_IF_BAD(check_variant(variant));
    if (layout->struct_size < sizeof(perch_layout)) {
      return {PERCH_E_ABI_MISMATCH, "perch_layout is shorter than that of ABI 1.0"};
    }
    REFERENCE_RETURN_IF_BAD(require_support(*backend, *config));
    // One row per thread at a time, however many tokens there are.
    const int64_t threads = backend->host->num_threads(backend->host->ctx);
    const int64_t tokens = shape == nullptr ? config->max_tokens : shape->num_tokens;
    describe_layer(LayerSpec(*config), tokens > 0 ? threads : 0, layout);
    return {};
  });
}

perch_status PERCH_CALL prepare_begin(perch_backend* backend, const perch_layer_config* config,
                                      uint32_t variant, const perch_stream*,
                                      perch_builder** builder, perch_error* error) {
  return entry(error, [&]() -> Status {
    REFERENCE_RETURN_IF_BAD(check_variant(variant));
    REFERENCE_RETURN_IF_BAD(require_support(*backend, *config));
    *builder = begin_layer(*backend, LayerSpec(*config));
    return {};
  });
}

perch_status PERCH_CALL prepare_put(perch_builder* builder, int32_t expert,
                                    const perch_named_tensor* tensors, uint32_t num_tensors,
                                    perch_error* error) {
  return entry(error, [&] { return put_expert(builder, expert, tensors, num_tensors); });
}

perch_status PERCH_CALL prepare_end(perch_builder* builder, perch_prepared** prepared,
                                    perch_error* error) {
  return entry(error, [&] { return finish_layer(builder, prepared); });
}

void PERCH_CALL prepare_abort(perch_builder* builder) { delete builder; }

perch_status PERCH_CALL update(perch_prepared* prepared, int32_t expert,
                               const perch_named_tensor* tensors, uint32_t num_tensors,
                               perch_error* error) {
  return entry(error, [&] { return replace_expert(prepared, expert, tensors, num_tensors); });
}

void PERCH_CALL prepared_destroy(perch_prepared* prepared) { delete prepared; }

perch_status PERCH_CALL workspace(perch_prepared* prepared, const perch_call_shape* shape,
                                  perch_workspace_req* request, perch_error* error) {
  return entry(error, [&]() -> Status {
    request->align = kWorkspaceAlign;
    request->bytes = workspace_bytes(*prepared->backend.host, prepared->spec, shape->num_tokens);
    request->flags = 0;
    return {};
  });
}

perch_status PERCH_CALL execute_call(perch_prepared* prepared, const perch_exec_args* args,
                                     perch_error* error) {
  return entry(error, [&] { return execute(*prepared, *args); });
}

}  // namespace reference
