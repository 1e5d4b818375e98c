// Format: pairs of e2m1 in a byte, the even element of K in the low nibble, which is the canonical
// row, byte for byte.
//   weight_packed or weight  U8 or I8 [N, K/2], or F4 [N,K]
//   weight_scale  or scale   F8_E4M3 [N, K/16] (NVFP4), or U8 or F8_E8M0 [N, K/32] (MXFP4)
//   weight_global_scale F32 [1], DIVIDES (compressed-tensors), or
//   weight_scale_2      F32 [],  multiplies (modelopt); one of them under E4M3 scales
//   input_global_scale [1], divides, or input_scale [], multiplies: where the input is static
//   pre_quant_scale [K], bias [N]; each optional
// DeepSeek-V4's experts are I8 with `scale`, F8_E8M0.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

const RawView* find_weight(const Projection& projection) {
  const RawView* packed = projection.find("weight_packed");
  return packed != nullptr ? packed : projection.find("weight");
}

bool is_deepseek(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  const RawView* scale = projection.find("scale");
  return weight != nullptr && weight->tensor->dtype == RawDtype::kI8 && scale != nullptr &&
         scale->tensor->dtype == RawDtype::kF8E8M0;
}

bool claims(const Projection& projection) {
  const RawView* weight = find_weight(projection);
  if (weight == nullptr) return false;
  const bool packed = projection.find("weight_packed") != nullptr;
  switch (weight->tensor->dtype) {
    case RawDtype::kF4:
      return true;
    case RawDtype::kI8:
      return packed || is_deepseek(projection);
    case RawDtype::kU8:
      return packed || (find_scale(projection).ok() && !kModeloptInt4Format.claims(projection));
    default:
      return false;
  }
}

Status plan_global_scale(const Projection& projection, const RawView& scale, MatrixPlan* plan) {
  const RawView* divisor = projection.find("weight_global_scale");
  const RawView* factor = projection.find("weight_scale_2");
  if (divisor != nullptr && factor != nullptr) {
    return invalid_argument(fmt::format("{}: got tensor {} too; want one of the two",
                                        print_tensor(*factor->tensor),
                                        quoted_name(divisor->tensor->name)));
  }
  if (divisor != nullptr) return plan_scale2(*divisor, true, plan);
  if (factor != nullptr) return plan_scale2(*factor, false, plan);
  if (scale.tensor->dtype != RawDtype::kF8E4M3) return {};
  // Scales of 8 bits were made in units of it.
  return missing_part(projection,
                      projection.find("weight_packed") ? "weight_global_scale" : "weight_scale_2",
                      fmt::format("it, as tensor {} is F8_E4M3", quoted_name(scale.tensor->name)));
}

Status plan_input(const Scheme& scheme, const Projection& projection, MatrixPlan* plan) {
  const bool divides =
      projection.find("input_global_scale") != nullptr ||
      (projection.find("weight_packed") != nullptr && projection.find("input_scale") == nullptr);
  return plan_act(scheme, projection, divides ? "input_global_scale" : "input_scale", divides,
                  plan);
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *find_weight(projection);
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {4, true}));
  PERCH_ASSIGN_OR_RETURN(const RawView* scale, find_scale(projection));
  MatrixPlan result;
  result.format = &kFp4PairsFormat;
  result.n = weight.rows;
  result.k = weight.columns * (weight.tensor->dtype == RawDtype::kF4 ? 1 : 2);
  result.quant = make_quant(PERCH_TYPE_E2M1);
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, *scale, true, &result));
  PERCH_RETURN_IF_ERROR(plan_global_scale(projection, *scale, &result));
  PERCH_RETURN_IF_ERROR(plan_pre_scale(projection, &result));
  PERCH_RETURN_IF_ERROR(plan_input(scheme, projection, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(*find_weight(projection), 4, slice, codes, row_bytes);
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight_packed",      "weight",      "weight_scale",        "weight_scale_inv",
          "scale_inv",          "scale",       "weight_global_scale", "weight_scale_2",
          "input_global_scale", "input_scale", "pre_quant_scale",     "bias"};
}

}  // namespace

const Format kFp4PairsFormat = {
    "FP4 pairs (NVFP4, MXFP4)", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
