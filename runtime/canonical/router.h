// Router: how a MoE layer chooses its experts, as its model defines it.
//
// The configuration half of routing, read from config.json and the router's tensors. The arithmetic
// is run/route.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "canonical/layout.h"
#include "canonical/model_config.h"
#include "canonical/model_types.h"
#include "perch/runtime.h"

namespace perch {

// Movable only: config's pointers point into the vectors, whose values stay where they are in a
// move.
struct RouterSource {
  RouterSource() = default;
  RouterSource(RouterSource&&) = default;
  RouterSource& operator=(RouterSource&&) = default;

  perch_route_config config{};
  std::vector<float> correction_bias;
  std::vector<float> expert_scale;
  std::vector<float> logit_bias;      // of the router's linear layer; empty when it has none
  std::vector<float> input_scale;     // [H]: the router sees x / rms(x) times it; empty: it sees x
  double input_epsilon = 0.0;         // added to the mean square of x
  const RawTensor* weight = nullptr;  // [E, H of the model]
  std::string formula;                // "softmax, topk, renormalized (R1)": for inspect
};

// nullopt when the layer's routing is not known or not offered, or the router's tensor is absent;
// `note` then says which.
Result<std::optional<RouterSource>> find_router(const ModelConfig& config, const ModelTypeRow& row,
                                                const LayerSource& layer,
                                                const Checkpoint& checkpoint, std::string* note);

// The module that holds both the experts and the router of `layer`.
std::string router_parent(const std::string& layer);

// Reads a vector of F32, F16 or BF16.
Result<std::vector<float>> read_floats(const RawTensor& tensor);

}  // namespace perch
