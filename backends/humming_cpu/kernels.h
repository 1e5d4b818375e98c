// kernels.h - what the per-ISA files offer to the rest, and the only thing that is shared by both.
//
// Plain structs and function pointers: code built for one ISA level must not meet code built for
// another, so no inline function and no template of the C++ library is used behind this line (the
// linker would keep one copy, perhaps the one this CPU cannot run).
#pragma once

#include <cstdint>

#include "isa.h"
#include "perch/layer.h"

namespace humming_cpu {

enum class Weight : int32_t { bf16, int4, int4z, any };
enum class Number : int32_t { none, f32, f16, bf16 };  // scales in a panel, elements of x and y

inline constexpr int32_t kPanel = 32;  // columns of a panel: two vectors of 16 lanes
inline constexpr int32_t kLanes = 16;
inline constexpr int32_t kRowsMax = 64;     // rows of one gemm call
inline constexpr int32_t kUnitK = 8;        // k that codes of `any` are packed by
inline constexpr int32_t kAnyBlockK = 128;  // k that `any` decodes at once: 16 KiB of f32
inline constexpr int32_t kPanelsMax = 4;    // panels of one gemm call

// How `any` reads a panel: every weight type with every scale, zero point and offset. pack.h draws
// it. value = (code - zero) * (scale * scale2) + offset, what is not there being left out.
struct AnyFormat {
  uint32_t type;        // PERCH_TYPE_* of the codes
  uint32_t scale_type;  // PERCH_TYPE_NONE: no scale
  float zero;           // where no zero point is stored; 0 for codes that are numbers themselves
  bool has_zero_int, has_zero_float, has_offset, has_scale2;
  int64_t source_group_k;  // 0: one group
  int64_t header_bytes;    // of a group
  int64_t headers_at;      // within a panel
  int64_t codes_at;
  int64_t unit_bytes;  // of kUnitK rows of codes
};

// rows x panels of one GEMM over the groups [group_begin, group_end) of K.
//   out[r][p * 32 + c] = sum over groups, in rising order, of scale * (sum over k of x * code)
// The order of operations for one element depends on nothing but its group range.
struct GemmTile {
  const uint8_t* panels;  // the first panel; pack.h has the layout
  int64_t panel_bytes;
  int64_t group_bytes;
  int64_t group_k;
  int64_t k_end;  // K rounded up to 4: x is readable and zero up to there
  int64_t group_begin;
  int64_t group_end;
  Number scale;
  int32_t num_panels;
  int32_t num_rows;
  // Of `any` alone.
  const AnyFormat* any;
  const int32_t* group_of[2];  // [k_end] of either half of the columns; null: in natural order
  const float* lut;            // [16]
  const float* x[kRowsMax];
  float* out[kRowsMax];  // num_panels * 32 floats each
};

struct Activation {
  uint32_t kind;  // PERCH_ACTIVATION_*
  bool gated;
  bool has_limit;
  float alpha, beta, limit;
};

// y[c] = round(sum over slots with expert >= 0, rising, of weight * row), c in [0, n).
struct CombineRow {
  const float* rows;  // slot s is rows + s * stride, readable up to n rounded up to 16
  int64_t stride;
  const int32_t* expert;
  const float* weight;
  int32_t num_slots;
  Number number;
  int64_t n;
  void* y;
};

// How the input of a GEMM is quantized (contract: activation quantization); kind PERCH_ACT_NONE
// where it only is multiplied by a pre_scale.
struct InputQuant {
  uint32_t type;  // PERCH_TYPE_INT8, E4M3FN or E2M1
  uint32_t mode;  // PERCH_ACT_*
  int64_t group;  // of the modes GROUP and STATIC_GROUP
  bool e8m0;      // scales are powers of two
  bool has_pre_scale;
  Number round;  // what x * pre_scale is rounded to where it is not quantized then

  bool is_quantized() const { return mode != PERCH_ACT_NONE; }
  bool has_input_scale() const {
    return mode == PERCH_ACT_STATIC || mode == PERCH_ACT_STATIC_GROUP;
  }
  bool changes_input() const { return is_quantized() || has_pre_scale; }
  bool per_expert() const { return has_pre_scale || has_input_scale(); }
};

// The work on rows around the GEMMs, one table per ISA level. Rows of f32 scratch are 64-byte
// aligned and padded to 16; they may be written up to the pad.
struct RowKernels {
  // Widens n elements of x; a weight that is not null is multiplied in, rounded once to `number`.
  void (*load)(Number number, const void* x, int64_t n, const float* weight, float* out);
  // One panel: 16 results of a gated activation (gate lanes, then up lanes), 32 of another.
  void (*activate)(const Activation& activation, const float* panel, const float* bias, float* out);
  // row += bias, n a multiple of 16.
  void (*add)(const float* bias, int64_t n, float* row);
  // out = the sum of `pieces` rows `stride` apart, in rising order; n a multiple of 16.
  void (*sum)(const float* rows, int64_t stride, int32_t pieces, int64_t n, float* out);
  void (*combine)(const CombineRow& job);
  // out = what the codes of n inputs stand for; in and out may be the same row.
  void (*quantize)(const InputQuant& quant, const float* pre_scale, float input_scale,
                   const float* in, int64_t n, float* out);
};

extern const RowKernels row_kernels_portable;
#if defined(__x86_64__)
extern const RowKernels row_kernels_avx2;
extern const RowKernels row_kernels_avx512;
#endif

using GemmKernel = void (*)(const GemmTile& tile);
#define PERCH_KERNEL(weight, rows, columns, isa, level) \
  void gemm_##weight##_##isa(const GemmTile& tile);
#include "kernels.inc"
#undef PERCH_KERNEL

struct KernelRow {
  Weight weight;
  Isa isa;
  const char* weight_name;
  const char* tile_name;  // "4x32_avx512"
  GemmKernel gemm;
};
// The row of kernels.inc; null for a level that was not built.
const KernelRow* find_kernel(Weight weight, Isa isa);
const RowKernels& find_row_kernels(Isa isa);

}  // namespace humming_cpu
