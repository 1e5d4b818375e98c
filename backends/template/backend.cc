// A backend to copy: it loads, is listed, and refuses every layer until kOffersBf16 is true. Then
// it runs bf16 linear layers, one product at a time. README.md says what to change first.
#include <bit>
#include <perch/guard.hpp>
#include <string>
#include <utility>
#include <vector>

constexpr bool kOffersBf16 = false;
constexpr perch_caps kPromises = PERCH_CAP_DETERMINISTIC | PERCH_CAP_BATCH_INVARIANT |
                                 PERCH_CAP_NO_ALLOC_EXECUTE | PERCH_CAP_CONCURRENT_EXECUTE |
                                 PERCH_CAP_FP32_ACCUM;

// These types are ours to define: the runtime only passes pointers to them back.
struct perch_backend {};
struct perch_prepared {
  int64_t rows, columns;       // N and K
  std::vector<uint16_t> bf16;  // [N,K]
};
struct perch_builder {
  perch_prepared layer;
};

namespace {
using perch_guard::fail;
using perch_guard::guarded;

bool is_plain_bf16(const perch_quant& q) {
  return q.weight == PERCH_TYPE_BF16 && q.scale_kind == PERCH_SCALE_NONE && q.flags == 0 &&
         q.scale_dtype == PERCH_TYPE_NONE && q.scale2_kind == PERCH_SCALE2_NONE &&
         q.zero_kind == PERCH_ZERO_NONE && q.offset_kind == PERCH_OFFSET_NONE &&
         q.k_order == PERCH_K_NATURAL && q.next == nullptr;
}
// Lists every reason, not the first: who fixes one wants to know the next.
perch_status query_support(perch_backend*, const perch_layer_config* config, uint32_t variant,
                           perch_support* support, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    perch_guard::begin_support(support, variant);
    const auto want = [&](bool fits, int32_t code, const char* field, const char* text) {
      if (!fits) perch_guard::add_reason(support, code, field, text);
    };
    want(kOffersBf16, PERCH_REASON_DTYPE, "kind", "unsupported: the template has no recipe yet");
    want(config->num_options == 0, PERCH_REASON_OPTION, "options", "none is known here");
    want(config->next == nullptr, PERCH_REASON_EXT_UNKNOWN, "next", "none is known here");
    want(config->flags == 0, PERCH_REASON_FIELD_UNKNOWN, "flags", "want 0");
    want(config->device.device_type == kDLCPU, PERCH_REASON_DEVICE, "device", "want the CPU");
    want(config->in_dtype == PERCH_TYPE_BF16 && config->out_dtype == PERCH_TYPE_BF16,
         PERCH_REASON_DTYPE, "in_dtype", "want bf16, likewise out_dtype");
    want(config->kind == PERCH_KIND_LINEAR, PERCH_REASON_SHAPE, "kind", "want linear");
    if (config->kind != PERCH_KIND_LINEAR) return PERCH_OK;
    const perch_linear_config& linear = *config->linear;
    want(is_plain_bf16(*linear.weight), PERCH_REASON_DTYPE, "linear.weight", "want plain bf16");
    want(linear.act->mode == PERCH_ACT_NONE && linear.act->dtype == PERCH_TYPE_NONE,
         PERCH_REASON_DTYPE, "linear.act", "want none");
    want(linear.next == nullptr, PERCH_REASON_EXT_UNKNOWN, "linear.next", "none is known here");
    support->caps = kPromises;
    support->packed_bytes = static_cast<uint64_t>(2 * linear.out_features * linear.in_features);
    std::strcpy(support->kernel, "bf16_bf16_bf16_1x1_scalar");
    return PERCH_OK;
  });
}
perch_status prepare_begin(perch_backend* backend, const perch_layer_config* config, uint32_t v,
                           const perch_stream*, perch_builder** builder, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    if (perch_guard::refused(query_support, backend, config, v, error)) return PERCH_E_UNSUPPORTED;
    *builder = new perch_builder{{config->linear->out_features, config->linear->in_features, {}}};
    return PERCH_OK;
  });
}
perch_status prepare_put(perch_builder* builder, int32_t, const perch_named_tensor* tensors,
                         uint32_t num_tensors, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    perch_prepared& layer = builder->layer;
    for (uint32_t i = 0; i < num_tensors; ++i) {
      const std::string name = tensors[i].name;
      if (name != "w") return fail(error, PERCH_E_INVALID_ARGUMENT, ("no use for " + name).c_str());
      const auto* from = static_cast<const uint16_t*>(tensors[i].tensor->data);
      layer.bf16.assign(from, from + layer.rows * layer.columns);  // yours: pack here
    }
    return layer.bf16.empty() ? fail(error, PERCH_E_INVALID_ARGUMENT, "w is missing") : PERCH_OK;
  });
}
perch_status prepare_end(perch_builder* builder, perch_prepared** prepared, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    if (builder->layer.bf16.empty()) return fail(error, PERCH_E_INVALID_ARGUMENT, "no w");
    *prepared = new perch_prepared(std::move(builder->layer));
    delete builder;
    return PERCH_OK;
  });
}
perch_status workspace(perch_prepared*, const perch_call_shape*, perch_workspace_req* request,
                       perch_error*) {
  *request = {request->struct_size, 1, 0, 0};
  return PERCH_OK;
}
float widen(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }
uint16_t round_to_bf16(float value) {  // to nearest, ties to even
  if (value != value) return 0x7FC0;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
perch_status execute(perch_prepared* layer, const perch_exec_args* args, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    for (int64_t t = 0; t < args->x->shape[0]; ++t) {
      const auto* x = static_cast<const uint16_t*>(args->x->data) + t * args->x->strides[0];
      auto* y = static_cast<uint16_t*>(args->y->data) + t * args->y->strides[0];
      for (int64_t n = 0; n < layer->rows; ++n) {
        const uint16_t* w = layer->bf16.data() + n * layer->columns;
        float sum = 0;
        for (int64_t k = 0; k < layer->columns; ++k) sum += widen(w[k]) * widen(x[k]);
        y[n] = round_to_bf16(sum);
      }
    }
    return PERCH_OK;
  });
}
perch_status create(const perch_host_api*, const perch_kv* options, uint32_t num_options,
                    perch_backend** backend, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    const std::string key = num_options > 0 ? options[0].key : "";
    if (!key.empty()) return fail(error, PERCH_E_INVALID_ARGUMENT, ("no option " + key).c_str());
    *backend = new perch_backend;
    return PERCH_OK;
  });
}
perch_status device_get(perch_backend*, uint32_t, perch_device_info* info, perch_error*) {
  *info = {info->struct_size, 1, {kDLCPU, 0}, 0, "cpu", "scalar", ""};
  return PERCH_OK;
}
// clang-format off
constexpr perch_backend_info kInfo = {
    sizeof(perch_backend_info), 0, "template", "0.1", "you", "scalar C++",
    PERCH_KIND_BIT(PERCH_KIND_LINEAR), PERCH_DEVICE_BIT(kDLCPU), kPromises};
constexpr perch_struct_sizes kSizes = PERCH_STRUCT_SIZES_INIT;
constexpr perch_backend_api kApi = {
    sizeof(perch_backend_api), PERCH_ABI_MAGIC, PERCH_ABI_MAJOR, PERCH_ABI_MINOR, 0, 0, 0,
    &kInfo, &kSizes, create, [](perch_backend* backend) { delete backend; },
    [](perch_backend*) -> uint32_t { return 1; }, device_get,
    [](perch_backend*, const perch_layer_config*) -> uint32_t { return 1; }, query_support,
    nullptr /* describe */, prepare_begin, prepare_put, prepare_end,
    [](perch_builder* builder) { delete builder; }, nullptr /* update */,
    [](perch_prepared* prepared) { delete prepared; }, workspace, execute, nullptr};
// clang-format on
}  // namespace

perch_status perch_backend_entry_v1(const perch_host_api*, const perch_backend_api** api,
                                    perch_error*) {
  *api = &kApi;
  return PERCH_OK;
}
