// Format: weights of one signed byte each.
//   weight I8 [N,K], weight_scale by tensor, channel or group, optional weight_zero_point I8 of the
//   scale's shape, optional bias [N] and pre_quant_scale [K]
// compressed-tensors int-quantized and naive-quantized, modelopt's INT8, and int8 made at load time
// by an engine. Canonical codes are unsigned: u = q + 128, and so are zero points.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

constexpr auto kFlip = static_cast<std::byte>(0x80);  // q + 128 modulo 256

bool claims(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  // Bytes with scales of 8 bits are pairs of fp4 (DeepSeek-V4).
  const RawView* scale = projection.find("scale");
  return weight != nullptr && weight->tensor->dtype == RawDtype::kI8 &&
         projection.find("SCB") == nullptr &&
         (scale == nullptr || scale->tensor->dtype != RawDtype::kF8E8M0);
}

Status plan_zero(const Scheme& scheme, const Projection& projection, MatrixPlan* plan) {
  const RawView* zero = projection.find("weight_zero_point");
  if (zero == nullptr) {
    if (scheme.symmetric) return {};
    return missing_part(projection, "weight_zero_point",
                        fmt::format("it, as {} is asymmetric", scheme.where));
  }
  if (zero->tensor->dtype != RawDtype::kI8) return wrong_dtype(*zero, "I8");
  if (zero->rows != plan->scale->view.rows || zero->columns != plan->scale->view.columns) {
    return wrong_shape(*zero, fmt::format("[{}, {}], as its scale", plan->scale->view.rows,
                                          plan->scale->view.columns));
  }
  widen_to_channel(plan);
  plan->quant.zero_kind = PERCH_ZERO_INT;
  return {};
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {8, false}));
  MatrixPlan result;
  result.format = &kInt8Format;
  result.quant = make_quant(PERCH_TYPE_INT8);
  PERCH_RETURN_IF_ERROR(set_size(weight, weight.rows, weight.columns, &result));
  PERCH_ASSIGN_OR_RETURN(const RawView* scale, find_scale(projection));
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, *scale, false, &result));
  if (result.quant.scale_kind == PERCH_SCALE_BLOCK) {
    return wrong_scheme(scheme, projection, "8-bit integers in blocks",
                        "scales by tensor, channel or group");
  }
  PERCH_RETURN_IF_ERROR(plan_zero(scheme, projection, &result));
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_pre_scale(projection, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(*projection.find("weight"), 8, slice, codes, row_bytes);
  const int64_t columns = slice.k1 - slice.k0;
  for (int64_t n = 0; n < slice.n1 - slice.n0; ++n) {
    for (int64_t k = 0; k < columns; ++k) codes[n * row_bytes + k] ^= kFlip;
  }
  return {};
}

Status read_zeros(const Projection& projection, const MatrixPlan& plan, int64_t n, int64_t g0,
                  int64_t count, uint8_t* zeros) {
  const RawView& zero = *projection.find("weight_zero_point");
  const int64_t row = zero.rows == plan.n ? n : 0;
  for (int64_t g = 0; g < count; ++g) {
    zeros[g] = static_cast<uint8_t>(*zero.at(row, g0 + g) ^ kFlip);
  }
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight",      "weight_scale",     "scale",           "weight_zero_point",
          "input_scale", "input_zero_point", "pre_quant_scale", "bias"};
}

}  // namespace

const Format kInt8Format = {
    "8-bit integers, one to a byte", claims, plan, read_codes, read_zeros, suffixes};

}  // namespace perch
