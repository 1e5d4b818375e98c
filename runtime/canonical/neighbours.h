// Neighbours: what runs beside a MoE layer's routed experts and is not part of the layer.
//
// A shared expert and a latent projection are a model's ordinary linear layers, which the host runs
// itself. Here they are only found and named, for inspect. Where they are quantized, layout.h has
// each of their matrices as a linear layer too.
#pragma once

#include <optional>
#include <string>

#include "canonical/model_config.h"
#include "checkpoint/checkpoint.h"

namespace perch {

// Runs for every token; its output is added to that of the routed experts.
struct SharedExpert {
  std::string module;  // "model.layers.0.mlp.shared_expert"
  int64_t width = 0;   // its intermediate size; 0 where neither tensors nor the config tell
  std::string gate;    // tensor g [1,H]: its output is multiplied by sigmoid(x g); "" without one
};

// The experts work in `width` dimensions: x goes through `down`, their weighted sum through `up`.
// Router and shared expert see x itself.
struct LatentProjection {
  std::string down, up;  // tensors [width, hidden] and [hidden, width]
  int64_t width = 0;
  int64_t hidden = 0;
};

struct Neighbours {
  std::optional<SharedExpert> shared;
  std::optional<LatentProjection> latent;
};

// `layer`: the module that holds the experts.
Neighbours find_neighbours(const ModelConfig& config, const std::string& layer,
                           const Checkpoint& checkpoint);

}  // namespace perch
