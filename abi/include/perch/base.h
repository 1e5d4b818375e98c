/* base.h - the vocabulary that the host API and the backend ABI share.
 *
 * For: everyone. Read this first, then layer.h, then backend.h (you write kernels) or runtime.h
 * (you run layers).
 * Two rules that must not be broken: every struct that crosses starts with its own sizeof, set by
 * the side that made it; and nothing that crosses is freed by the other side.
 *
 * Status of this ABI: draft. Numbers may change until a CPU and a CUDA backend have both used it;
 * then it is frozen under abi/1.0. The rules it grows by, R1..R15, stand in abi/README.md.
 */
#ifndef PERCH_BASE_H_
#define PERCH_BASE_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#define PERCH_ABI_MAJOR 1u
#define PERCH_ABI_MINOR 0u
#define PERCH_ABI_MAGIC 0x48435250u /* the bytes "PRCH" */

#if defined(_WIN32)
#define PERCH_CALL __cdecl
#define PERCH_EXPORT __declspec(dllexport)
#else
#define PERCH_CALL
#define PERCH_EXPORT __attribute__((visibility("default")))
#endif

#if defined(__cplusplus)
#define PERCH_STATIC_ASSERT(c, m) static_assert(c, m)
#define PERCH_EXTERN_C_BEGIN extern "C" {
#define PERCH_EXTERN_C_END }
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define PERCH_STATIC_ASSERT(c, m) _Static_assert(c, m)
#define PERCH_EXTERN_C_BEGIN
#define PERCH_EXTERN_C_END
#else
#define PERCH_SA_CAT2(a, b) a##b
#define PERCH_SA_CAT(a, b) PERCH_SA_CAT2(a, b)
#define PERCH_STATIC_ASSERT(c, m) \
  typedef char PERCH_SA_CAT(perch_static_assert_, __LINE__)[(c) ? 1 : -1]
#define PERCH_EXTERN_C_BEGIN
#define PERCH_EXTERN_C_END
#endif

/* "May I read field f of this struct?" Only when its writer knew f: true when struct_size covers f.
 * A field that is not covered reads as 0, and 0 always means "as before f existed". */
#define PERCH_HAS_FIELD(p, T, f) ((p)->struct_size >= offsetof(T, f) + sizeof(((T*)0)->f))

PERCH_EXTERN_C_BEGIN

/* ---- Status -------------------------------------------------------------------------------------
 * "Why int32_t and not an enum?" The width of a C enum is the compiler's choice. A positive code
 * that the caller does not know is treated as INTERNAL. */
typedef int32_t perch_status;
#define PERCH_OK 0
#define PERCH_E_INVALID_ARGUMENT 1 /* the caller gave something wrong; the message names it */
#define PERCH_E_UNSUPPORTED 2      /* legal, but not offered here; the message says what is */
#define PERCH_E_NOT_FOUND 3        /* a file, layer, tensor or backend of that name is absent */
#define PERCH_E_ABI_MISMATCH 4     /* the two sides were built for different versions */
#define PERCH_E_OUT_OF_MEMORY 5
#define PERCH_E_DEVICE 6 /* the device or its driver failed; native_code holds its number */
#define PERCH_E_INTERNAL 7
#define PERCH_E_EXCEPTION 8 /* a C++ exception stopped at the border; the message is its what() */
#define PERCH_E_BUSY 9
#define PERCH_E_BUFFER_TOO_SMALL 10 /* the needed size was written to its out parameter */
#define PERCH_E_CONTRACT 11         /* the other side broke a rule of this ABI */
#define PERCH_E_PERMISSION 12

/* "Who owns the text of an error?" The caller: it lends this struct, which may live on its stack,
 * so reporting allocates nothing and works when memory is out. Every function takes it last and
 * takes NULL for "no text please". Set struct_size; the callee writes the rest, on failure only. */
typedef struct perch_error {
  uint32_t struct_size;
  perch_status code;
  int32_t native_code;  /* errno, cudaError_t, or 0 */
  uint32_t message_len; /* full length in bytes, even where message holds only its beginning */
  char message[496];    /* UTF-8, one line, always NUL-terminated */
} perch_error;
PERCH_STATIC_ASSERT(sizeof(perch_error) == 512, "perch_error layout");
#define PERCH_ERROR_INIT {(uint32_t)sizeof(perch_error), 0, 0, 0, {0}}

/* One option. Both strings are borrowed for the call, UTF-8, NUL-terminated, never NULL. */
typedef struct perch_kv {
  const char* key;
  const char* value;
} perch_kv;

/* ---- Extension chain ----------------------------------------------------------------------------
 * "How does a struct learn something new that an old receiver must not ignore?" Through a chained
 * extension with MUST_UNDERSTAND: a receiver that does not know `type` answers UNSUPPORTED and
 * names the number. Without the flag it may be skipped. Types: 1..9999 this project, 10000..59999
 * registered in abi/README.md, 60000 and up drafts. */
#define PERCH_EXT_MUST_UNDERSTAND 0x1u
typedef struct perch_ext {
  uint32_t struct_size;
  uint32_t type;
  uint32_t flags;
  uint32_t reserved0;
  const struct perch_ext* next;
} perch_ext;

