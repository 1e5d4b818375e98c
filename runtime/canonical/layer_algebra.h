// The algebra of a layer: one perch_quant per matrix that holds for all its experts, exactly.
//
// Experts, and the gate and up of one expert, may be stored a little differently: one scale each
// where the kernel contract has one for both, a group order in some experts and none in others.
// Where a finer member of the algebra holds all of them without a rounding, that one is taken and
// noted; where none does, the layer is refused with the two modules named. Values are never merged.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "canonical/format.h"
#include "canonical/layout.h"

namespace perch {

// What one expert stores. Gate is unused in a layer without gates.
struct ExpertPlan {
  MatrixPlan gate;
  MatrixPlan up;
  MatrixPlan down;
};

// A tensor of the layer that the checkpoint does not have in this form.
struct DerivedTensor {
  std::string name;    // "w13.scale"
  std::string reason;  // "gate and up of expert 3 have different scales: one per row"
  bool lossy = false;
};

struct LayerAlgebra {
  perch_quant w13{};
  perch_quant w2{};
  perch_act_quant act13{};
  perch_act_quant act2{};
  std::vector<DerivedTensor> derived;
};

// plans: one per expert of the layer, at least one.
Result<LayerAlgebra> join_experts(const LayerSource& source, const std::vector<ExpertPlan>& plans);

// Makes blocks of a matrix as fine as its cuts need: `row_cuts` are the rows at which a part of the
// canonical matrix or of a block may begin, `column_cuts` likewise. Groups along K only where the
// order of K is natural. True when anything changed.
bool fit_groups(const std::vector<int64_t>& row_cuts, const std::vector<int64_t>& column_cuts,
                perch_quant* quant);

}  // namespace perch
