/* backend.h - what a backend library gives, and what it is given.
 *
 * For: kernel authors. Read base.h and layer.h first; copy backends/template; C++ authors look at
 * guard.hpp next. Hosts never need this file.
 * Two rules that must not be broken: the library exports one function, perch_backend_entry_v1, and
 * has no undefined perch_ symbol; and no exception, signal handler, changed rounding mode, locale
 * or current device leaves a call.
 *
 * "Who checks what?" The runtime stands between host and backend. Before each call it has checked
 * every tensor's rank, shape, dtype, strides, device, alignment and overlap, every size and every
 * host-side id; strides are never NULL, byte_offset is 0. A backend may assert that and must check
 * only what is its own: whether it offers this config, and NaN codes in weights. Weights are the
 * one thing it sees for the first time: names and completeness are checked on both sides.
 */
#ifndef PERCH_BACKEND_H_
#define PERCH_BACKEND_H_

#include <perch/layer.h>

PERCH_EXTERN_C_BEGIN

/* ---- What the host gives ----------------------------------------------------------------------*/

/* One task of a parallel_for. tid is in [0, num_threads) and unique among tasks running now, so it
 * may index scratch. A task must not throw, wait for another task, or call parallel_for. */
typedef void(PERCH_CALL* perch_task_fn)(void* arg, int64_t index, int32_t tid);

/* Lives as long as the process. Members after the header may be NULL only where said. All of them
 * may be called from any thread. */
typedef struct perch_host_api {
  uint32_t struct_size;
  uint32_t magic; /* PERCH_ABI_MAGIC */
  uint32_t abi_major;
  uint32_t abi_minor;
  void* ctx; /* first argument of all below */
  /* Must not call back into Perch. component: the backend's id. */
  void(PERCH_CALL* log)(void* ctx, int32_t level, const char* component, const char* message);
  /* Both NULL: use your own allocator. align is a power of two. Freed by free_memory only. */
  void*(PERCH_CALL* alloc)(void* ctx, uint64_t bytes, uint64_t align);
  void(PERCH_CALL* free_memory)(void* ctx, void* memory);
  /* Both NULL: use the device's own allocator. */
  void*(PERCH_CALL* device_alloc)(void* ctx, perch_device device, uint64_t bytes);
  void(PERCH_CALL* device_free)(void* ctx, perch_device device, void* memory);
  /* Fixed for the life of the runtime. */
  int32_t(PERCH_CALL* num_threads)(void* ctx);
  /* Runs task(arg, 0..count-1, tid) and returns when all have run. Any order, any interleaving,
   * also strictly one after the other: tasks must be independent. */
  void(PERCH_CALL* parallel_for)(void* ctx, int64_t count, perch_task_fn task, void* arg);
  /* NULL for an id that this host does not offer; the whole member may be NULL. */
  const void*(PERCH_CALL* get_extension)(void* ctx, const char* id);
} perch_host_api;

/* ---- What a backend says about itself ---------------------------------------------------------*/
#define PERCH_KIND_BIT(kind) ((uint64_t)1 << (kind))
#define PERCH_DEVICE_BIT(device_type) ((uint64_t)1 << (device_type))

/* const data, valid for the life of the process. */
typedef struct perch_backend_info {
  uint32_t struct_size;
  uint32_t flags;
  const char* id; /* [a-z][a-z0-9-]*, at most 63 bytes: "humming-cpu" */
  const char* version;
  const char* vendor;
  const char* build;        /* compiler, flags, commit: for bug reports */
  uint64_t kinds;           /* PERCH_KIND_BIT of each kind that some config may have */
  uint64_t device_types;    /* PERCH_DEVICE_BIT of each device type */
  perch_caps caps_possible; /* what may be promised for some config */
} perch_backend_info;

typedef struct perch_device_info {
  uint32_t struct_size;
  uint32_t usable; /* 1, or 0 with a reason */
  perch_device device;
  uint64_t memory_bytes; /* 0 = not known */
  char name[64];
  char arch[32];    /* ISA level or compute capability */
  char reason[160]; /* why it is not usable, and what would help */
} perch_device_info;

/* "What does the backend's compiler think a struct is?" The runtime compares each struct it sends
 * with this size: bytes beyond it that are not zero are a field the backend does not know, and the
 * candidate is refused with the field's name. Fill it with PERCH_STRUCT_SIZES_INIT, not by hand. */
