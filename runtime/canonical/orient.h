// Orientation of fused expert tensors: which stored axis is which.
//
// The rule: metadata decides (an override, else the model_type's row, else native) and shape only
// confirms, because shape cannot decide where H == I, H == 2I, or a block grid is square. What has
// a K axis turns with the weight: codes, and scales by group or block. Other scales and biases have
// none and never turn.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "canonical/model_config.h"
#include "canonical/model_types.h"
#include "canonical/raw_view.h"

namespace perch {

struct OrientationChoice {
  bool transposed = false;   // [E,K,N] instead of [E,N,K]
  bool interleaved = false;  // row 2j is gate, 2j+1 up, instead of halves
  std::string decided_by;    // "per-expert tensors", "model_type qwen3_vl_moe", "option"
};

// "native", "transposed", "native, interleaved", "transposed, interleaved"
const char* orientation_name(const OrientationChoice& orientation);

// `override_value`: PERCH_ORIENTATION_*.
OrientationChoice choose_orientation(const ModelConfig& config, const ModelTypeRow& row,
                                     uint32_t override_value);

enum class FusedRole {
  kMatrix,  // codes, or scales with a row for each of theirs: turns, splits in halves
  kBlocks,  // a grid of blocks: turns, stays whole
  kRows,    // one value per row or fewer: never turns, splits in halves
};

// A fused tensor read as native [E, rows, columns].
struct FusedView {
  const RawTensor* tensor = nullptr;
  int64_t experts = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t expert_stride = 0;  // 0: one value for all experts
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

// Nothing is moved: strides turn. kMatrix and kBlocks: rank 3, or rank 4 whose last two dimensions
// are one (blocks of packed codes). kRows: [], [1], [E], [E,N], [E,N,1] or [E,1,N].
Result<FusedView> orient(const RawTensor& tensor, FusedRole role, int64_t experts,
                         const OrientationChoice& orientation);

// Expert e's rows of a fused tensor.
RawView expert_view(const FusedView& fused, int64_t expert);
// Half 0 (gate) or 1 (up) of them. A tensor with a single row is shared by both.
RawView half_view(const FusedView& fused, int64_t expert, const OrientationChoice& orientation,
                  int64_t half);

}  // namespace perch
