// Routing: logits -> expert ids and weights. The arithmetic of R1..R9.
//
// Scores are rounded to f32, as the models' own code has them, so that what underflows there
// underflows here. What bad logits do is written at perch_route_config in runtime.h.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "perch/runtime.h"

namespace perch {

Status check_route_config(const perch_route_config& config);

// One token: logits [E] -> ids [topk], best first, and weights [topk].
void route_row(const perch_route_config& config, const float* logits, int32_t* ids, float* weights);

}  // namespace perch
