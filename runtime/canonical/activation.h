// The activation of a model's experts: from the names that configs use to the ABI's.
#pragma once

#include "base/status.h"
#include "canonical/model_config.h"
#include "canonical/model_types.h"
#include "perch/layer.h"

namespace perch {

// Sets activation, parameters and their presence flags of `moe`. `gated`: whether the checkpoint
// has gate tensors.
Status set_activation(const ModelConfig& config, const ModelTypeRow& row, bool gated,
                      perch_moe_config* moe);

}  // namespace perch
