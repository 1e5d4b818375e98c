// Format: weights of one signed byte each.
//   weight            I8 [N,K], q
//   weight_scale      or another of find_scale's names: tensor, channel, group or block
//   weight_zero_point I8, shaped like the scale; asymmetric only
//   pre_quant_scale   [K] floats, input_scale [1], bias [N]; each optional
// compressed-tensors int-quantized and naive-quantized, modelopt's INT8, W8A16. Canonical codes are
// unsigned: u = q + 128, which flips the top bit, and the same for zero points.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

constexpr std::byte kTopBit{0x80};

// DeepSeek's pairs of e2m1 are I8 too, and have E8M0 scales.
bool claims(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  if (weight == nullptr || weight->tensor->dtype != RawDtype::kI8) return false;
  const RawView* scale = projection.find("scale");
  return scale == nullptr || scale->tensor->dtype != RawDtype::kF8E8M0;
}

Status plan_zeros(const Scheme& scheme, const Projection& projection, MatrixPlan* plan) {
  const RawView* zero = projection.find("weight_zero_point");
  if (zero == nullptr) {
    if (scheme.symmetric) return {};
    return missing_part(projection, "weight_zero_point",
                        fmt::format("it, as {} says asymmetric", scheme.where));
  }
  if (scheme.symmetric && !scheme.unstated) {
    return wrong_scheme(
        scheme, projection, "symmetric weights",
        fmt::format("asymmetric, as there is a tensor {}", quoted_name(zero->tensor->name)));
  }
  const RawView& scale = plan->scale->view;
  if (zero->tensor->dtype != RawDtype::kI8) return wrong_dtype(*zero, "I8");
  if (zero->rows != scale.rows || zero->columns != scale.columns) {
    return wrong_shape(*zero, fmt::format("[{}, {}], the shape of tensor {}", scale.rows,
                                          scale.columns, quoted_name(scale.tensor->name)));
  }
  if (plan->quant.scale_kind == PERCH_SCALE_BLOCK) {
    return unsupported(
        fmt::format("{}: got zero points of blocks; want them by group, "
                    "row or tensor",
                    print_tensor(*zero->tensor)));
  }
  plan->quant.zero_kind = PERCH_ZERO_INT;
  widen_to_channel(plan);
  return {};
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {8, false}));
  PERCH_ASSIGN_OR_RETURN(const RawView* scale, find_scale(projection));
  MatrixPlan result;
  result.format = &kInt8Format;
  result.n = weight.rows;
  result.k = weight.columns;
  result.quant = make_quant(PERCH_TYPE_INT8);
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, *scale, false, &result));
  PERCH_RETURN_IF_ERROR(plan_zeros(scheme, projection, &result));
  PERCH_RETURN_IF_ERROR(plan_pre_scale(projection, &result));
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(*projection.find("weight"), 8, slice, codes, row_bytes);
  for (int64_t n = 0; n < slice.n1 - slice.n0; ++n) {
    std::byte* row = codes + n * row_bytes;
    for (int64_t k = 0; k < slice.k1 - slice.k0; ++k) row[k] ^= kTopBit;
  }
  return {};
}

Status read_zeros(const Projection& projection, const MatrixPlan& plan, int64_t n, int64_t g0,
                  int64_t count, uint8_t* zeros) {
  const RawView& zero = *projection.find("weight_zero_point");
  for (int64_t g = 0; g < count; ++g) {
    zeros[g] = std::to_integer<uint8_t>(*zero.at(n / plan.scale->group_n, g0 + g) ^ kTopBit);
  }
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight",          "weight_scale", "weight_scale_inv",
          "scale_inv",       "scale",        "weight_zero_point",
          "pre_quant_scale", "input_scale",  "bias"};
}

}  // namespace

const Format kInt8Format = {"int8 weights", claims, plan, read_codes, read_zeros, suffixes};

}  // namespace perch
