/* layer.h - what a layer is: its numbers, its sizes, its call.
 *
 * For: everyone, after base.h. Next: backend.h for kernel authors, runtime.h for hosts.
 * Two rules that must not be broken: sizes are logical, padding is the backend's private business;
 * and a field, flag or enumerator that a reader does not know is refused, never guessed.
 *
 * Letters used everywhere: T tokens, E experts, H hidden, I intermediate, N output features,
 * K the contraction dimension, G groups along K. The number of experts a token uses is `topk`.
 * Enumerators start at 1 and NONE is one of them: 0 means that somebody forgot.
 */
#ifndef PERCH_LAYER_H_
#define PERCH_LAYER_H_

#include <perch/base.h>

PERCH_EXTERN_C_BEGIN

/* ---- Number types -------------------------------------------------------------------------------
 * "Why not DLPack's codes?" Half of these have none, and old headers lack the others.
 * INTb codes are unsigned, 0..2^b-1; what they mean is zero_kind's business. LUT4 is a 4-bit code
 * into a table of 16 f32 values (nf4, iq4_nl). Float codes are the OCP formats. */
#define PERCH_TYPE_NONE 1u
#define PERCH_TYPE_F32 2u
#define PERCH_TYPE_F16 3u
#define PERCH_TYPE_BF16 4u
#define PERCH_TYPE_INT1 5u /* INT1 .. INT8 are consecutive: INTb is PERCH_TYPE_INT1 + b - 1 */
#define PERCH_TYPE_INT2 6u
#define PERCH_TYPE_INT3 7u
#define PERCH_TYPE_INT4 8u
#define PERCH_TYPE_INT5 9u
#define PERCH_TYPE_INT6 10u
#define PERCH_TYPE_INT7 11u
#define PERCH_TYPE_INT8 12u
#define PERCH_TYPE_E4M3FN 13u
#define PERCH_TYPE_E5M2 14u
#define PERCH_TYPE_E3M2 15u
#define PERCH_TYPE_E2M3 16u
#define PERCH_TYPE_E2M1 17u
#define PERCH_TYPE_LUT4 18u
#define PERCH_TYPE_E8M0 19u /* scales only: 2^(code-127) */

/* ---- One weight matrix [N,K] --------------------------------------------------------------------
 *   value(n,k) = (code(n,k) - zero(n,g)) * scale(n,g) * scale2(n) + offset(n,g),  in f32
 *   g = k / group_k, or g_idx[k]
 *
 * "Where do formats like GPTQ or NVFP4 appear?" Nowhere: each is a point of this algebra, so a new
 * checkpoint format is a new reader and never a new kernel contract. */
#define PERCH_SCALE_NONE 1u
#define PERCH_SCALE_TENSOR 2u  /* [1] */
#define PERCH_SCALE_CHANNEL 3u /* [N] */
#define PERCH_SCALE_GROUP 4u   /* [N, G], G = ceil(K / group_k) or num_groups */
#define PERCH_SCALE_BLOCK 5u   /* [ceil(N / group_n), ceil(K / group_k)] */

#define PERCH_SCALE2_NONE 1u
#define PERCH_SCALE2_TENSOR 2u  /* f32 [1], multiplied */
#define PERCH_SCALE2_CHANNEL 3u /* f32 [N], multiplied */

#define PERCH_ZERO_MIDPOINT 1u /* 2^(b-1): the symmetric case */
#define PERCH_ZERO_NONE 2u     /* 0 */
#define PERCH_ZERO_INT 3u      /* uint8 [N, G], one code of the weight's width per byte */
#define PERCH_ZERO_FLOAT 4u    /* f32 [N, G] */

#define PERCH_OFFSET_NONE 1u
#define PERCH_OFFSET_GROUP 2u /* f32 [N, G], added after scaling */

#define PERCH_K_NATURAL 1u
#define PERCH_K_G_IDX 2u /* the group of column k is g_idx[k] (act-order) */

