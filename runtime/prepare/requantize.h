// Requantization on request: one expert's canonical tensors in another weight format.
//
// Lossy and never done unasked: a rule's `requant:` or the option --requant names the format.
// Values are decoded to f32 by layer.h's algebra and quantized by the formulas below; the error is
// measured while it is made, and reported.
//
//   intB, midpoint   the element of largest magnitude takes the code -2^(B-1), which the other side
//                    lacks: s = its sign times -max(|it|/(Q + 1.499), other/(Q + 0.499)), with
//                    Q = 2^(B-1) - 1 and `other` the largest magnitude of the other sign
//   intB, zero int   s = (max - min)/(2^B - 1) with 0 inside [min, max], zero = rne(-min/s)
//   floats           s = absmax/max of the type; with e8m0 the smallest power of two above that
//   e4m3 scales      second scale t = absmax(matrix)/(448 max), s = e4m3(absmax(group)/(max t))
//                    (nvfp4; facts of its checkpoints)
// s is rounded to its dtype first; codes are rne(w/s), saturating. An absmax of 0 gives scale 1.
#pragma once

#include <string>

#include "base/layer_config.h"
#include "base/status.h"
#include "canonical/read_expert.h"

namespace perch {

// Of all weights converted so far. Means are over elements.
struct RequantError {
  double sum_squares = 0;        // of the weights
  double sum_error_squares = 0;  // of what was lost
  double largest = 0;            // difference of one weight
  // Root mean square of the error over that of the weights; 0 for all-zero weights.
  double relative() const;
};

// from: a config whose tensors `expert` holds. to: requantized_config(from, ...). A weight that is
// no number is refused: no scale fits it.
Result<CanonicalExpert> requantize(const CanonicalExpert& expert, const LayerConfig& from,
                                   const LayerConfig& to, RequantError* error);

}  // namespace perch
