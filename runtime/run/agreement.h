// Step 8: does an output agree with what it should be? Element by element, never an average.
#pragma once

#include "base/status.h"
#include "perch/runtime.h"
#include "run/error_bound.h"

namespace perch {

// The constants of contract §2; loosening one needs a reason in the commit.
struct Tolerance {
  double margin = 1.5;
  double accumulation = 2.0;  // c = accumulation * sqrt(K) + constant
  double constant = 4.0;
};

// `support_flags`: PERCH_SUPPORT_* of the candidate that made y. `expected` is [T,H] or [T,N], F32,
// F16 or BF16. `comparison` has its struct_size set.
Status compare_output(const CanonicalLayer& layer, const LayerConfig& config,
                      uint32_t support_flags, const perch_exec_args& args, const DLTensor& expected,
                      perch_comparison* comparison);

}  // namespace perch
