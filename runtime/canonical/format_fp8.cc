// Format: weights of one FP8 number each.
//   weight       F8_E4M3 or F8_E5M2 [N,K]
//   weight_scale or another of find_scale's names ("_inv" or not, all multiply): tensor, channel,
//                group or block; floats, or E8M0 bytes (MXFP8: U8 [N, K/32])
//   input_scale  or activation_scale [1], where the input is static; bias [N]
// DeepSeek and transformers fp8, compressed-tensors float-quantized and mxfp8, modelopt FP8 (whose
// FP8_PB_WO scales are [N/128, 1, K/128, 1], a grid once its axes of 1 are gone).
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

bool claims(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  if (weight == nullptr) return false;
  switch (weight->tensor->dtype) {
    case RawDtype::kF8E4M3:
    case RawDtype::kF8E5M2:
    case RawDtype::kF8E4M3FNUZ:
    case RawDtype::kF8E5M2FNUZ:
      return true;
    default:
      return false;
  }
}

// The FNUZ types have another bias and another NaN: reading them as OCP would halve every weight.
Result<uint32_t> weight_type(const RawView& weight) {
  if (weight.tensor->dtype == RawDtype::kF8E4M3) return PERCH_TYPE_E4M3FN;
  if (weight.tensor->dtype == RawDtype::kF8E5M2) return PERCH_TYPE_E5M2;
  return unsupported(
      fmt::format("{}: dtype: got {}, which Perch does not read; want "
                  "F8_E4M3 or F8_E5M2",
                  print_tensor(*weight.tensor), raw_dtype_name(weight.tensor->dtype)));
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  PERCH_ASSIGN_OR_RETURN(const uint32_t type, weight_type(weight));
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {8, true}));
  PERCH_ASSIGN_OR_RETURN(const RawView* scale, find_scale(projection));
  MatrixPlan result;
  result.format = &kFp8Format;
  result.n = weight.rows;
  result.k = weight.columns;
  result.quant = make_quant(type);
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, *scale, true, &result));
  const bool fused_name = projection.find("activation_scale") != nullptr;
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection,
                                 fused_name ? "activation_scale" : "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(*projection.find("weight"), 8, slice, codes, row_bytes);
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight", "weight_scale",     "weight_scale_inv", "scale_inv",
          "scale",  "activation_scale", "input_scale",      "bias"};
}

}  // namespace

const Format kFp8Format = {"FP8 weights", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
