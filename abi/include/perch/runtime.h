/* runtime.h - the host API: what an application calls.
 *
 * For: engine developers, in C or through any foreign-function interface; C++ users include
 * perch.hpp instead. Read base.h and layer.h first.
 * Two rules that must not be broken: destroy layers before their runtime; and one layer executes on
 * one thread at a time unless it promises CONCURRENT_EXECUTE.
 *
 * The walk:  perch_runtime_create -> perch_model_open -> perch_model_layer -> perch_layer_execute,
 * or, with tensors of your own, perch_runtime_create -> perch_layer_create -> perch_layer_execute.
 *
 * Every function returns PERCH_OK or the code of what went wrong, with the text in `error`
 * ("<function>: <argument>: <property>: got <value>; want <rule>"); after a failure the runtime and
 * everything made before it work as if the call had not been made. No function throws, prints or
 * ends the process. Strings are UTF-8. [any thread] unless a tag says otherwise.
 *
 * "How long is that JSON?" Functions with (char* json, capacity, needed) write a NUL-terminated
 * document when it fits, set *needed to its size with the NUL, and return BUFFER_TOO_SMALL when it
 * does not; json may be NULL with capacity 0. Documents: keys are added, never renamed.
 */
#ifndef PERCH_RUNTIME_H_
#define PERCH_RUNTIME_H_

#include <perch/layer.h>

PERCH_EXTERN_C_BEGIN

typedef struct perch_runtime perch_runtime;
typedef struct perch_layer perch_layer;
typedef struct perch_layer_builder perch_layer_builder;
typedef struct perch_model perch_model;
typedef struct perch_tensors perch_tensors;
typedef struct perch_tensor perch_tensor;

/* ---- Versions ---------------------------------------------------------------------------------*/
PERCH_EXPORT perch_status PERCH_CALL perch_abi_version(uint32_t* major, uint32_t* minor);
/* Every struct of the ABI with its size and the name, offset and size of each field. */
PERCH_EXPORT perch_status PERCH_CALL perch_abi_describe(char* json, uint64_t capacity,
                                                        uint64_t* needed);
/* "PERCH_E_UNSUPPORTED"; a string of the library, never NULL. */
PERCH_EXPORT const char* PERCH_CALL perch_status_name(perch_status status);

/* ---- Runtime ----------------------------------------------------------------------------------*/
typedef void(PERCH_CALL* perch_log_fn)(void* ctx, int32_t level, const char* component,
                                       const char* message);
/* A host's own threads: see perch_host_api in backend.h for what a task may do. The callee runs
 * task(task_arg, 0..count-1, tid) and returns when all have run. */
typedef void(PERCH_CALL* perch_parallel_for_fn)(void* ctx, int64_t count,
                                                void(PERCH_CALL* task)(void*, int64_t, int32_t),
                                                void* task_arg);

/* All borrowed for the call, but the pool and log callbacks, which must live as long as the
 * runtime. Zero everywhere is a good start: the installed default config, all backends beside the
 * library, one thread per core that this process may use, warnings to stderr. */
typedef struct perch_runtime_opts {
  uint32_t struct_size;
  int32_t num_threads;      /* 0: the config's, else one per physical core allowed to us */
  const char* config_path;  /* YAML; NULL: config_text, else the installed default */
  const char* config_text;  /* YAML given as text */
  const char* backend_path; /* colon-separated absolute files or directories, searched first */
  perch_parallel_for_fn parallel_for; /* NULL: a pool of our own; else num_threads is its size */
  void* parallel_for_ctx;
  perch_log_fn log; /* NULL: stderr */
  void* log_ctx;
  int32_t log_level; /* PERCH_LOG_*; 0: the config's */
  uint32_t flags;    /* 0 */
  const perch_ext* next;
} perch_runtime_opts;

/* opts NULL: all zero. Loads every backend it finds; one that fails stays in the report with its
 * reason and does not fail the call, unless the config lists it under must_load. */
PERCH_EXPORT perch_status PERCH_CALL perch_runtime_create(const perch_runtime_opts* opts,
                                                          perch_runtime** runtime,
                                                          perch_error* error);
/* Backends stay mapped: a library is never unloaded. NULL is fine. */
PERCH_EXPORT void PERCH_CALL perch_runtime_destroy(perch_runtime* runtime);
/* Loads one more backend library, by absolute path. */
PERCH_EXPORT perch_status PERCH_CALL perch_runtime_load(perch_runtime* runtime, const char* path,
                                                        perch_error* error);
