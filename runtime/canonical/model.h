// CanonicalModel: a checkpoint with all its layers canonicalized. The end of step 3.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "canonical/canonical_layer.h"
#include "canonical/model_config.h"
#include "checkpoint/checkpoint.h"

namespace perch {

struct CanonicalModel {
  Checkpoint checkpoint;  // layers point into it
  ModelConfig config;
  std::vector<CanonicalLayer> layers;
  std::vector<std::string> warnings;
};

Result<CanonicalModel> canonicalize_model(Checkpoint checkpoint, const CanonicalOptions& options);

}  // namespace perch
