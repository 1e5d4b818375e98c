// Format: modelopt's W4A16_AWQ and W4A8_AWQ.
//   weight          U8 [N/2, K]: row 2r in the low nibbles of row r, 2r + 1 in the high ones; two's
//                   complement
//   weight_scale    [N, K/g]
//   weight_scale_2  [] floats, multiplies; W4A8 only
//   pre_quant_scale [K], multiplies the input; input_scale [], bias [N]; each optional
// Canonical codes are unsigned: u = q + 8, which flips the top bit.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

// Pairs of e2m1 are U8 with a weight_scale too: they have as many rows of scales as of bytes, and
// scales of 8 bits.
bool claims(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  const RawView* scale = projection.find("weight_scale");
  if (weight == nullptr || scale == nullptr || weight->tensor->dtype != RawDtype::kU8) return false;
  return is_float_dtype(scale->tensor->dtype) ||
         (scale->rows % 2 == 0 && scale->rows / 2 == weight->rows);
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {4, false}));
  MatrixPlan result;
  result.format = &kModeloptInt4Format;
  result.n = weight.rows * 2;
  result.k = weight.columns;
  result.quant = make_quant(PERCH_TYPE_INT4);
  if (!scheme.symmetric) {
    return wrong_scheme(scheme, projection, "asymmetric weights",
                        "symmetric ones: the format stores no zero points");
  }
  PERCH_RETURN_IF_ERROR(
      plan_scale(scheme, projection, *projection.find("weight_scale"), false, &result));
  if (const RawView* factor = projection.find("weight_scale_2")) {
    PERCH_RETURN_IF_ERROR(plan_scale2(*factor, false, &result));
  }
  PERCH_RETURN_IF_ERROR(plan_pre_scale(projection, &result));
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  const RawView& weight = *projection.find("weight");
  const int64_t step = weight.column_stride;
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    const int shift = n % 2 == 0 ? 0 : 4;
    std::byte* row = codes + (n - slice.n0) * row_bytes;
    const std::byte* from = weight.at(n / 2, slice.k0);
    const auto code = [&](int64_t i) {
      return (from[i * step] >> shift & std::byte{15}) ^ std::byte{8};
    };
    const int64_t count = slice.k1 - slice.k0;
    for (int64_t i = 0; i + 1 < count; i += 2) row[i / 2] = code(i) | code(i + 1) << 4;
    if (count % 2 != 0) row[count / 2] = code(count - 1);
  }
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight", "weight_scale", "weight_scale_2", "pre_quant_scale", "input_scale", "bias"};
}

}  // namespace

const Format kModeloptInt4Format = {
    "modelopt INT4 (AWQ)", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
