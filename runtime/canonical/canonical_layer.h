// CanonicalLayer: one layer of a checkpoint, ready to be offered to backends.
//
// What step 3 hands to step 4: a LayerConfig, and the means to read any expert's canonical tensors.
// Nothing is decoded before it is asked for, so memory stays at the experts in flight.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/layer_config.h"
#include "base/status.h"
#include "canonical/format.h"
#include "canonical/layout.h"
#include "canonical/router.h"
#include "canonical/slice.h"

namespace perch {

// What a caller may decide about all layers of a model.
struct CanonicalOptions {
  Split split;
  uint32_t orientation = 0;  // PERCH_ORIENTATION_*
  uint32_t in_dtype = 0;     // PERCH_TYPE_*, 0 = the checkpoint's
  uint32_t out_dtype = 0;
  perch_device device = {kDLCPU, 0};
  int64_t max_tokens = 4096;
  perch_caps require = 0;
  perch_caps prefer = 0;
  bool allow_unexpected = false;
  bool allow_nan = false;
};

struct CanonicalLayer {
  LayerConfig config;
  LayerSource source;
  MatrixPlan gate, up, down;  // MoE: equal for all experts; gate unused when not gated
  MatrixPlan linear;
  MatrixSlice first_slice;          // of gate and of up each, or of the linear layer
  MatrixSlice second_slice;         // of down
  Range experts;                    // global ids held here
  std::vector<int32_t> expert_map;  // empty without expert parallelism
  std::optional<RouterSource> router;
  int64_t checkpoint_bytes = 0;  // of this slice's weights as stored
  std::string note;              // why there is no router
};

Result<CanonicalLayer> canonicalize_layer(const ModelConfig& config, LayerSource source,
                                          const CanonicalOptions& options,
                                          std::vector<std::string>* warnings);

// One tensor in canonical form, owned.
struct CanonicalTensor {
  TensorSpec spec;
  std::vector<std::byte> data;
};

// Reads expert `expert` (local id; -1 for a linear layer): the tensors of tensor_specs(config), in
// that order.
Result<std::vector<CanonicalTensor>> read_expert(const CanonicalLayer& layer, int64_t expert);

}  // namespace perch
