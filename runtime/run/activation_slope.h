// An activation's value and how much it can magnify errors of its inputs: for the error bound.
//
// f64, scalar, from the formulas of layer.h. Not the oracle (backends/reference) and no kernel.
#pragma once

#include "perch/layer.h"

namespace perch {

struct ActivationSlope {
  double value = 0;
  double by_gate = 0;  // bound on |d value / d gate|, or of the only input when not gated
  double by_up = 0;
};

// `up` is ignored for activations that are not gated.
ActivationSlope activation_slope(const perch_moe_config& moe, double gate, double up);

}  // namespace perch