/* ---- Capabilities -------------------------------------------------------------------------------
 * "What is a capability?" A promise that a backend makes for one exact config, and that
 * a named test holds it to. Ask for it in perch_layer_config.require; a backend that cannot
 * promise it is then no candidate, and the report says so.
 *
 * "What is BATCH_INVARIANT for?" A user's answer must not change because other users' rows shared
 * the batch. The bytes of output row i may depend only on row i of x, its routing, the weights and
 * the config: not on num_tokens, the row's position, other rows, the workspace size or the thread
 * count. A scale taken over the whole batch, or a split of K chosen from T, breaks it. */
typedef uint64_t perch_caps;
/* same inputs, library, device model: the same bits every run, at any thread count */
#define PERCH_CAP_DETERMINISTIC ((perch_caps)1 << 0)
#define PERCH_CAP_BATCH_INVARIANT ((perch_caps)1 << 1)
/* a row does not change with how many rows share its expert (BATCH_INVARIANT implies it) */
#define PERCH_CAP_EXPERT_LOAD_INVARIANT ((perch_caps)1 << 2)
/* execute may be captured in a CUDA graph: no sync, no allocation, no host read of device data */
#define PERCH_CAP_GRAPH_CAPTURE ((perch_caps)1 << 3)
/* execute only enqueues on the stream */
#define PERCH_CAP_ASYNC ((perch_caps)1 << 4)
/* execute allocates neither host nor device memory */
#define PERCH_CAP_NO_ALLOC_EXECUTE ((perch_caps)1 << 5)
/* one prepared layer may execute on many threads at once, each with its own workspace */
#define PERCH_CAP_CONCURRENT_EXECUTE ((perch_caps)1 << 6)
/* y may be exactly x: same address, shape and strides */
#define PERCH_CAP_INPLACE ((perch_caps)1 << 7)
/* every reduction over K is in f32 or wider, or in exact int32 */
#define PERCH_CAP_FP32_ACCUM ((perch_caps)1 << 8)
/* rows of x and y may lie further apart than their length */
#define PERCH_CAP_ROW_STRIDED_ACT ((perch_caps)1 << 9)
/* prepare keeps pointers to the caller's weights, which must outlive the prepared layer */
#define PERCH_CAP_ZERO_COPY_WEIGHTS ((perch_caps)1 << 10)
/* all CPU work runs through the host's parallel_for; the backend starts no thread */
#define PERCH_CAP_THREADS_FROM_HOST ((perch_caps)1 << 11)
/* y may overlap the workspace: nothing in the overlap is read once y is being written */
#define PERCH_CAP_Y_MAY_ALIAS_WORKSPACE ((perch_caps)1 << 12)
/* x may arrive already quantized as act13 or act says, with x_scale */
#define PERCH_CAP_PREQUANTIZED_INPUT ((perch_caps)1 << 13)
#define PERCH_CAPS_KNOWN (((perch_caps)1 << 14) - 1)

/* ---- Devices and tensors ------------------------------------------------------------------------
 * A device in DLPack's numbers: kDLCPU 1, kDLCUDA 2. device_id is 0 for the CPU. */
typedef struct perch_device {
  int32_t device_type;
  int32_t device_id;
} perch_device;
PERCH_STATIC_ASSERT(sizeof(perch_device) == sizeof(DLDevice), "perch_device");
PERCH_STATIC_ASSERT(sizeof(DLDeviceType) == 4, "built with -fshort-enums?");
PERCH_STATIC_ASSERT(sizeof(DLTensor) == 48 || sizeof(void*) != 8, "DLTensor layout");

/* "Which dlpack.h?" Any from 0.5 on: DLTensor has not changed. These are the codes that older
 * headers lack; newer headers are checked against them. */
#define PERCH_DL_BOOL 6
#define PERCH_DL_F8_E4M3FN 10
#define PERCH_DL_F8_E5M2 12
#define PERCH_DL_F8_E8M0FNU 14
#define PERCH_DL_F4_E2M1FN 17
#if defined(DLPACK_MAJOR_VERSION) && (DLPACK_MAJOR_VERSION > 1 || DLPACK_MINOR_VERSION >= 1)
PERCH_STATIC_ASSERT((int)PERCH_DL_F8_E4M3FN == (int)kDLFloat8_e4m3fn &&
                        (int)PERCH_DL_F8_E8M0FNU == (int)kDLFloat8_e8m0fnu &&
                        (int)PERCH_DL_F4_E2M1FN == (int)kDLFloat4_e2m1fn,
                    "DLPack codes");
#endif

/* A tensor with its role's name. "Why names and not positions?" Formats differ in which tensors
 * they have; a name that is not known, or one that is missing, is refused by name. Both pointers
 * are borrowed for the call. flags are DLPack's, which DLTensor itself cannot carry. */
#define PERCH_TENSOR_READ_ONLY 1u
#define PERCH_TENSOR_SUBBYTE_PADDED 4u
typedef struct perch_named_tensor {
  const char* name;
  const DLTensor* tensor;
  uint64_t flags;
} perch_named_tensor;

/* Levels of log messages. The last two name a side that broke a rule. */
#define PERCH_LOG_DEBUG 10
#define PERCH_LOG_INFO 20
#define PERCH_LOG_WARN 30
#define PERCH_LOG_ERROR 40
#define PERCH_LOG_HOST_MISUSE 50
#define PERCH_LOG_BACKEND_MISUSE 51

PERCH_EXTERN_C_END
#endif /* PERCH_BASE_H_ */
