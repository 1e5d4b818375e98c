// Format: modelopt's INT4, two rows to a byte.
//   weight U8 [N/2, K]  byte (r,k) holds row 2r in its low and row 2r + 1 in its high nibble, as
//   signed numbers; weight_scale [N, K/g]; optional weight_scale_2, pre_quant_scale [K], bias [N]
// Everybody else packs along K and stores unsigned codes.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"
#include "numeric/packed_codes.h"

namespace perch {
namespace {

bool claims(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  const RawView* scale = projection.find("weight_scale");
  return weight != nullptr && weight->tensor->dtype == RawDtype::kU8 && scale != nullptr &&
         is_float_dtype(scale->tensor->dtype);
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  PERCH_RETURN_IF_ERROR(check_method(scheme, projection, weight, "modelopt"));
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {4, false}));
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  MatrixPlan result;
  result.format = &kModeloptInt4Format;
  result.quant = make_quant(PERCH_TYPE_INT4);
  PERCH_RETURN_IF_ERROR(set_size(weight, 2 * weight.rows, weight.columns, &result));
  PERCH_RETURN_IF_ERROR(
      plan_scale(scheme, projection, *projection.find("weight_scale"), false, &result));
  if (const RawView* second = projection.find("weight_scale_2")) {
    PERCH_RETURN_IF_ERROR(plan_scale2(*second, false, &result));
  }
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_pre_scale(projection, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  const RawView& weight = *projection.find("weight");
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    auto* row = reinterpret_cast<uint8_t*>(codes + (n - slice.n0) * row_bytes);
    const int shift = n % 2 == 0 ? 0 : 4;
    for (int64_t k = slice.k0; k < slice.k1; ++k) {
      const auto byte = std::to_integer<uint32_t>(*weight.at(n / 2, k));
      numeric::put_code(row, k - slice.k0, 4, (byte >> shift & 15U) ^ 8U);  // q + 8
    }
  }
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight", "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale", "bias"};
}

}  // namespace

const Format kModeloptInt4Format = {"modelopt INT4", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