typedef struct perch_struct_sizes {
  uint32_t struct_size;
  uint32_t quant;
  uint32_t act_quant;
  uint32_t linear_config;
  uint32_t moe_config;
  uint32_t layer_config;
  uint32_t support;
  uint32_t layout;
  uint32_t call_shape;
  uint32_t workspace_req;
  uint32_t exec_args;
  uint32_t device_info;
  uint32_t error;
  uint32_t host_api;
} perch_struct_sizes;
#define PERCH_STRUCT_SIZES_INIT                                                                  \
  {(uint32_t)sizeof(perch_struct_sizes), (uint32_t)sizeof(perch_quant),                          \
   (uint32_t)sizeof(perch_act_quant),    (uint32_t)sizeof(perch_linear_config),                  \
   (uint32_t)sizeof(perch_moe_config),   (uint32_t)sizeof(perch_layer_config),                   \
   (uint32_t)sizeof(perch_support),      (uint32_t)sizeof(perch_layout),                         \
   (uint32_t)sizeof(perch_call_shape),   (uint32_t)sizeof(perch_workspace_req),                  \
   (uint32_t)sizeof(perch_exec_args),    (uint32_t)sizeof(perch_device_info),                    \
   (uint32_t)sizeof(perch_error),        (uint32_t)sizeof(perch_host_api)}

/* The backend's own types: the runtime only passes the pointers back. */
typedef struct perch_backend perch_backend;
typedef struct perch_builder perch_builder;
typedef struct perch_prepared perch_prepared;

/* ---- What a backend does ------------------------------------------------------------------------
 * Thread tags: [any thread] concurrent calls are legal; [one at a time] the runtime serialises them
 * over the whole process; [one per object] never twice at once on one object.
 * Every function that returns a status writes `error` (may be NULL) on failure and nothing else.
 * On failure no object was made.
 *
 * Weights cross expert by expert, so that memory stays bounded and one expert can be replaced. Per
 * expert (N, K of that matrix; GU = perch_gate_up_width):
 *   w13 w2 (MoE) or w (linear)   codes: uint8 [N, ceil(K*bits/8)], low bits first along K, rows
 *                                padded to whole bytes, for types of 8 bits and less; else [N,K]
 *                                of float32, float16 or bfloat16
 *   .scale      uint8 for e4m3, e5m2 and e8m0, else its own dtype; TENSOR [1], CHANNEL [N],
 *               GROUP [N,G], BLOCK [ceil(N/gn), ceil(K/gk)]
 *   .scale2     f32 [1] or [N]          .zero    INT: uint8 [N,G], FLOAT: f32 [N,G]
 *   .offset     f32 [N,G]               .lut     f32 [16]
 *   .g_idx      int32 [2,K] for a gated w13 (gate, up), else [1,K]
 *   .bias       f32 [N]                 .pre_scale  f32 [K]
 *   .input_scale  f32 [1], exactly when act mode is STATIC or STATIC_GROUP
 * Tensors are on the CPU and contiguous, in a GPU backend too. */
