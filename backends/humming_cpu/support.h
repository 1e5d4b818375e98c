// support.h - may this layer be run here? Every reason why not, or the promises.
#pragma once

#include "isa.h"
#include "perch/backend.h"
#include "plan.h"

namespace humming_cpu {

// The level that a layer's options ask for, `fallback` without one. False: `text` says why not.
bool layer_isa(const perch_layer_config& config, Isa fallback, Isa* isa, char (&text)[192]);

// What a variant promises for any config that it takes.
perch_caps variant_caps(Variant variant);

// Fills all of `support`. `isa` is the level that the backend was made with.
void query_support(const perch_layer_config& config, uint32_t variant, Isa isa,
                   perch_support* support);

// Fills all of `layout`, for a config that is supported.
void describe(const LayerPlan& plan, int64_t num_tokens, perch_layout* layout);

}  // namespace humming_cpu
