#include "run/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/tensor_rules.h"
#include "numeric/decode.h"

namespace perch {
namespace {

uint32_t type_of(const DLTensor& tensor) {
  if (tensor.dtype.code == kDLBfloat) return PERCH_TYPE_BF16;
  return tensor.dtype.bits == 16 ? PERCH_TYPE_F16 : PERCH_TYPE_F32;
}

double element(const DLTensor& tensor, uint32_t type, int64_t row, int64_t column) {
  const int64_t stride = tensor.strides == nullptr ? tensor.shape[1] : tensor.strides[0];
  const void* data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  return double{numeric::load_float(type, data, row * stride + column)};
}

// ratio = |got - want| / allowed, with what is not a number counted as agreeing only with its like.
double ratio_of(double got, double want, double allowed) {
  if (std::isnan(got) || std::isnan(want)) {
    return std::isnan(got) && std::isnan(want) ? 0.0 : HUGE_VAL;
  }
  if (got == want) return 0.0;
  return std::isfinite(got) && std::isfinite(want) && allowed > 0 ? std::fabs(got - want) / allowed
                                                                  : HUGE_VAL;
}

}  // namespace

Status compare_output(const CanonicalLayer& layer, const LayerConfig& config,
                      uint32_t support_flags, const perch_exec_args& args, const DLTensor& expected,
                      perch_comparison* comparison) {
  PERCH_ASSIGN_OR_RETURN(const ErrorBound bound, error_bound(layer, config, args));
  const int64_t shape[2] = {bound.rows, bound.columns};
  TensorWant want;
  want.function = "perch_model_compare";
  want.argument = "expected";
  want.elements = kElementF32 | kElementF16 | kElementBF16;
  want.shape = shape;
  want.ndim = 2;
  want.align = 1;
  NormalTensor checked;
  PERCH_RETURN_IF_ERROR(check_tensor(&expected, 0, want, &checked));

  const Tolerance tolerance;
  const int64_t k =
      config.is_moe() ? std::max(config.columns(0), config.columns(1)) : config.columns(0);
  const double c = tolerance.accumulation * std::sqrt(double(k)) + tolerance.constant;
  const uint32_t out_type = config.abi().out_dtype;
  const bool rounds = (support_flags & PERCH_SUPPORT_ROUNDS_WEIGHTS) != 0;
  const double per_s =
      c * unit_roundoff(PERCH_TYPE_F32) + (rounds ? unit_roundoff(config.abi().in_dtype) : 0.0);
  const uint32_t expected_type = type_of(checked.tensor);

  comparison->ok = 1;
  comparison->worst_ratio = 0;
  comparison->worst_row = comparison->worst_column = 0;
  comparison->got = comparison->want = comparison->allowed = 0;
  comparison->worst_row_l2 = 0;
  bool first = true;
  for (int64_t row = 0; row < bound.rows; ++row) {
    double difference = 0;
    double norm = 0;
    for (int64_t column = 0; column < bound.columns; ++column) {
      const auto at = static_cast<size_t>(row * bound.columns + column);
      const double got = element(*args.y, out_type, row, column);
      const double ref = element(checked.tensor, expected_type, row, column);
      const double magnitude = std::max(std::fabs(ref), smallest_normal(out_type));
      const double allowed =
          tolerance.margin * (unit_roundoff(out_type) * magnitude + bound.mid[at] +
                              per_s * bound.s[at] + bound.flips[at]);
      const double ratio = ratio_of(got, ref, allowed);
      difference += (got - ref) * (got - ref);
      norm += ref * ref;
      if (!first && !(ratio > comparison->worst_ratio)) continue;
      first = false;
      comparison->worst_ratio = ratio;
      comparison->worst_row = row;
      comparison->worst_column = column;
      comparison->got = got;
      comparison->want = ref;
      comparison->allowed = allowed;
    }
    if (norm > 0) {
      comparison->worst_row_l2 = std::max(comparison->worst_row_l2, std::sqrt(difference / norm));
    }
  }
  comparison->ok = comparison->worst_ratio <= 1.0 ? 1 : 0;
  return {};
}

}  // namespace perch
