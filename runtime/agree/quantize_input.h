// The input of a GEMM as the recipe quantizes it: layer.h's table of scales and codes, one row at a
// time. Scale, reciprocal and x * r are f32, each rounded once; a value is code * scale, in f64.
#pragma once

#include <span>

#include "perch/layer.h"

namespace perch {

// Writes what each of x stands for once it is quantized to out[0 .. x.size()): NaN in a group (in a
// row, without groups) that holds NaN or infinity. `input_scale` is read in the static modes.
// Returns the largest distance between two neighbouring codes that one of the values may have.
double quantize_input(const perch_act_quant& act, float input_scale, std::span<const float> x,
                      double* out);

}  // namespace perch
