// CanonicalLayer: one layer of a checkpoint, ready to be offered to backends.
//
// What step 3 hands to step 4: a LayerConfig, and all that read_expert.h needs to read any expert's
// canonical tensors. Nothing is decoded before it is asked for, so memory stays at the experts in
// flight.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/layer_config.h"
#include "base/status.h"
#include "canonical/layer_algebra.h"
#include "canonical/layout.h"
#include "canonical/neighbours.h"
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
  std::vector<ExpertPlan> plans;  // MoE: of each expert in the checkpoint
  MatrixPlan linear;
  MatrixSlice first_slice;             // of gate and of up each, or of the linear layer
  MatrixSlice second_slice;            // of down
  std::vector<int64_t> experts;        // global ids held here
  std::vector<int32_t> expert_map;     // empty without expert parallelism
  std::vector<DerivedTensor> derived;  // tensors that the checkpoint has in another form
  std::optional<RouterSource> router;
  Neighbours neighbours;         // MoE: what runs beside the experts
  int64_t checkpoint_bytes = 0;  // of this slice, canonical
  std::string note;              // why there is no router
};

Result<CanonicalLayer> canonicalize_layer(const ModelConfig& config, LayerSource source,
                                          const CanonicalOptions& options,
                                          std::vector<std::string>* warnings);

}  // namespace perch