#define PERCH_QUANT_HAS_BIAS 0x1u      /* bias [N] is added to the sum */
#define PERCH_QUANT_HAS_PRE_SCALE 0x2u /* x is first multiplied by pre_scale [K], in f32 */

/* Types other than INTb and LUT4 have zero_kind NONE. F32, F16 and BF16 weights may have
 * scale_kind NONE and then scale_dtype NONE. K % group_k != 0 is legal: the last group is short. */
typedef struct perch_quant {
  uint32_t struct_size;
  uint32_t weight;      /* PERCH_TYPE_* but E8M0 */
  uint32_t scale_kind;  /* PERCH_SCALE_* */
  uint32_t scale_dtype; /* NONE F32 F16 BF16 E4M3FN E5M2 E8M0 */
  uint32_t group_k;     /* elements of K that share a scale; 0 unless GROUP or BLOCK */
  uint32_t group_n;     /* rows that share a scale; 0 unless BLOCK */
  uint32_t scale2_kind; /* PERCH_SCALE2_* */
  uint32_t zero_kind;   /* PERCH_ZERO_* */
  uint32_t offset_kind; /* PERCH_OFFSET_* */
  uint32_t k_order;     /* PERCH_K_* */
  uint32_t num_groups;  /* 0 = ceil(K / group_k); a K slice under G_IDX keeps all groups */
  uint32_t flags;       /* PERCH_QUANT_HAS_* */
  const perch_ext* next;
} perch_quant;

/* ---- The input of one GEMM ----------------------------------------------------------------------
 * Formulas of scale s and code, r = 1/s rounded once in f32, round to nearest even, saturating:
 *   INT8 TOKEN, GROUP        s = absmax/127 (0 -> 1)      clamp(rne(x*r), -127, 127)
 *   E4M3FN TOKEN, GROUP      s = absmax/448 (0 -> 1)      e4m3(x*r), saturating at 448
 *   either with E8M0 scales  s = smallest 2^e >= absmax/Qmax (0 -> 1)
 *   E2M1 STATIC_GROUP        s = g*t, t = input_scale, g = e4m3(absmax/(6*t)); g 0 -> codes 0
 *   E2M1 GROUP, E8M0         s = smallest 2^e >= absmax/6
 *   STATIC                   s = input_scale
 * "Why no dynamic per-tensor scale?" It would let one row change another: not batch invariant. */
#define PERCH_ACT_NONE 1u
#define PERCH_ACT_TOKEN 2u
#define PERCH_ACT_GROUP 3u
#define PERCH_ACT_STATIC 4u
#define PERCH_ACT_STATIC_GROUP 5u

typedef struct perch_act_quant {
  uint32_t struct_size;
  uint32_t dtype;       /* NONE INT8 E4M3FN E2M1 */
  uint32_t mode;        /* PERCH_ACT_*: NONE exactly when dtype is NONE */
  uint32_t group;       /* elements of K that share a scale; 0 unless GROUP or STATIC_GROUP */
  uint32_t scale_dtype; /* NONE F32 E8M0 E4M3FN */
  uint32_t reserved0;
  const perch_ext* next;
} perch_act_quant;

/* y [T,N] = x [T,K] * W^T + bias. weight is never NULL; act NULL means not quantized. */
typedef struct perch_linear_config {
  uint32_t struct_size;
  uint32_t reserved0;
  int64_t out_features; /* N */
  int64_t in_features;  /* K */
  const perch_quant* weight;
  const perch_act_quant* act;
  const perch_ext* next;
} perch_linear_config;

