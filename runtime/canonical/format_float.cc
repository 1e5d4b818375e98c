// Format: plain f32, f16 or bf16 weights.
//   weight [N,K], optional bias [N]
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

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  // GPTQ has no list of what it left alone: a module without qweight is what it left.
  if (scheme.quantized && scheme.method != "gptq") {
    return wrong_scheme(
        scheme, projection, "quantized weights",
        fmt::format("16 or 32 bits, as tensor {} is {}", quoted_name(weight.tensor->name),
                    raw_dtype_name(weight.tensor->dtype)));
  }
  MatrixPlan result;
  result.format = &kFloatFormat;
  result.n = weight.rows;
  result.k = weight.columns;
  result.quant = make_quant(weight_type(weight.tensor->dtype));
  result.act = make_act_none();
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
