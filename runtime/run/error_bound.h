// How far an output element may be from the exact one: the sums of contract §2, carried through.
//
// S is the sum of absolute products |w||x| of a layer with the activation by its slope and the
// slots by their weights; S_mid is what one rounding each of h, a, y_e (and of x * w on the input)
// may add. Computed in f64 from canonical tensors, one expert at a time.
#pragma once

#include <vector>

#include "base/status.h"
#include "canonical/canonical_layer.h"
#include "perch/layer.h"

namespace perch {

// Rows of a call as f64, with what is known of each output element.
struct ErrorBound {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> s;      // [rows, columns]
  std::vector<double> mid;    // u_mid * S_mid
  std::vector<double> flips;  // one code step of a quantized a, times the largest |w2|
};

// `config` is the one in force (its dtypes decide what may be rounded). `args` are tensors that
// execute accepted; MoE in the standard form only.
Result<ErrorBound> error_bound(const CanonicalLayer& layer, const LayerConfig& config,
                               const perch_exec_args& args);

// Unit roundoff of F32, F16 or BF16, and the smallest normal number.
double unit_roundoff(uint32_t type);
double smallest_normal(uint32_t type);

}  // namespace perch
