// Router logits: the small matrix product before routing, in f64 with one rounding to f32.
#pragma once

#include "base/status.h"
#include "canonical/router.h"

namespace perch {

// x [T,H] of F32, F16 or BF16 -> logits f32 [T,E], both contiguous and checked here.
Status router_logits(const RouterSource& router, const DLTensor* x, const DLTensor* logits);

}  // namespace perch
