// tensors.h - the canonical tensors of one expert, found by name and checked.
#pragma once

#include "perch/backend.h"
#include "plan.h"

namespace humming_cpu {

// As the ABI names them: "w13", "w13.scale" and so on.
enum Role : int32_t {
  kCodes,
  kScale,
  kScale2,
  kZero,
  kOffset,
  kLut,
  kOrder,
  kBias,
  kInputScale,
  kPreScale,
  kNumRoles
};

struct ExpertTensors {
  const uint8_t* data[2][kNumRoles];  // null: not one that this layer has
};

// INVALID_ARGUMENT with the tensor's name for one that is missing, not known, given twice, of
// another size or type, or holding what it may not: a zero point or group index out of range, an
// input scale that is no positive number, a NaN where the layer does not allow it. Nothing is
// written but `found`.
perch_status find_tensors(const LayerPlan& plan, const perch_named_tensor* tensors,
                          uint32_t num_tensors, ExpertTensors* found, perch_error* error);

}  // namespace humming_cpu
