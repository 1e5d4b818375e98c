// A Perch backend outside Perch's tree: one file, the installed headers, one line of any compiler:
//
//   clang++ -std=c++17 -O2 -shared -fPIC -fvisibility=hidden -Wl,-z,nodelete -I PREFIX/include
//     mine.cc -o libperch_mine.so && perch list --backend-path "$PWD/libperch_mine.so"
//
// It runs plain bf16 linear layers, one product at a time, on the host's threads.
#include <memory>
#include <perch/guard.hpp>
#include <string>
#include <utility>

// The ABI leaves these types to us: the runtime only passes pointers to them back.
struct perch_backend {
  const perch_host_api* host;
};
struct perch_prepared {
  const perch_host_api* host;
  int64_t n, k;
  std::unique_ptr<uint16_t[]> w;  // bf16 [n,k]
};
struct perch_builder : perch_prepared {};

namespace {
using perch_guard::fail;
using perch_guard::guarded;
constexpr perch_caps kPromises = PERCH_CAP_DETERMINISTIC | PERCH_CAP_BATCH_INVARIANT |
                                 PERCH_CAP_NO_ALLOC_EXECUTE | PERCH_CAP_CONCURRENT_EXECUTE |
                                 PERCH_CAP_FP32_ACCUM | PERCH_CAP_THREADS_FROM_HOST;

// "May I run this?" With every reason why not.
perch_status query_support(perch_backend*, const perch_layer_config* config, uint32_t variant,
                           perch_support* support, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    perch_guard::begin_support(support, variant);
    const auto want = [&](bool fits, int32_t code, const char* field, const char* text) {
      if (!fits) perch_guard::add_reason(support, code, field, text);
    };
    want(config->num_options == 0, PERCH_REASON_OPTION, "options", "no option is known here");
    want(config->next == nullptr, PERCH_REASON_EXT_UNKNOWN, "next", "no extension is known here");
    want(config->flags == 0 && config->device.device_type == kDLCPU, PERCH_REASON_DEVICE, "device",
         "want the CPU, and no flags");
    want(config->in_dtype == PERCH_TYPE_BF16 && config->out_dtype == PERCH_TYPE_BF16,
         PERCH_REASON_DTYPE, "in_dtype", "want bf16, likewise out_dtype");
    want(config->kind == PERCH_KIND_LINEAR, PERCH_REASON_SHAPE, "kind", "want linear");
    if (config->kind != PERCH_KIND_LINEAR) return PERCH_OK;
    const perch_linear_config& linear = *config->linear;
    const perch_quant& q = *linear.weight;
    want(q.weight == PERCH_TYPE_BF16 && q.scale_kind == PERCH_SCALE_NONE && q.flags == 0 &&
             q.scale_dtype == PERCH_TYPE_NONE && q.scale2_kind == PERCH_SCALE2_NONE &&
             q.zero_kind == PERCH_ZERO_NONE && q.offset_kind == PERCH_OFFSET_NONE &&
             q.k_order == PERCH_K_NATURAL && q.next == nullptr && linear.next == nullptr,
         PERCH_REASON_DTYPE, "linear.weight", "want plain bf16 without bias");
    want(linear.act->mode == PERCH_ACT_NONE && linear.act->dtype == PERCH_TYPE_NONE,
         PERCH_REASON_DTYPE, "linear.act", "want none");
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
    const perch_linear_config& linear = *config->linear;
    *builder = new perch_builder{{backend->host, linear.out_features, linear.in_features, {}}};
    return PERCH_OK;
  });
}
perch_status prepare_put(perch_builder* builder, int32_t, const perch_named_tensor* tensors,
                         uint32_t num_tensors, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    for (uint32_t i = 0; i < num_tensors; ++i) {
      if (std::strcmp(tensors[i].name, "w") == 0) continue;
      const std::string text = std::string("no use for ") + tensors[i].name;
      return fail(error, PERCH_E_INVALID_ARGUMENT, text.c_str());
    }
    if (num_tensors != 1) return fail(error, PERCH_E_INVALID_ARGUMENT, "want w, once");
    const auto count = static_cast<size_t>(builder->n * builder->k);
    builder->w = std::make_unique<uint16_t[]>(count);
    std::memcpy(builder->w.get(), tensors[0].tensor->data, 2 * count);
    return PERCH_OK;
  });
}
perch_status prepare_end(perch_builder* builder, perch_prepared** prepared, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    if (builder->w == nullptr) return fail(error, PERCH_E_INVALID_ARGUMENT, "w is missing");
    *prepared = new perch_prepared(std::move(*builder));
    delete builder;
    return PERCH_OK;
  });
}
float widen(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
uint16_t round_to_bf16(float value) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return value != value ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
perch_status execute(perch_prepared* layer, const perch_exec_args* args, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    const DLTensor &x = *args->x, &y = *args->y;
    auto one = [&](int64_t n) {  // on any thread: must not throw, and cannot
      const uint16_t* w = layer->w.get() + n * layer->k;
      for (int64_t t = 0; t < x.shape[0]; ++t) {
        const auto* row = static_cast<const uint16_t*>(x.data) + t * x.strides[0];
        float sum = 0;
        for (int64_t k = 0; k < layer->k; ++k) sum += widen(w[k]) * widen(row[k]);
        static_cast<uint16_t*>(y.data)[t * y.strides[0] + n] = round_to_bf16(sum);
      }
    };
    const auto task = [](void* arg, int64_t n, int32_t) { (*static_cast<decltype(one)*>(arg))(n); };
    layer->host->parallel_for(layer->host->ctx, layer->n, task, &one);
    return PERCH_OK;
  });
}
perch_status workspace(perch_prepared*, const perch_call_shape*, perch_workspace_req* request,
                       perch_error*) {
  *request = {request->struct_size, 1, 0, 0};
  return PERCH_OK;
}
perch_status create(const perch_host_api* host, const perch_kv*, uint32_t num_options,
                    perch_backend** backend, perch_error* error) {
  return guarded(error, [&]() -> perch_status {
    if (num_options > 0) return fail(error, PERCH_E_INVALID_ARGUMENT, "no option is known here");
    *backend = new perch_backend{host};
    return PERCH_OK;
  });
}
perch_status device_get(perch_backend*, uint32_t, perch_device_info* info, perch_error*) {
  *info = {info->struct_size, 1, {kDLCPU, 0}, 0, "cpu", "scalar", ""};
  return PERCH_OK;
}

// clang-format off
const perch_backend_info kInfo = {
    sizeof(perch_backend_info), 0, "mine", "0.1", "you", "scalar C++17",
    PERCH_KIND_BIT(PERCH_KIND_LINEAR), PERCH_DEVICE_BIT(kDLCPU), kPromises};
const perch_struct_sizes kSizes = PERCH_STRUCT_SIZES_INIT;
const perch_backend_api kApi = {
    sizeof(perch_backend_api), PERCH_ABI_MAGIC, PERCH_ABI_MAJOR, PERCH_ABI_MINOR, 0, 0, 0, &kInfo,
    &kSizes, create, [](perch_backend* backend) { delete backend; },
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
