// The call: what it needs of the workspace, and the computation itself.
#pragma once

#include <perch/backend.h>

#include <cstdint>

#include "layer_spec.h"
#include "prepare.h"
#include "status.h"

namespace reference {

inline constexpr uint32_t kWorkspaceAlign = 64;

// One scratch per thread of the host; the same for every number of tokens but 0.
uint64_t workspace_bytes(const perch_host_api& host, const LayerSpec& spec, int64_t num_tokens);

Status execute(const perch_prepared& layer, const perch_exec_args& args);

}  // namespace reference
