// An activation's value and how much it can magnify errors of its inputs.
//
// f64, scalar, from the formulas of layer.h. NaN in, NaN out.
#pragma once

#include "perch/layer.h"

namespace perch {

// An input of an activation and how far a correct backend's may be from it.
struct Uncertain {
  double value = 0;
  double error = 0;
};

// An error e of the gate and f of up changes the value by at most near_gate * e + by_up * f. What
// evaluates the function in f32 may be off by more than that where it is flat (1 + tanh cancels):
// by the largest slope there is, times the gate's own rounding.
struct ActivationSlope {
  double value = 0;
  double near_gate = 0;  // within the gate's error; the gate is the only input when not gated
  double by_gate = 0;    // anywhere
  double by_up = 0;
};

// `up` is ignored for activations that are not gated.
ActivationSlope activation_slope(const perch_moe_config& moe, Uncertain gate, Uncertain up);

// Additions and multiplications only: exact where all the products are.
inline bool is_exact_activation(uint32_t activation) {
  return activation == PERCH_ACTIVATION_RELU2 || activation == PERCH_ACTIVATION_RELU2_NO_MUL;
}

}  // namespace perch
