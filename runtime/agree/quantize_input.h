// The input of a GEMM as the recipe quantizes it: layer.h's table of scales and codes, one row at a
// time. Scale, reciprocal and x * r are f32, each rounded once; a value is code * scale, in f64.
#pragma once

#include <span>

#include "perch/layer.h"

namespace perch {

// Writes what each of x stands for once it is quantized to out[0 .. x.size()): NaN in a group (in a
// row, without groups) that holds NaN or infinity. `input_scale` is read in the static modes.
void quantize_input(const perch_act_quant& act, float input_scale, std::span<const float> x,
                    double* out);

// How far the value of one quantized number may be from quantize_input's, where the number itself
// may be off by `error`. Zero for most: codes are steps.
struct QuantizedError {
  double tie = 0;    // it lies where codes meet, and becomes one or the other
  double scale = 0;  // its group's scale does, or moves with the group's largest
};
// Writes errors.size() of them, and the largest distance between two neighbouring codes of the row
// to *step.
void quantized_errors(const perch_act_quant& act, float input_scale, std::span<const float> x,
                      std::span<const double> errors, QuantizedError* out, double* step);

}  // namespace perch
