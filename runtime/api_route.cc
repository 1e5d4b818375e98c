// perch_route: the host API of run/route.h.
#include "api.h"
#include "base/extensions.h"
#include "base/tensor_rules.h"
#include "run/route.h"

namespace perch {
namespace {

Status route(const perch_route_config* config, const DLTensor* logits, const DLTensor* ids,
             const DLTensor* weights) {
  if (config == nullptr) return null_argument("perch_route", "config");
  PERCH_RETURN_IF_ERROR(check_route_config(*config));
  PERCH_RETURN_IF_ERROR(check_extensions(config->next, "perch_route: config"));
  TensorWant want;
  want.function = "perch_route";
  want.argument = "logits";
  want.elements = kElementF32;
  int64_t shape[2] = {-1, config->num_experts};
  want.shape = shape;
  want.ndim = 2;
  NormalTensor in;
  PERCH_RETURN_IF_ERROR(check_tensor(logits, 0, want, &in));
  shape[0] = in.shape[0];
  shape[1] = config->topk;
  want.written = true;
  want.argument = "weights";
  NormalTensor weights_out;
  PERCH_RETURN_IF_ERROR(check_tensor(weights, 0, want, &weights_out));
  want.argument = "ids";
  want.elements = kElementI32;
  NormalTensor ids_out;
  PERCH_RETURN_IF_ERROR(check_tensor(ids, 0, want, &ids_out));
  for (int64_t t = 0; t < in.shape[0]; ++t) {
    route_row(*config, static_cast<const float*>(in.tensor.data) + t * config->num_experts,
              static_cast<int32_t*>(ids_out.tensor.data) + t * config->topk,
              static_cast<float*>(weights_out.tensor.data) + t * config->topk);
  }
  return {};
}

}  // namespace
}  // namespace perch

extern "C" {

perch_status perch_route(const perch_route_config* config, const DLTensor* logits,
                         const DLTensor* ids, const DLTensor* weights, perch_error* error) {
  return perch::guarded_call(error, "perch_route",
                             [&] { return perch::route(config, logits, ids, weights); });
}

}  // extern "C"
