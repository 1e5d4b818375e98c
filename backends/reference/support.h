// "May I run this?" Answered with every reason, never with a guess.
#pragma once

#include <perch/backend.h>

namespace reference {

inline constexpr perch_caps kCaps = PERCH_CAP_DETERMINISTIC | PERCH_CAP_BATCH_INVARIANT |
                                    PERCH_CAP_EXPERT_LOAD_INVARIANT | PERCH_CAP_NO_ALLOC_EXECUTE |
                                    PERCH_CAP_CONCURRENT_EXECUTE | PERCH_CAP_FP32_ACCUM |
                                    PERCH_CAP_ROW_STRIDED_ACT | PERCH_CAP_THREADS_FROM_HOST;

// Fills the answer for the one variant there is.
void answer(const perch_host_api& host, const perch_layer_config& config, perch_support* support);

}  // namespace reference
