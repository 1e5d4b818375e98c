// Format: weights of one fp8 code each.
//   weight F8_E4M3 or F8_E5M2 [N,K]; weight_scale, weight_scale_inv, scale_inv or scale, all of
//   which multiply, by tensor, channel, group or block; static inputs have input_scale
//   (activation_scale)
// compressed-tensors float-quantized, naive-quantized and mxfp8, modelopt's FP8 family and MXFP8,
// and the fp8 of transformers and DeepSeek. Scales of one byte (U8, F8_E8M0) are powers of two.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

bool is_fp8(RawDtype dtype) {
  return dtype == RawDtype::kF8E4M3 || dtype == RawDtype::kF8E5M2 ||
         dtype == RawDtype::kF8E4M3FNUZ || dtype == RawDtype::kF8E5M2FNUZ;
}

bool claims(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  return weight != nullptr && is_fp8(weight->tensor->dtype);
}

// modelopt stores the grid of blocks as [rows, 1, columns, 1].
RawView flat_grid(const RawView& scale) {
  const std::vector<int64_t>& shape = scale.tensor->shape;
  if (shape.size() != 4 || shape[1] != 1 || shape[3] != 1) return scale;
  RawView view = scale;
  view.rows = shape[0];
  view.columns = shape[2];
  view.row_stride = shape[2];
  view.column_stride = 1;
  return view;
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  const RawDtype dtype = weight.tensor->dtype;
  if (dtype == RawDtype::kF8E4M3FNUZ || dtype == RawDtype::kF8E5M2FNUZ) {
    return wrong_dtype(weight, "F8_E4M3 or F8_E5M2: the FNUZ forms have other values");
  }
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {8, true}));
  MatrixPlan result;
  result.format = &kFp8Format;
  result.quant = make_quant(dtype == RawDtype::kF8E4M3 ? PERCH_TYPE_E4M3FN : PERCH_TYPE_E5M2);
  PERCH_RETURN_IF_ERROR(set_size(weight, weight.rows, weight.columns, &result));
  PERCH_ASSIGN_OR_RETURN(const RawView* scale, find_scale(projection));
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, flat_grid(*scale), true, &result));
  const bool other_name =
      projection.find("input_scale") == nullptr && projection.find("activation_scale") != nullptr;
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection,
                                 other_name ? "activation_scale" : "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(*projection.find("weight"), 8, slice, codes, row_bytes);
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight", "weight_scale", "weight_scale_inv", "scale_inv",
          "scale",  "input_scale",  "activation_scale", "bias"};
}

}  // namespace

const Format kFp8Format = {"fp8, one to a byte", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
