// Step 8 for perch_model_compare: the call that was run, given to agree/ as rows with experts.
#pragma once

#include "base/status.h"
#include "perch/runtime.h"
#include "prepare/prepare.h"

namespace perch {

// `selection` made the layer: its config decides what may be rounded, its requant the weights.
// `args` are tensors that execute accepted; MoE in the standard form only. `support_flags`:
// PERCH_SUPPORT_* of the candidate that made y. `expected` is [T,H] or [T,N], F32, F16 or BF16.
// `comparison` has its struct_size set.
Status compare_output(const CanonicalLayer& layer, const Selection& selection,
                      uint32_t support_flags, const perch_exec_args& args, const DLTensor& expected,
                      perch_comparison* comparison);

}  // namespace perch