/* ---- Activations --------------------------------------------------------------------------------
 * "Is the layer gated?" Ask the activation, with perch_activation_is_gated, and nothing else.
 * g gate, u up, L = act_limit, and the names are those the field uses:
 *   SILU        silu(min(g,L)) * clamp(u,-L,L); without L the clamps are absent
 *   GELU        0.5 g (1 + erf(g/sqrt 2)) * u
 *   GELU_TANH   0.5 g (1 + tanh(0.7978845608 (g + 0.044715 g^3))) * u
 *   SWIGLUOAI   g' = min(g,L), u' = clamp(u,-L,L): g' sigmoid(alpha g') (u' + beta), on halves
 *   SWIGLUSTEP  min(silu(g),L) * clamp(u,-L,L)
 *   RELU2       max(g,0)^2 * u
 *   SITU        beta tanh(g/beta) sigmoid(g) U, U = u, or alpha tanh(u/alpha) where alpha > 0
 *   *_NO_MUL    the unary function alone (RELU2_NO_MUL is max(h,0)^2)
 * A parameter that the activation does not use must be absent; one that it needs must be present:
 * SWIGLUOAI needs limit, alpha, beta; SWIGLUSTEP needs limit; SITU needs beta, alpha may be absent
 * (0); SILU may have a limit. */
#define PERCH_ACTIVATION_SILU 1u
#define PERCH_ACTIVATION_GELU 2u
#define PERCH_ACTIVATION_GELU_TANH 3u
#define PERCH_ACTIVATION_SWIGLUOAI 4u
#define PERCH_ACTIVATION_SWIGLUSTEP 5u
#define PERCH_ACTIVATION_RELU2 6u
#define PERCH_ACTIVATION_SITU 7u
#define PERCH_ACTIVATION_SILU_NO_MUL 8u
#define PERCH_ACTIVATION_GELU_NO_MUL 9u
#define PERCH_ACTIVATION_GELU_TANH_NO_MUL 10u
#define PERCH_ACTIVATION_RELU2_NO_MUL 11u

#define PERCH_MOE_HAS_ALPHA 0x1u
#define PERCH_MOE_HAS_BETA 0x2u
#define PERCH_MOE_HAS_LIMIT 0x4u
/* topk = 1 only: x * w in f32, rounded once to in_dtype; the output is then not weighted. */
#define PERCH_MOE_ROUTER_WEIGHT_ON_INPUT 0x8u

#define PERCH_FORM_STANDARD 1u /* x [T,H], ids and weights [T,topk], y [T,H] */
#define PERCH_FORM_BATCHED 2u  /* x, y [E,Tmax,H], counts [E]: rows past a count are not written */
#define PERCH_FORM_GROUPED 3u  /* x, y [R,H] sorted by expert, offsets [E+1] */

/* w13 is [GU,H] per expert, gate rows first, then up rows; w2 is [H,I].
 * "Why is the intermediate width not w13's N / 2?" Because non-gated experts have no gate: GU is
 * 2I when the activation is gated and I when it is not, and K of w2 is I always. Take every width
 * from `intermediate` and perch_gate_up_width, never from the rows of a tensor. */
typedef struct perch_moe_config {
  uint32_t struct_size;
  uint32_t num_experts;        /* E held here; 0 on a rank without experts, whose y is 0 */
  uint32_t num_experts_global; /* E of the model: ids are global, expert_map makes them local */
  uint32_t topk;
  int64_t hidden;       /* H, logical */
  int64_t intermediate; /* I of this slice, logical */
  uint32_t activation;  /* PERCH_ACTIVATION_* */
  uint32_t flags;       /* PERCH_MOE_* */
  float act_alpha;      /* read only under HAS_ALPHA, likewise the next two */
  float act_beta;
  float act_limit;
  uint32_t form; /* PERCH_FORM_* */
  const perch_quant* w13;
  const perch_quant* w2;
  const perch_act_quant* act13; /* NULL: not quantized; a backend never sees NULL here */
  const perch_act_quant* act2;
  const perch_ext* next;
} perch_moe_config;

static inline int perch_activation_is_gated(uint32_t activation) {
  return activation >= PERCH_ACTIVATION_SILU && activation <= PERCH_ACTIVATION_SITU;
}
/* N of w13: 2I gated, I not. Every width in Perch comes from here. */
static inline int64_t perch_gate_up_width(uint32_t activation, int64_t intermediate) {
  return perch_activation_is_gated(activation) ? 2 * intermediate : intermediate;
}

/* ---- The layer --------------------------------------------------------------------------------*/
#define PERCH_KIND_LINEAR 1u
#define PERCH_KIND_MOE 2u

