// Format: how one family of checkpoint files stores a weight matrix.
//
// Adding a format is one file with these functions and one row in formats.cc. A format knows its
// quantization_config, its tensors' suffixes and how to turn them into canonical tensors, exactly;
// it does not know about experts, orientation or fused tensors, which are undone before it is
// asked.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "canonical/raw_view.h"
#include "perch/layer.h"

namespace perch {

struct Format;

// What a projection holds, in the algebra of layer.h.
struct MatrixPlan {
  const Format* format = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  perch_quant quant{};
  perch_act_quant act{};
  int64_t k_unit = 1;  // a split of K must fall on multiples of this
  int64_t n_unit = 1;  // likewise of N
};

// Rows [n0,n1) and columns [k0,k1) of the matrix.
struct MatrixSlice {
  int64_t n0 = 0, n1 = 0, k0 = 0, k1 = 0;
};

// Where read() writes: each pointer is at the first of the slice's rows in its canonical tensor, or
// null where the plan has no such tensor.
struct MatrixTarget {
  std::byte* codes = nullptr;
  int64_t code_row_bytes = 0;
  std::byte* scale = nullptr;
  int64_t scale_row_bytes = 0;
  uint8_t* zero = nullptr;  // [rows, zero_columns]
  int64_t zero_columns = 0;
  float* bias = nullptr;
};

struct Format {
  const char* name;  // "compressed-tensors pack-quantized"
  // Whether this projection is stored so: by its suffixes.
  bool (*claims)(const Projection& projection);
  // Sizes and algebra from `quantization` (null for none) and the projection's tensors; every
  // mismatch is an error that names tensor, found and wanted.
  Result<MatrixPlan> (*plan)(const nlohmann::json& quantization, const Projection& projection);
  Status (*read)(const Projection& projection, const MatrixPlan& plan, const MatrixSlice& slice,
                 const MatrixTarget& target);
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
extern const Format kPackQuantizedFormat;

// "tensor "x": shape: got [2, 3]; want [2, 4] (N x K/8)"
Status wrong_shape(const RawView& view, const std::string& want);
// Reads rows [n0,n1) of a bias column into target.bias, from any 16- or 32-bit float type.
Status read_bias(const Projection& projection, const MatrixSlice& slice, float* bias);

}  // namespace perch
