// Orientation of fused expert tensors: which stored axis is which.
//
// The rule: metadata decides (an override, else the model_type's row, else native) and shape only
// confirms, because shape cannot decide where H == I, H == 2I, or a block grid is square. Weights
// and block scales turn together; other scales and biases have no K axis and never turn.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "canonical/model_config.h"
#include "canonical/model_types.h"
#include "canonical/raw_view.h"

namespace perch {

enum class Orientation { kNative, kTransposed, kInterleaved };
const char* orientation_name(Orientation orientation);

struct OrientationChoice {
  Orientation value = Orientation::kNative;
  std::string decided_by;  // "per-expert tensors", "model_type qwen3_vl_moe", "option"
};

// `override_value`: PERCH_ORIENTATION_*.
OrientationChoice choose_orientation(const ModelConfig& config, const ModelTypeRow& row,
                                     uint32_t override_value);

enum class FusedRole { kWeight, kBlockScale, kOther };

// A fused tensor read as native [E, rows, columns].
struct FusedView {
  const RawTensor* tensor = nullptr;
  int64_t experts = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t expert_stride = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

// Rank 3, or rank 2 and 1 for the kOther role ([E,N] and [E]). Nothing is moved: strides turn.
Result<FusedView> orient(const RawTensor& tensor, FusedRole role, Orientation orientation);

// Expert e's rows of a fused tensor: all, or its gate or up rows. A tensor with a single row (one
// scale per expert) is shared by gate and up.
RawView expert_view(const FusedView& fused, int64_t expert);
RawView gate_view(const FusedView& fused, int64_t expert, Orientation orientation);
RawView up_view(const FusedView& fused, int64_t expert, Orientation orientation);

}  // namespace perch