/* {"libraries":[...],"search":[...],"config":{...}}: every library found with its state and reason,
 * the places searched in order, and the effective config with the origin of each value. */
PERCH_EXPORT perch_status PERCH_CALL perch_runtime_report(perch_runtime* runtime, char* json,
                                                          uint64_t capacity, uint64_t* needed,
                                                          perch_error* error);
/* fn NULL: back to stderr. Returns when no call of the old function is in flight. */
PERCH_EXPORT perch_status PERCH_CALL perch_set_log(perch_runtime* runtime, perch_log_fn fn,
                                                   void* ctx, int32_t level, perch_error* error);
PERCH_EXPORT int32_t PERCH_CALL perch_runtime_num_threads(perch_runtime* runtime);

/* ---- Layers -----------------------------------------------------------------------------------*/
/* Dry run: {"layer","chosen","candidates":[{"backend","variant","kernel","device","verdict",
 * "caps","score","bytes","reasons":[{"code","field","text"}]}],"rule":{...}}. PERCH_OK also when
 * nothing fits; "chosen" is then null. */
PERCH_EXPORT perch_status PERCH_CALL perch_select(perch_runtime* runtime,
                                                  const perch_layer_config* config, char* json,
                                                  uint64_t capacity, uint64_t* needed,
                                                  perch_error* error);

/* Chooses a backend and prepares it. Tensors are named as in backend.h. For a MoE layer each has a
 * leading E ("w13" is [E,GU,...]; a per-expert [1] may also be [E]); for a linear layer none has.
 * They are borrowed for the call unless the layer promises ZERO_COPY_WEIGHTS. UNSUPPORTED lists
 * every candidate with every reason. stream NULL: the CPU. */
PERCH_EXPORT perch_status PERCH_CALL perch_layer_create(
    perch_runtime* runtime, const perch_layer_config* config, const perch_named_tensor* tensors,
    uint32_t num_tensors, const perch_stream* stream, perch_layer** layer, perch_error* error);

/* The same expert by expert, so that only one expert's tensors need to exist at a time. Shapes are
 * then those of one expert; expert is -1 for a linear layer. end consumes the builder on success
 * and refuses, naming it, while an expert is missing; abort takes NULL. */
PERCH_EXPORT perch_status PERCH_CALL perch_layer_begin(perch_runtime* runtime,
                                                       const perch_layer_config* config,
                                                       const perch_stream* stream,
                                                       perch_layer_builder** builder,
                                                       perch_error* error);
PERCH_EXPORT perch_status PERCH_CALL perch_layer_put(perch_layer_builder* builder, int32_t expert,
                                                     const perch_named_tensor* tensors,
                                                     uint32_t num_tensors, perch_error* error);
PERCH_EXPORT perch_status PERCH_CALL perch_layer_end(perch_layer_builder* builder,
                                                     perch_layer** layer, perch_error* error);
PERCH_EXPORT void PERCH_CALL perch_layer_abort(perch_layer_builder* builder);

/* Replaces one expert in place (expert -1: a linear layer's matrix). UNSUPPORTED where the backend
 * does not offer it; the old weights then still answer. */
PERCH_EXPORT perch_status PERCH_CALL perch_layer_update(perch_layer* layer, int32_t expert,
                                                        const perch_named_tensor* tensors,
                                                        uint32_t num_tensors, perch_error* error);

/* No call may be in flight. NULL is fine. */
PERCH_EXPORT void PERCH_CALL perch_layer_destroy(perch_layer* layer);

/* What was chosen and what it holds. Strings live as long as the layer. */
typedef struct perch_layer_info {
  uint32_t struct_size;
  uint32_t kind;
  const char* name;
  const char* backend;
  const char* kernel;
  const char* recipe; /* the case line's words for weights, activations and types */
  uint32_t variant;
  uint32_t fallback; /* 1: the rule's first choice could not serve and `fallback: allow` was set */
  perch_device device;
  perch_caps caps;
  uint32_t support_flags; /* PERCH_SUPPORT_* */
  uint32_t num_options;
  const perch_kv* options; /* the compute options in force */
  uint64_t packed_bytes;
  /* (E, T, N of one projection, K, topk): (12, 1, 1856, 2688, 6); linear: (1, T, N, K, 1) */
  int64_t problem_size[5];
  perch_layout layout; /* logical and padded sizes, buffers of this call shape, derived tensors */
} perch_layer_info;

