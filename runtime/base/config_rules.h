// Is this perch_layer_config well formed? Asked before anything else looks at one.
//
// Only what the structs say about themselves: pointers, sizes, enumerators, extension chains, and
// which fields go together (layer.h, contract §1 and §2). Not whether some backend can run it: that
// is select/. Every breach is reported, not the first.
//
// Codes: ABI_MISMATCH a struct_size that cannot be (R5) · UNSUPPORTED a number, flag, field or
// must-understand extension that this runtime does not know (R7), or an input quantization that is
// not in contract §2 · INVALID_ARGUMENT everything else, also an enumerator of 0.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "perch/layer.h"

namespace perch {

struct RuleBreach {
  std::string field;  // as in perch_reason: "moe.w13.group_k", "max_tokens"
  std::string text;   // "got 0; want at least 1"
  perch_status code = PERCH_E_INVALID_ARGUMENT;
};

// Empty when `config` may be copied into a LayerConfig and be used. Reads what the pointers in it
// point to, as far as each struct_size allows, and keeps nothing.
std::vector<RuleBreach> check_layer_config(const perch_layer_config& config);

// All breaches in one line under the code of the first; OK when there are none.
Status breach_status(std::span<const RuleBreach> breaches);

}  // namespace perch
