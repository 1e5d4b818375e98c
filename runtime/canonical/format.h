// Format: how one family of checkpoint files stores a weight matrix.
//
// Adding a format is one file with these functions and one row in formats.cc. A format knows its
// tensors' suffixes and how to turn them into canonical codes, exactly; the scheme (scheme.h) tells
// it what the configuration says, and it refuses what does not fit that. It does not know about
// experts, orientation or fused tensors, which are undone before it is asked, nor about slices of
// scales, which read_matrix.h cuts for all formats alike.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "canonical/raw_view.h"
#include "canonical/scheme.h"
#include "perch/layer.h"

namespace perch {

struct Format;

// A stored array of scales over the whole matrix: element (n,k) takes the cell in row
// (n + first_row) / group_n and column k / group_k of `view`.
struct Grid {
  RawView view;  // rows and columns are cells
  int64_t group_n = 1;
  int64_t group_k = 1;
  int64_t first_row = 0;  // of a half of a fused tensor whose halves share a row of blocks
};

// What a projection holds, in the algebra of layer.h. Arrays are seen and not read; the few values
// that decide a layer's algebra (scale2, input_scale) are.
struct MatrixPlan {
  const Format* format = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  // As stored. scale2_kind is TENSOR exactly where scale2 is set; k_order G_IDX where g_idx is.
  perch_quant quant{};
  perch_act_quant act{};
  std::optional<Grid> scale;         // unless scale_kind is NONE
  std::optional<float> scale2;       // multiplied: a stored divisor is inverted by the format
  std::optional<float> input_scale;  // of act modes STATIC and STATIC_GROUP
  std::optional<RawView> g_idx;      // I32 [K], one column
  std::optional<RawView> pre_scale;  // [K] floats, one column
  std::optional<RawView> bias;       // [N] floats, one column
  uint32_t variant = 0;              // between the plan and the read functions of one format
};

// Rows [n0,n1) and columns [k0,k1) of the matrix.
struct MatrixSlice {
  int64_t n0 = 0, n1 = 0, k0 = 0, k1 = 0;
};

struct Format {
  const char* name;  // "compressed-tensors pack-quantized"
  // Whether this projection is stored so: by its suffixes and their dtypes.
  bool (*claims)(const Projection& projection);
  // Sizes and algebra from what the configuration says and the projection's tensors; every mismatch
  // is an error that names tensor, found and wanted.
  Result<MatrixPlan> (*plan)(const Scheme& scheme, const Projection& projection);
  // The slice's codes, canonical: row n at codes + (n - n0) * row_bytes, packed along K from bit 0,
  // unused bits 0. `codes` is zero before.
  Status (*read_codes)(const Projection& projection, const MatrixPlan& plan,
                       const MatrixSlice& slice, std::byte* codes, int64_t row_bytes);
  // Zero points of row n, groups [g0, g0 + count); null where zero_kind is never INT.
  Status (*read_zeros)(const Projection& projection, const MatrixPlan& plan, int64_t n, int64_t g0,
                       int64_t count, uint8_t* zeros);
  // Suffixes that plan and read know; another one under the module is an unexpected tensor.
  std::vector<std::string_view> (*suffixes)();
};

// The row that claims the projection, or a refusal that names the format it looks like.
Result<const Format*> find_format(const Projection& projection);

// Suffixes that mark a module as quantized by some format, known or not: how a quantized linear
// layer is told from a plain one.
bool is_quantized_suffix(std::string_view suffix);

// The rows, one per file.
extern const Format kFloatFormat;
extern const Format kInt8Format;
extern const Format kFp8Format;
extern const Format kFp4PairsFormat;
extern const Format kMxfp4BlocksFormat;
extern const Format kPackQuantizedFormat;
extern const Format kGptqFormat;
extern const Format kAwqFormat;
extern const Format kModeloptInt4Format;

}  // namespace perch