/* Set struct_size, layout.struct_size and layout's capacities first. shape NULL: max_tokens. */
PERCH_EXPORT perch_status PERCH_CALL perch_layer_get_info(perch_layer* layer,
                                                          const perch_call_shape* shape,
                                                          perch_layer_info* info,
                                                          perch_error* error);
/* The document of perch_select, for the choice that made this layer; of a model's layer also
 * "load":{"bytes_read","seconds"}: what was read of the checkpoint and how long packing took. */
PERCH_EXPORT perch_status PERCH_CALL perch_layer_explain(perch_layer* layer, char* json,
                                                         uint64_t capacity, uint64_t* needed,
                                                         perch_error* error);

PERCH_EXPORT perch_status PERCH_CALL perch_layer_workspace(perch_layer* layer,
                                                           const perch_call_shape* shape,
                                                           perch_workspace_req* request,
                                                           perch_error* error);
/* [one per layer] Checks every tensor, then calls the backend. Allocates nothing. A refused call
 * has written nothing. Zero tokens are OK with data NULL. workspace NULL with size 0 is OK where
 * perch_layer_workspace said 0. */
PERCH_EXPORT perch_status PERCH_CALL perch_layer_execute(perch_layer* layer,
                                                         const perch_exec_args* args,
                                                         perch_error* error);

/* ---- Models: a checkpoint's layers ------------------------------------------------------------*/
#define PERCH_ORIENTATION_AUTO 0u       /* what the model_type says */
#define PERCH_ORIENTATION_NATIVE 1u     /* fused experts are [E,2I,H] and [E,H,I] */
#define PERCH_ORIENTATION_TRANSPOSED 2u /* fused experts are [E,H,2I] and [E,I,H] */

#define PERCH_MODEL_ALLOW_UNEXPECTED 0x1u /* tensors that no rule names: warn only */
#define PERCH_MODEL_ALLOW_NAN 0x2u        /* sets PERCH_LAYER_ALLOW_NAN on every layer */

#define PERCH_PLACEMENT_LINEAR 0u      /* runs of experts, one more for the first ranks */
#define PERCH_PLACEMENT_ROUND_ROBIN 1u /* expert e on rank e mod ep_size */

/* Zero everywhere: the whole model, on the CPU, bf16 in and out (or what the config's torch_dtype
 * says), no caps required. All borrowed for the call. */
typedef struct perch_model_opts {
  uint32_t struct_size;
  uint32_t flags; /* PERCH_MODEL_* */
  uint32_t tp_rank;
  uint32_t tp_size; /* 0 = 1 */
  uint32_t ep_rank;
  uint32_t ep_size;     /* 0 = 1 */
  uint32_t orientation; /* PERCH_ORIENTATION_*: overrides the model_type table */
  uint32_t in_dtype;    /* PERCH_TYPE_* or 0 */
  uint32_t out_dtype;   /* PERCH_TYPE_* or 0 */
  perch_device device;  /* 0,0: the CPU */
  uint32_t placement;   /* PERCH_PLACEMENT_* */
  int64_t max_tokens;   /* 0 = 4096 */
  perch_caps require;   /* added to what the rules require */
  perch_caps prefer;
  const char* backend; /* only this backend; NULL: the rules decide */
  /* Convert all weights to this format ("int4g32:bf16"), in place of the rules' `requant`. Lossy:
   * the error is in perch_layer_explain's notes. NULL: the rules decide. */
  const char* requant;
  const perch_ext* next;
} perch_model_opts;

/* Reads config.json and the safetensors headers of a directory; weights are mapped, not read.
 * INVALID_ARGUMENT names file, tensor, what was found and what is wanted. Destroy the model after
 * its layers only if one of them promises ZERO_COPY_WEIGHTS; otherwise in any order. */
PERCH_EXPORT perch_status PERCH_CALL perch_model_open(perch_runtime* runtime, const char* directory,
                                                      const perch_model_opts* opts,
                                                      perch_model** model, perch_error* error);
/* The same from raw tensors in memory, named as in a checkpoint (config_json: the text of its
 * config.json). They are borrowed until perch_model_destroy. */
PERCH_EXPORT perch_status PERCH_CALL perch_canonicalize(
    perch_runtime* runtime, const perch_named_tensor* tensors, uint32_t num_tensors,
    const char* config_json, const perch_model_opts* opts, perch_model** model, perch_error* error);
PERCH_EXPORT void PERCH_CALL perch_model_destroy(perch_model* model);
/* {"model_type","warnings":[...],"layers":[{"name","kind","sizes","recipe","activation","routing",
 * "orientation":{"value","decided_by"},"tensors":[...],"bytes"}]}. A MoE layer may also have
 * "shared_expert":{"module","width","gate"} and "latent":{"width","hidden","down","up"}: modules
 * that the host runs beside it. */
