// backend.cc - the ABI's table: each entry is guarded and then calls one function of this folder.
//
// The order of reading: README.md, plan.h, pack.h, kernels_impl.h, moe.cc.
#include "perch/backend.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "isa.h"
#include "linear.h"
#include "moe.h"
#include "objects.h"
#include "pack.h"
#include "perch/guard.hpp"
#include "scratch.h"
#include "support.h"

namespace humming_cpu {
namespace {

using perch_guard::fail;
using perch_guard::guarded;

perch_status create_option(const perch_kv& option, Isa* isa, perch_error* error) {
  char message[256];
  if (std::strcmp(option.key, "isa") != 0) {
    std::snprintf(message, sizeof(message),
                  "option '%.64s' is not known; the nearest known key is 'isa'", option.key);
    return fail(error, PERCH_E_INVALID_ARGUMENT, message);
  }
  if (!parse_isa(option.value, isa)) {
    std::snprintf(message, sizeof(message), "option 'isa': want one of %s, got '%.64s'", kIsaNames,
                  option.value);
    return fail(error, PERCH_E_INVALID_ARGUMENT, message);
  }
  const Isa best = machine_isa();
  if (static_cast<int32_t>(*isa) > static_cast<int32_t>(best)) {
    std::snprintf(message, sizeof(message), "option 'isa': '%s' needs %s; this machine offers %s",
                  option.value, isa_needs(*isa), isa_name(best));
    return fail(error, PERCH_E_UNSUPPORTED, message);
  }
  return PERCH_OK;
}

perch_status PERCH_CALL create(const perch_host_api* host, const perch_kv* options,
                               uint32_t num_options, perch_backend** backend, perch_error* error) {
  return guarded(error, [&] {
    Isa isa = machine_isa();
    for (uint32_t i = 0; i < num_options; ++i) {
      const perch_status status = create_option(options[i], &isa, error);
      if (status != PERCH_OK) return status;
    }
    *backend = new perch_backend{host, isa};
    return perch_status{PERCH_OK};
  });
}

void PERCH_CALL destroy(perch_backend* backend) {
  guarded(nullptr, [&] {
    delete backend;
    return perch_status{PERCH_OK};
  });
}

uint32_t PERCH_CALL device_count(perch_backend*) { return 1; }

perch_status PERCH_CALL device_get(perch_backend* backend, uint32_t index, perch_device_info* info,
                                   perch_error* error) {
  return guarded(error, [&] {
    if (index != 0) return fail(error, PERCH_E_INVALID_ARGUMENT, "want device index 0");
    info->usable = backend->isa == Isa::kNone ? 0 : 1;
    info->device = {kDLCPU, 0};
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    info->memory_bytes =
        pages > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : 0;
    cpu_brand(info->name, sizeof(info->name));
    std::memset(info->arch, 0, sizeof(info->arch));
    std::strncpy(info->arch, isa_name(backend->isa), sizeof(info->arch) - 1);
    std::memset(info->reason, 0, sizeof(info->reason));
    if (backend->isa == Isa::kNone) {
      std::snprintf(info->reason, sizeof(info->reason), "this CPU lacks %s",
                    isa_needs(Isa::kPortable));
    }
    return perch_status{PERCH_OK};
  });
}

uint32_t PERCH_CALL variant_count(perch_backend*, const perch_layer_config*) {
  return kNumVariants;
}

perch_status PERCH_CALL query_support_entry(perch_backend* backend,
                                            const perch_layer_config* config, uint32_t variant,
                                            perch_support* support, perch_error* error) {
  return guarded(error, [&] {
    query_support(*config, variant, backend->isa, support);
    return perch_status{PERCH_OK};
  });
}

// The plan of a config that is supported; UNSUPPORTED with the first reason otherwise.
perch_status plan_layer(const perch_backend& backend, const perch_layer_config& config,
                        uint32_t variant, LayerPlan* plan, perch_error* error) {
  perch_reason reason{};
  perch_support support{};
  support.struct_size = sizeof(support);
  support.reasons = &reason;
  support.reasons_capacity = 1;
  query_support(config, variant, backend.isa, &support);
  if (support.verdict != PERCH_VERDICT_YES) {
    char message[320];
    std::snprintf(message, sizeof(message), "%s: %s", reason.field, reason.text);
    return fail(error, PERCH_E_UNSUPPORTED, message);
  }
  Isa isa = backend.isa;
  char text[192];
  layer_isa(config, backend.isa, &isa, text);
  *plan = make_plan(config, isa, static_cast<Variant>(variant));
  return PERCH_OK;
}

perch_status PERCH_CALL describe_entry(perch_backend* backend, const perch_layer_config* config,
                                       uint32_t variant, const perch_call_shape* shape,
                                       perch_layout* layout, perch_error* error) {
  return guarded(error, [&] {
    LayerPlan plan;
    const perch_status status = plan_layer(*backend, *config, variant, &plan, error);
    if (status == PERCH_OK) describe(plan, shape->num_tokens, layout);
    return status;
  });
}

perch_status PERCH_CALL prepare_begin(perch_backend* backend, const perch_layer_config* config,
                                      uint32_t variant, const perch_stream*,
                                      perch_builder** builder, perch_error* error) {
  return guarded(error, [&] {
    LayerPlan plan;
    const perch_status status = plan_layer(*backend, *config, variant, &plan, error);
    if (status != PERCH_OK) return status;
    auto made = std::make_unique<perch_builder>();
    made->host = backend->host;
    made->plan = plan;
    made->arena = Arena(backend->host, plan.arena_bytes());
    made->present = std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(plan.experts));
    *builder = made.release();
    return perch_status{PERCH_OK};
  });
}

// The expert's place, or INVALID_ARGUMENT.
perch_status expert_index(const LayerPlan& plan, int32_t expert, int64_t* index,
                          perch_error* error) {
  *index = plan.moe ? expert : expert + 1;
  if (*index >= 0 && *index < plan.experts) return PERCH_OK;
  char message[128];
  if (plan.moe) {
    std::snprintf(message, sizeof(message), "expert %d: want 0 to %lld", expert,
                  static_cast<long long>(plan.experts - 1));
  } else {
    std::snprintf(message, sizeof(message), "expert %d: want -1 for a linear layer", expert);
  }
  return fail(error, PERCH_E_INVALID_ARGUMENT, message);
}

// Checks everything, then packs: the arena is written only when nothing can fail any more.
perch_status put(const LayerPlan& plan, const Arena& arena, int64_t index,
                 const perch_named_tensor* tensors, uint32_t num_tensors, perch_error* error) {
  ExpertTensors found;
  const perch_status status = find_tensors(plan, tensors, num_tensors, &found, error);
  if (status == PERCH_OK) pack_expert(plan, found, arena.data() + index * plan.expert_bytes);
  return status;
}

perch_status PERCH_CALL prepare_put(perch_builder* builder, int32_t expert,
                                    const perch_named_tensor* tensors, uint32_t num_tensors,
                                    perch_error* error) {
  return guarded(error, [&] {
    int64_t index = 0;
    perch_status status = expert_index(builder->plan, expert, &index, error);
    if (status != PERCH_OK) return status;
    if (builder->present[static_cast<size_t>(index)]) {
      return fail(error, PERCH_E_INVALID_ARGUMENT, "this expert was put before");
    }
    status = put(builder->plan, builder->arena, index, tensors, num_tensors, error);
    if (status == PERCH_OK) builder->present[static_cast<size_t>(index)] = true;
    return status;
  });
}

perch_status PERCH_CALL prepare_end(perch_builder* builder, perch_prepared** prepared,
                                    perch_error* error) {
  return guarded(error, [&] {
    for (int64_t i = 0; i < builder->plan.experts; ++i) {
      if (builder->present[static_cast<size_t>(i)]) continue;
      char message[96];
      std::snprintf(message, sizeof(message), "expert %lld is missing",
                    static_cast<long long>(builder->plan.moe ? i : -1));
      return fail(error, PERCH_E_INVALID_ARGUMENT, message);
    }
    auto made = std::make_unique<perch_prepared>();
    made->host = builder->host;
    made->plan = builder->plan;
    made->arena = std::move(builder->arena);
    delete builder;
    *prepared = made.release();
    return perch_status{PERCH_OK};
  });
}

void PERCH_CALL prepare_abort(perch_builder* builder) {
  guarded(nullptr, [&] {
    delete builder;
    return perch_status{PERCH_OK};
  });
}

perch_status PERCH_CALL update(perch_prepared* prepared, int32_t expert,
                               const perch_named_tensor* tensors, uint32_t num_tensors,
                               perch_error* error) {
  return guarded(error, [&] {
    int64_t index = 0;
    const perch_status status = expert_index(prepared->plan, expert, &index, error);
    if (status != PERCH_OK) return status;
    return put(prepared->plan, prepared->arena, index, tensors, num_tensors, error);
  });
}

void PERCH_CALL prepared_destroy(perch_prepared* prepared) {
  guarded(nullptr, [&] {
    delete prepared;
    return perch_status{PERCH_OK};
  });
}

perch_status PERCH_CALL workspace(perch_prepared* prepared, const perch_call_shape* shape,
                                  perch_workspace_req* request, perch_error* error) {
  return guarded(error, [&] {
    request->align = 64;
    request->bytes = static_cast<uint64_t>(scratch_bytes(prepared->plan, shape->num_tokens));
    request->flags = 0;
    return perch_status{PERCH_OK};
  });
}

perch_status PERCH_CALL execute(perch_prepared* prepared, const perch_exec_args* args,
                                perch_error* error) {
  return guarded(error, [&] {
    if (prepared->plan.moe) {
      execute_moe(*prepared, *args);
    } else {
      execute_linear(*prepared, *args);
    }
    return perch_status{PERCH_OK};
  });
}

constexpr perch_backend_info kInfo = {
    sizeof(perch_backend_info),
    0,
    "humming-cpu",
    "1.0.0",
    "Perch",
#if defined(__VERSION__)
    "C++20, " __VERSION__,
#else
    "C++20",
#endif
    PERCH_KIND_BIT(PERCH_KIND_LINEAR) | PERCH_KIND_BIT(PERCH_KIND_MOE),
    PERCH_DEVICE_BIT(kDLCPU),
    PERCH_CAP_DETERMINISTIC | PERCH_CAP_BATCH_INVARIANT | PERCH_CAP_EXPERT_LOAD_INVARIANT |
        PERCH_CAP_NO_ALLOC_EXECUTE | PERCH_CAP_CONCURRENT_EXECUTE | PERCH_CAP_FP32_ACCUM |
        PERCH_CAP_ROW_STRIDED_ACT | PERCH_CAP_THREADS_FROM_HOST};

constexpr perch_struct_sizes kSizes = PERCH_STRUCT_SIZES_INIT;

constexpr perch_backend_api kApi = {sizeof(perch_backend_api),
                                    PERCH_ABI_MAGIC,
                                    PERCH_ABI_MAJOR,
                                    PERCH_ABI_MINOR,
                                    /*abi_minor_required=*/0,
                                    /*reserved0=*/0,
                                    /*must_understand=*/0,
                                    &kInfo,
                                    &kSizes,
                                    create,
                                    destroy,
                                    device_count,
                                    device_get,
                                    variant_count,
                                    query_support_entry,
                                    describe_entry,
                                    prepare_begin,
                                    prepare_put,
                                    prepare_end,
                                    prepare_abort,
                                    update,
                                    prepared_destroy,
                                    workspace,
                                    execute,
                                    /*get_extension=*/nullptr};

}  // namespace
}  // namespace humming_cpu

extern "C" PERCH_EXPORT perch_status PERCH_CALL
perch_backend_entry_v1(const perch_host_api*, const perch_backend_api** api, perch_error*) {
  *api = &humming_cpu::kApi;
  return PERCH_OK;
}
