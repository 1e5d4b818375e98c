// Format: fp4 (e2m1) in pairs, the even element in the low nibble.
//   weight_packed or weight, U8, I8 [N,K/2] or F4 [N,K]; scales by group of 16 (e4m3) or 32 (e8m0)
//   second scale: weight_scale_2 multiplies, weight_global_scale divides
// compressed-tensors nvfp4 and mxfp4, modelopt's NVFP4 and MXFP4 families, DeepSeek-V4's experts.
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

bool claims(const Projection& projection) {
  const RawView* weight = find_weight(projection);
  if (weight == nullptr) return false;
  switch (weight->tensor->dtype) {
    case RawDtype::kF4:
      return true;
    case RawDtype::kI8: {
      const RawView* scale = projection.find("scale");
      return scale != nullptr && scale->tensor->dtype == RawDtype::kF8E8M0;
    }
    case RawDtype::kU8: {
      // 4-bit integers have scales of 16 or 32 bits, fp4 of one byte.
      const RawView* scale = projection.find("weight_scale");
      return scale != nullptr && raw_dtype_bits(scale->tensor->dtype) == 8;
    }
    default:
      return false;
  }
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *find_weight(projection);
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {4, true}));
  MatrixPlan result;
  result.format = &kFp4PairsFormat;
  result.quant = make_quant(PERCH_TYPE_E2M1);
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  const bool elements = weight.tensor->dtype == RawDtype::kF4;
  PERCH_RETURN_IF_ERROR(
      set_size(weight, weight.rows, elements ? weight.columns : 2 * weight.columns, &result));
  PERCH_ASSIGN_OR_RETURN(const RawView* scale, find_scale(projection));
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, *scale, true, &result));
  const RawView* multiplied = projection.find("weight_scale_2");
  const RawView* divided = projection.find("weight_global_scale");
  if (multiplied != nullptr) PERCH_RETURN_IF_ERROR(plan_scale2(*multiplied, false, &result));
  if (divided != nullptr) PERCH_RETURN_IF_ERROR(plan_scale2(*divided, true, &result));
  if (result.quant.scale_dtype == PERCH_TYPE_E4M3FN && !result.scale2) {
    return missing_part(projection, "weight_scale_2 or weight_global_scale",
                        "the second scale of fp4 with e4m3 scales");
  }
  const bool global = projection.find("input_global_scale") != nullptr || divided != nullptr;
  PERCH_RETURN_IF_ERROR(
      plan_act(scheme, projection, global ? "input_global_scale" : "input_scale", global, &result));
  PERCH_RETURN_IF_ERROR(plan_pre_scale(projection, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(*find_weight(projection), 4, slice, codes, row_bytes);
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight",          "weight_packed", "weight_scale",        "scale",
          "weight_scale_2",  "input_scale",   "weight_global_scale", "input_global_scale",
          "pre_quant_scale", "bias"};
}

}  // namespace

const Format kFp4PairsFormat = {"fp4 pairs", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