PERCH_EXPORT perch_status PERCH_CALL perch_model_inspect(perch_model* model, char* json,
                                                         uint64_t capacity, uint64_t* needed,
                                                         perch_error* error);
PERCH_EXPORT uint32_t PERCH_CALL perch_model_num_layers(perch_model* model);
/* Lives as long as the model; NULL for an index out of range. */
PERCH_EXPORT const perch_layer_config* PERCH_CALL perch_model_layer_config(perch_model* model,
                                                                           uint32_t index);
/* [num_experts_global], the expert_map to pass to execute under expert parallelism; NULL without.
 * Lives as long as the model. */
PERCH_EXPORT const int32_t* PERCH_CALL perch_model_expert_map(perch_model* model, uint32_t index);
/* perch_select with everything the model knows (its model_type, its layer's name and format). */
PERCH_EXPORT perch_status PERCH_CALL perch_model_explain(perch_model* model, uint32_t index,
                                                         char* json, uint64_t capacity,
                                                         uint64_t* needed, perch_error* error);
/* Chooses, canonicalizes expert by expert, prepares. */
PERCH_EXPORT perch_status PERCH_CALL perch_model_layer(perch_model* model, uint32_t index,
                                                       const perch_stream* stream,
                                                       perch_layer** layer, perch_error* error);
/* Replaces all weights of `layer`, made from layer `index` of another model of the same sizes and
 * format, by this model's; addresses stay. No call of the layer may be in flight. Everything is
 * checked first: on an error the old weights still answer. UNSUPPORTED where the backend cannot. */
PERCH_EXPORT perch_status PERCH_CALL perch_model_update(perch_model* model, uint32_t index,
                                                        perch_layer* layer, perch_error* error);
/* Canonical tensors of one expert (-1: of a linear layer) by backend.h's names, *tensors' own. */
PERCH_EXPORT perch_status PERCH_CALL perch_model_tensors(perch_model* model, uint32_t index,
                                                         int32_t expert, perch_tensors** tensors,
                                                         perch_error* error);

/* ---- Agreement --------------------------------------------------------------------------------*/
/* How far y is from what it should be, element by element, within
 *   |y - expected| <= 1.5 (u_out |expected| + u_mid S_mid + u_w S + (2 sqrt K + 4) u_f32 S)
 * with S the sum of absolute products carried through the layer. ratio = difference / allowed. */
typedef struct perch_comparison {
  uint32_t struct_size;
  uint32_t ok; /* 1: every ratio is at most 1, no row's differences exceed 2/3 of its limits in L2
                * norm, and NaNs and infinities are where exact arithmetic has them */
  double worst_ratio;
  int64_t worst_row;
  int64_t worst_column;
  double got;
  double want;
  double allowed;
  double worst_row_l2; /* the largest relative L2 error of a row */
} perch_comparison;
PERCH_EXPORT perch_status PERCH_CALL perch_model_compare(
    perch_model* model, uint32_t index, perch_layer* layer, const perch_exec_args* args,
    const DLTensor* expected, perch_comparison* comparison, perch_error* error);

/* ---- Routing ----------------------------------------------------------------------------------*/
#define PERCH_ROUTE_SOFTMAX 1u      /* p = softmax over all E, then topk */
#define PERCH_ROUTE_TOPK_SOFTMAX 2u /* topk, then softmax over the chosen */
#define PERCH_ROUTE_SIGMOID 3u      /* s = sigmoid, topk of s + bias, weights from s */
#define PERCH_ROUTE_TOPK_SIGMOID 4u /* topk, then sigmoid of the chosen */
/* topk times: the best expert e left, weighted by its softmax over those left whose logit x lies
 * near its own, (x_e - x) / max(|x|, x_e) <= 2 jitter */
#define PERCH_ROUTE_SPARSEMIXER 5u
#define PERCH_ROUTE_SQRT_SOFTPLUS 6u /* as SIGMOID, with s = sqrt(ln(1 + exp x)) */

#define PERCH_ROUTE_RENORMALIZE 0x1u /* divide the weights by max(sum + sum_add, sum_min) */

#define PERCH_ROUTE_GROUP_TOP2 0u /* a group's score: the sum of its two largest s + bias */
#define PERCH_ROUTE_GROUP_MAX 1u  /* its largest */

