// Layout: which tensors of a checkpoint make up which layer.
//
// Names only: storage classes (per expert, fused, transposed, interleaved, non-gated) end here.
// What comes out is the same for all: a layer with, for each expert, a gate, an up and a down
// projection. How the numbers are stored is the format's business (format.h), sizes are checked
// afterwards (canonical_layer.h).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "canonical/orient.h"
#include "canonical/raw_view.h"
#include "checkpoint/checkpoint.h"

namespace perch {

struct ExpertSource {
  Projection gate;  // no parts when the experts have no gate
  Projection up;
  Projection down;
};

struct LayerSource {
  std::string name;  // the module that holds the experts, or the linear layer
  bool moe = false;
  bool gated = false;
  std::vector<ExpertSource> experts;  // MoE
  Projection linear;                  // linear
  OrientationChoice orientation;      // MoE
  std::vector<std::string> tensors;   // every tensor under the layer, for inspect
};

struct Layout {
  std::vector<LayerSource> layers;           // in the order of their layer numbers
  std::vector<const RawTensor*> unexpected;  // tensors under an experts module that no rule names
};

// All MoE layers and all quantized linear layers of the checkpoint. `chosen` applies to fused
// expert tensors; per-expert tensors are native.
Result<Layout> find_layers(const ModelConfig& config, const std::vector<RawTensor>& tensors,
                           const OrientationChoice& chosen);

}  // namespace perch
