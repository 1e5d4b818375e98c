// Which perch_quant and perch_act_quant are points of the algebra. All of them are supported.
#pragma once

#include <perch/layer.h>

#include <cstdint>
#include <string>

#include "reasons.h"

namespace reference {

// `path` names the struct: "moe.w13". k is the contraction dimension.
void check_quant(const std::string& path, const perch_quant* quant, int64_t k, Reasons* reasons);
// NULL is "not quantized".
void check_act(const std::string& path, const perch_act_quant* act, Reasons* reasons);

}  // namespace reference