/* "What if the logits are NaN or infinite?" ids are always in range and distinct and weights
 * finite. A NaN logit, and a logit of -infinity, is never chosen while another is left; +infinity
 * takes all the weight; equal scores go to the lower id; a sum of 0 leaves weights 0, and a product
 * with a scale stops at the largest float. */
typedef struct perch_route_config {
  uint32_t struct_size;
  uint32_t scoring; /* PERCH_ROUTE_SOFTMAX ... */
  uint32_t num_experts;
  uint32_t topk;
  uint32_t num_groups;  /* 0 or 1: no groups */
  uint32_t topk_groups; /* groups kept, by group_score */
  uint32_t flags;       /* PERCH_ROUTE_RENORMALIZE */
  float scale;          /* the weights are multiplied by it; 0 = 1 */
  const float* bias;    /* NULL or [E]: decides the choice, not the weights */
  uint32_t group_score; /* PERCH_ROUTE_GROUP_* */
  float sum_add;        /* read under RENORMALIZE, likewise the next; 0 or more */
  float sum_min;
  float jitter;              /* of SPARSEMIXER; 0 or more */
  const float* expert_scale; /* NULL or [E]: expert e's weight is multiplied by its entry */
  const perch_ext* next;
} perch_route_config;

/* logits f32 [T,E] -> ids int32 [T,topk], in descending order of score, and weights f32 [T,topk].
 * A row depends on nothing but its own logits. Formulas: contract of the routing ids R1..R9. */
PERCH_EXPORT perch_status PERCH_CALL perch_route(const perch_route_config* config,
                                                 const DLTensor* logits, const DLTensor* ids,
                                                 const DLTensor* weights, perch_error* error);
/* NULL where layer `index` has no router. Lives as long as the model. */
PERCH_EXPORT const perch_route_config* PERCH_CALL perch_model_route_config(perch_model* model,
                                                                           uint32_t index);
/* x [T, H of the router] -> logits f32 [T,E] = x * router^T (+ router bias), accumulated in f64 and
 * rounded once. */
PERCH_EXPORT perch_status PERCH_CALL perch_model_router_logits(perch_model* model, uint32_t index,
                                                               const DLTensor* x,
                                                               const DLTensor* logits,
                                                               perch_error* error);

/* ---- Tensors ----------------------------------------------------------------------------------*/
/* The tensors of one safetensors file, mapped read-only. */
PERCH_EXPORT perch_status PERCH_CALL perch_tensors_open(const char* path, perch_tensors** tensors,
                                                        perch_error* error);
PERCH_EXPORT uint32_t PERCH_CALL perch_tensors_count(const perch_tensors* tensors);
/* NULL for an index out of range, or a name that is absent. Lives as long as `tensors`. Data may be
 * unaligned. */
PERCH_EXPORT const perch_named_tensor* PERCH_CALL perch_tensors_get(const perch_tensors* tensors,
                                                                    uint32_t index);
PERCH_EXPORT const perch_named_tensor* PERCH_CALL perch_tensors_find(const perch_tensors* tensors,
                                                                     const char* name);
PERCH_EXPORT void PERCH_CALL perch_tensors_destroy(perch_tensors* tensors);

/* The rules a tensor must meet before any backend sees it: rank ndim, dims of `shape` (-1: any),
 * codes and bits from the list, C order, size and alignment without overflow.
 * dtype: PERCH_TYPE_*, or 0 for any. argument: the name to use in the message. */
PERCH_EXPORT perch_status PERCH_CALL perch_tensor_check(const char* argument,
                                                        const DLTensor* tensor, uint64_t flags,
                                                        uint32_t dtype, const int64_t* shape,
                                                        int32_t ndim, perch_error* error);

/* Takes over a producer's DLManagedTensor or DLManagedTensorVersioned. The runtime calls its
 * deleter exactly once, here on failure and in perch_tensor_release otherwise. */
PERCH_EXPORT perch_status PERCH_CALL perch_import_dlpack(void* managed, perch_tensor** tensor,
                                                         perch_error* error);
PERCH_EXPORT perch_status PERCH_CALL perch_import_dlpack_versioned(void* managed,
                                                                   perch_tensor** tensor,
                                                                   perch_error* error);
PERCH_EXPORT const perch_named_tensor* PERCH_CALL perch_tensor_view(const perch_tensor* tensor);
PERCH_EXPORT void PERCH_CALL perch_tensor_release(perch_tensor* tensor);

PERCH_EXTERN_C_END
#endif /* PERCH_RUNTIME_H_ */