/* NaN codes in weights or scales (e8m0 255, e4m3 0x7F) are refused at prepare unless it is set. */
#define PERCH_LAYER_ALLOW_NAN 0x1u

/* Borrowed for the call: a callee that needs it longer copies it. Exactly the pointer of `kind` is
 * non-NULL. options are compute choices (ISA level, stream-k, ...); a backend refuses a key that it
 * does not know. */
typedef struct perch_layer_config {
  uint32_t struct_size;
  uint32_t kind; /* PERCH_KIND_* */
  perch_device device;
  uint32_t in_dtype;  /* F32 F16 BF16 */
  uint32_t out_dtype; /* F32 F16 BF16 */
  perch_caps require; /* every one must be promised */
  perch_caps prefer;  /* more of these ranks higher */
  int64_t max_tokens; /* the largest num_tokens that will ever be asked for */
  const char* name;   /* for messages and rules; never NULL, may be "" */
  const perch_kv* options;
  uint32_t num_options;
  uint32_t flags; /* PERCH_LAYER_* */
  const perch_linear_config* linear;
  const perch_moe_config* moe;
  const perch_ext* next;
} perch_layer_config;

/* ---- The answer to "may I run this?" ----------------------------------------------------------*/
#define PERCH_REASON_DTYPE 1
#define PERCH_REASON_SHAPE 2
#define PERCH_REASON_ALIGNMENT 3
#define PERCH_REASON_GROUP 4
#define PERCH_REASON_PACKING 5
#define PERCH_REASON_TOPK 6
#define PERCH_REASON_ACTIVATION 7
#define PERCH_REASON_DEVICE 8
#define PERCH_REASON_DRIVER 9
#define PERCH_REASON_CAP_MISSING 10
#define PERCH_REASON_EXT_UNKNOWN 11
#define PERCH_REASON_FIELD_UNKNOWN 12
#define PERCH_REASON_MEMORY 13
#define PERCH_REASON_DISABLED 14
#define PERCH_REASON_LOAD 15
#define PERCH_REASON_ABI 16
#define PERCH_REASON_POLICY 17
#define PERCH_REASON_INTERNAL 18
#define PERCH_REASON_OPTION 19

/* Why not, in a form that a person and a program can both use. */
typedef struct perch_reason {
  int32_t code; /* PERCH_REASON_* */
  uint32_t reserved0;
  char field[56]; /* the config's field: "moe.w13.group_k" */
  char text[192]; /* "want a multiple of 32, got 48" */
} perch_reason;
PERCH_STATIC_ASSERT(sizeof(perch_reason) == 256, "perch_reason layout");

#define PERCH_VERDICT_YES 1u
#define PERCH_VERDICT_NO 2u

/* The kernel rounds code * scale once to its operand type where the product is not exact in it. */
#define PERCH_SUPPORT_ROUNDS_WEIGHTS 0x1u

/* The caller owns it and sets struct_size, reasons and reasons_capacity; the backend writes all
 * else. num_reasons counts all reasons, also those for which there was no room: the caller asks
 * again with more. "Why all and not the first?" A user who fixes one wants to know the next. */
typedef struct perch_support {
  uint32_t struct_size;
  uint32_t verdict; /* PERCH_VERDICT_* */
  uint32_t variant; /* the variant asked about */
  int32_t score;    /* 0..1000, compared only between variants on devices of one type */
  perch_caps caps;  /* promised for exactly this config */
  uint32_t flags;   /* PERCH_SUPPORT_* */
  uint32_t align;   /* bytes that x and y must be aligned to; 0 = their element size */
  uint64_t packed_bytes;
  uint64_t workspace_bytes; /* for max_tokens */
  char kernel[64];          /* the kernel's name, as logs and benches print it */
  uint32_t num_reasons;
  uint32_t reasons_capacity;
  perch_reason* reasons; /* NULL when reasons_capacity is 0 */
  const perch_ext* next;
} perch_support;

