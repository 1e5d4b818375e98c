// moe.h - one call of a fused MoE layer.
#pragma once

#include "objects.h"

namespace humming_cpu {

// The workspace is as large as scratch_bytes says. Writes y and the workspace only.
void execute_moe(const perch_prepared& prepared, const perch_exec_args& args);

}  // namespace humming_cpu
