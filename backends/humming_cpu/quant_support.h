// quant_support.h - which weights and which quantized inputs this backend takes: all of the
// algebra.
#pragma once

#include "perch/layer.h"
#include "reasons.h"

namespace humming_cpu {

// `prefix` names the struct in reasons: "moe.w13".
void check_chain(const perch_ext* ext, const char* prefix, Reasons* reasons);
void check_quant(const perch_quant& quant, const char* prefix, int64_t k, Reasons* reasons);
// Null: not quantized.
void check_act(const perch_act_quant* act, const char* prefix, Reasons* reasons);

const char* type_name(uint32_t type);

}  // namespace humming_cpu