/* ---- Layout: what a layer really holds ----------------------------------------------------------
 * "How wide is the buffer between the two GEMMs?" Answered per buffer, by name: gate_up_output is
 * perch_gate_up_width wide, activation_output is I wide. Buffers with the same alias_group share
 * memory; group 0 is the workspace's own, never y. The three leafs below are frozen. */
typedef struct perch_matrix_layout {
  char name[8]; /* "w13" "w2" "w" */
  int64_t n;    /* logical */
  int64_t k;
  int64_t n_padded; /* n_padded - n is this backend's padding; gate and up are padded each */
  int64_t k_padded;
} perch_matrix_layout;

typedef struct perch_buffer_layout {
  char name[32];
  uint32_t dtype; /* PERCH_TYPE_* */
  uint32_t alias_group;
  int64_t shape[2]; /* rows, width */
} perch_buffer_layout;

/* A tensor that the backend made and the checkpoint does not have. */
typedef struct perch_derived_layout {
  char name[32];
  int64_t shape[2];
  uint32_t dtype;
  uint32_t lossy; /* 1: it cannot reproduce the checkpoint's values */
} perch_derived_layout;

/* Caller-owned, filled like perch_support: the capacities are the caller's, the counts are full. */
typedef struct perch_layout {
  uint32_t struct_size;
  uint32_t num_matrices; /* 1 linear, 2 MoE: the callee fills matrices[0 .. num_matrices) */
  perch_matrix_layout matrices[2];
  uint32_t num_buffers;
  uint32_t buffers_capacity;
  perch_buffer_layout* buffers;
  uint32_t num_derived;
  uint32_t derived_capacity;
  perch_derived_layout* derived;
  const perch_ext* next;
} perch_layout;

/* ---- A call -----------------------------------------------------------------------------------*/
/* Where device work is enqueued. handle is a cudaStream_t; NULL on the CPU. */
#define PERCH_STREAM_LEGACY_DEFAULT 0x1u /* NULL really means CUDA's legacy default stream */
typedef struct perch_stream {
  perch_device device;
  void* handle;
  uint32_t flags;
  uint32_t reserved0;
} perch_stream;

typedef struct perch_call_shape {
  uint32_t struct_size;
  uint32_t form;      /* PERCH_FORM_*: the config's */
  int64_t num_tokens; /* STANDARD T, BATCHED Tmax, GROUPED rows */
} perch_call_shape;

/* "How much workspace?" Never less for more tokens, and 0 is allowed. Its content is undefined on
 * entry: nothing lives there between calls. */
typedef struct perch_workspace_req {
  uint32_t struct_size;
  uint32_t align; /* a power of two, at most 4096 */
  uint64_t bytes;
  uint64_t flags;
} perch_workspace_req;

/* "What may alias?" y must not overlap x, the routing or the workspace; the runtime refuses it.
 * The exceptions are promises: INPLACE (y is exactly x) and Y_MAY_ALIAS_WORKSPACE.
 * All tensors are borrowed: on the CPU until execute returns, on a device until the stream passed.
 *
 * topk_ids are global ids, int32 or int64. An id < 0, or one that expert_map sends to -1,
 * contributes exactly 0 and its expert's memory is not read. An id >= num_experts_global is refused
 * by the runtime on host tensors and contributes 0 on a GPU. Duplicates in a row count twice. */
typedef struct perch_exec_args {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  const DLTensor* x;
  const DLTensor* x_scale; /* NULL, or x is quantized already (PREQUANTIZED_INPUT) */
  const DLTensor* y;
  const DLTensor* topk_ids;       /* STANDARD */
  const DLTensor* topk_weights;   /* STANDARD, f32 */
  const DLTensor* expert_map;     /* NULL, or int32 [num_experts_global]: local expert or -1 */
  const DLTensor* expert_counts;  /* BATCHED: int32 or int64 [E] */
  const DLTensor* expert_offsets; /* GROUPED: int64 [E+1] */
  void* workspace;
  uint64_t workspace_bytes;
  perch_stream stream;
  const perch_ext* next;
} perch_exec_args;

PERCH_EXTERN_C_END
#endif /* PERCH_LAYER_H_ */
