// Fused expert tensors, one for all experts of a layer, seen as each expert's projections.
//
// Here orientation, interleaving and the two halves of gate_up end: what comes out looks like
// per-expert tensors. Names are layout.h's business.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "canonical/layout.h"
#include "canonical/model_config.h"

namespace perch {

enum class Part { kGate, kUp, kDown, kGateUp };

struct FusedTensor {
  Part part = Part::kGateUp;
  std::string module;  // "model.layers.0.mlp.experts.gate_up_proj"
  std::string suffix;  // "weight", "weight_scale", "blocks"
  const RawTensor* tensor = nullptr;
};

// Fills layer->experts, gated and orientation.
Status fill_fused(const ModelConfig& config, const std::vector<FusedTensor>& tensors,
                  const OrientationChoice& chosen, LayerSource* layer);

}  // namespace perch
