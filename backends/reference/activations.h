// The activations of layer.h, one element at a time, NaN in and NaN out.
#pragma once

#include <perch/layer.h>

namespace reference {

// a = act(g, u). The activations without a gate take their argument as `gate` and ignore `up`.
// The function itself is evaluated in double and rounded to f32; products of two f32 are f32.
float activate(const perch_moe_config& moe, float gate, float up);

}  // namespace reference
