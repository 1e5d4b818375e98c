// The table of model types: how each stores its experts and how it routes.
//
// A new model type is one row. What a row cannot say (a new storage class, a new routing formula)
// is one file elsewhere in this folder plus a value of these enums.
#pragma once

#include <string_view>

namespace perch {

// How fused expert tensors lie. Per-expert tensors are always native.
enum class Fused {
  kNone,         // the type stores one tensor per expert
  kNative,       // gate_up [E,2I,H], halves; down [E,H,I]
  kTransposed,   // gate_up [E,H,2I], halves of the last dimension; down [E,I,H]
  kInterleaved,  // as kTransposed, column 2j gate and 2j+1 up (gpt-oss)
  kByVersion,    // transposed on the hub, native when saved by transformers 5 or later
};

// A formula of routing. Where the config says how (renormalized or not, scale, groups), router.cc
// reads it.
enum class Route {
  kUnknown,
  kSoftmax,        // R1n: softmax, topk
  kSoftmaxRenorm,  // R1: softmax, topk, renormalize
  kSoftmaxConfig,  // R1c: R1 or R1n by norm_topk_prob
  kTopkSoftmax,    // R2
  kSigmoidGroups,  // R3: sigmoid + correction bias, groups, scale
  kSoftmaxGroups,  // R3g: softmax, groups by their largest, scale
  kTopkSigmoid,    // R4: topk, sigmoid; the weight multiplies the expert's input
  kSparsemixer,    // R5
  kSoftmaxFloor,   // R6: softmax + correction bias, divided by max(sum, moe_norm_min)
  kSoftmaxBias,    // softmax + correction bias, scale (longcat)
  kSqrtSoftplus,   // R9: sqrt(softplus) + correction bias, scale
  kSigmoidBias,    // as R3 without groups, 1e-6 added to the sum (lfm2)
  kSoftmaxScaled,  // R1 of a normed and scaled input, then a factor per expert (gemma4)
};

struct ModelTypeRow {
  std::string_view model_type;
  Fused fused;
  Route route;
  // Router tensors, relative to the module that holds the experts ("" where there is none):
  // "gate" stands for <layer>.mlp.gate.weight when the experts are <layer>.mlp.experts.
  std::string_view router;           // ".weight" is its matrix, ".bias" its optional bias
  std::string_view correction_bias;  // decides the choice only
  std::string_view activation;       // overrides the config's; "" = the config's
  std::string_view refusal = "";     // why no checkpoint of the type is read; "" = it is
};

// The row of a model type; a row of unknowns (native, no route) for one that is not listed.
const ModelTypeRow& find_model_type(std::string_view model_type);

}  // namespace perch
