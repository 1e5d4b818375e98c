// Format: plain f32, f16 or bf16 weights.
//   weight [N,K], optional bias [N]
// The configuration may say more of such a module's input than of its weight; both are left alone.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

bool claims(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  return weight != nullptr && is_float_dtype(weight->tensor->dtype);
}

uint32_t weight_type(RawDtype dtype) {
  if (dtype == RawDtype::kF32) return PERCH_TYPE_F32;
  return dtype == RawDtype::kF16 ? PERCH_TYPE_F16 : PERCH_TYPE_BF16;
}

Result<MatrixPlan> plan(const Scheme&, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  MatrixPlan result;
  result.format = &kFloatFormat;
  result.quant = make_quant(weight_type(weight.tensor->dtype));
  result.act = make_act_none();
  PERCH_RETURN_IF_ERROR(set_size(weight, weight.rows, weight.columns, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  const RawView& weight = *projection.find("weight");
  copy_code_rows(weight, raw_dtype_bits(weight.tensor->dtype), slice, codes, row_bytes);
  return {};
}

std::vector<std::string_view> suffixes() { return {"weight", "bias"}; }

}  // namespace

const Format kFloatFormat = {
    "f32, f16 or bf16 weights", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
