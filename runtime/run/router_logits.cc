#include "run/router_logits.h"

#include <cmath>
#include <vector>

#include "base/tensor_rules.h"
#include "numeric/decode.h"

namespace perch {
namespace {

// Row `t` of x as the router sees it.
std::vector<double> router_input(const RouterSource& router, uint32_t type, const void* x,
                                 int64_t t, int64_t hidden) {
  std::vector<double> row(static_cast<size_t>(hidden));
  double squares = 0.0;
  for (int64_t h = 0; h < hidden; ++h) {
    const double value = numeric::load_float(type, x, t * hidden + h);
    row[static_cast<size_t>(h)] = value;
    squares += value * value;
  }
  if (router.input_scale.empty()) return row;
  const double root = std::sqrt(squares / static_cast<double>(hidden) + router.input_epsilon);
  for (size_t h = 0; h < row.size(); ++h) row[h] = row[h] / root * double{router.input_scale[h]};
  return row;
}

}  // namespace

Status router_logits(const RouterSource& router, const DLTensor* x, const DLTensor* logits) {
  const int64_t experts = router.weight->shape[0];
  const int64_t hidden = router.weight->shape[1];
  const int64_t x_shape[2] = {-1, hidden};
  TensorWant want;
  want.function = "perch_model_router_logits";
  want.argument = "x";
  want.elements = kElementF32 | kElementF16 | kElementBF16;
  want.shape = x_shape;
  want.ndim = 2;
  NormalTensor in;
  PERCH_RETURN_IF_ERROR(check_tensor(x, 0, want, &in));
  const int64_t out_shape[2] = {in.shape[0], experts};
  want.argument = "logits";
  want.elements = kElementF32;
  want.shape = out_shape;
  want.written = true;
  NormalTensor out;
  PERCH_RETURN_IF_ERROR(check_tensor(logits, 0, want, &out));
  PERCH_ASSIGN_OR_RETURN(const std::vector<float> weight, read_floats(*router.weight));
  const uint32_t type = in.tensor.dtype.code == kDLBfloat ? PERCH_TYPE_BF16
                        : in.tensor.dtype.bits == 16      ? PERCH_TYPE_F16
                                                          : PERCH_TYPE_F32;
  for (int64_t t = 0; t < in.shape[0]; ++t) {
    const std::vector<double> row = router_input(router, type, in.tensor.data, t, hidden);
    for (int64_t e = 0; e < experts; ++e) {
      double sum =
          router.logit_bias.empty() ? 0.0 : double{router.logit_bias[static_cast<size_t>(e)]};
      for (int64_t h = 0; h < hidden; ++h) {
        sum += double{weight[static_cast<size_t>(e * hidden + h)]} * row[static_cast<size_t>(h)];
      }
      static_cast<float*>(out.tensor.data)[t * experts + e] = static_cast<float>(sum);
    }
  }
  return {};
}

}  // namespace perch