typedef struct perch_backend_api {
  uint32_t struct_size;
  uint32_t magic;              /* PERCH_ABI_MAGIC */
  uint32_t abi_major;          /* the headers this was built with */
  uint32_t abi_minor;
  uint32_t abi_minor_required; /* the oldest host that will do */
  uint32_t reserved0;
  uint64_t must_understand; /* feature bits the host has to know, else it refuses to load */
  const perch_backend_info* info;
  const perch_struct_sizes* sizes;

  /* [one at a time] May start threads and open devices. Options are those of the YAML's
   * backends.options.<id>; a key that is not known is INVALID_ARGUMENT. `host` outlives it. */
  perch_status(PERCH_CALL* create)(const perch_host_api* host, const perch_kv* options,
                                   uint32_t num_options, perch_backend** backend,
                                   perch_error* error);
  /* [one at a time] Everything it made is gone by then. Joins its threads; cannot fail. */
  void(PERCH_CALL* destroy)(perch_backend* backend);

  /* [any thread] Devices in a fixed order, also those that are not usable. */
  uint32_t(PERCH_CALL* device_count)(perch_backend* backend);
  perch_status(PERCH_CALL* device_get)(perch_backend* backend, uint32_t index,
                                       perch_device_info* info, perch_error* error);

  /* [any thread] "What is a variant?" A family of kernels with promises of its own: one that splits
   * K over threads and one that keeps K's order stand side by side as candidates. At least 1, also
   * for a config that every variant refuses. */
  uint32_t(PERCH_CALL* variant_count)(perch_backend* backend, const perch_layer_config* config);
  /* [any thread] Pure: no allocation on a device, no kernel launched. "No" is PERCH_OK with
   * verdict NO and every reason; a non-zero status means that the question itself failed. */
  perch_status(PERCH_CALL* query_support)(perch_backend* backend, const perch_layer_config* config,
                                          uint32_t variant, perch_support* support,
                                          perch_error* error);
  /* [any thread] May be NULL: then the runtime reports logical sizes and no buffers. */
  perch_status(PERCH_CALL* describe)(perch_backend* backend, const perch_layer_config* config,
                                     uint32_t variant, const perch_call_shape* shape,
                                     perch_layout* layout, perch_error* error);

  /* [any thread] The config is only borrowed: copy what you keep. */
  perch_status(PERCH_CALL* prepare_begin)(perch_backend* backend, const perch_layer_config* config,
                                          uint32_t variant, const perch_stream* stream,
                                          perch_builder** builder, perch_error* error);
  /* [any thread for different experts] All tensors of one expert; expert is -1 for a linear layer,
   * else 0..E-1, each once. Tensors have been read on return, unless ZERO_COPY_WEIGHTS is promised.
   * A name that is not known or one that is missing is INVALID_ARGUMENT with the name. */
  perch_status(PERCH_CALL* prepare_put)(perch_builder* builder, int32_t expert,
                                        const perch_named_tensor* tensors, uint32_t num_tensors,
                                        perch_error* error);
  /* [one per object] Consumes the builder on success. Refuses while an expert is missing; the
   * builder then still lives. */
  perch_status(PERCH_CALL* prepare_end)(perch_builder* builder, perch_prepared** prepared,
                                        perch_error* error);
  void(PERCH_CALL* prepare_abort)(perch_builder* builder);
  /* [one per object, not during execute] May be NULL. Replaces one expert in place: addresses stay,
   * and on refusal the old weights still answer. */
  perch_status(PERCH_CALL* update)(perch_prepared* prepared, int32_t expert,
                                   const perch_named_tensor* tensors, uint32_t num_tensors,
                                   perch_error* error);
  /* [one per object] No call is in flight, and the stream's work is done. */
  void(PERCH_CALL* prepared_destroy)(perch_prepared* prepared);

  /* [any thread] Pure. */
  perch_status(PERCH_CALL* workspace)(perch_prepared* prepared, const perch_call_shape* shape,
                                      perch_workspace_req* request, perch_error* error);
  /* [one per object; any thread under CONCURRENT_EXECUTE, each with its own workspace]
   * Keeps no pointer after return, and writes nothing but y and workspace, on failure too.
   * What may alias: layer.h, above perch_exec_args. num_tokens 0 is OK and writes nothing. */
  perch_status(PERCH_CALL* execute)(perch_prepared* prepared, const perch_exec_args* args,
                                    perch_error* error);

  /* [any thread] May be NULL. NULL for an id that is not offered. */
  const void*(PERCH_CALL* get_extension)(perch_backend* backend, const char* id);
} perch_backend_api;

/* ---- The one exported function ------------------------------------------------------------------
 * "Why is the version in the name?" A library for another major version lacks this name, and the
 * runtime can say so before anything is called. It touches no device, allocates nothing, starts no
 * thread, and may be called again. *api is const data, valid for the life of the process. */
#define PERCH_BACKEND_ENTRY "perch_backend_entry_v1"
typedef perch_status(PERCH_CALL* perch_backend_entry_fn)(const perch_host_api* host,
                                                         const perch_backend_api** api,
                                                         perch_error* error);
PERCH_EXPORT perch_status PERCH_CALL perch_backend_entry_v1(const perch_host_api* host,
                                                            const perch_backend_api** api,
                                                            perch_error* error);

PERCH_EXTERN_C_END
#endif /* PERCH_BACKEND_H_ */
