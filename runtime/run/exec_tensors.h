// The tensors of one call, checked and normalised: what a backend is given instead of the host's.
//
// Lives on the stack of execute_layer; allocates only to say what is wrong.
#pragma once

#include "base/layer_config.h"
#include "base/status.h"
#include "base/tensor_rules.h"
#include "perch/layer.h"

namespace perch {

struct ExecTensors {
  NormalTensor x, x_scale, y;
  NormalTensor ids, weights, map, counts, offsets;
  int64_t num_tokens = 0;
  uint64_t workspace_begin = 0;
  uint64_t workspace_end = 0;
  perch_exec_args args{};  // points to the tensors above
};

struct CallRules {
  const LayerConfig& config;
  perch_caps caps = 0;  // of the candidate
  uint32_t align = 0;
};

// Everything but the workspace's size, which depends on num_tokens and is checked next.
Status check_exec_tensors(const CallRules& rules, const perch_exec_args& args, ExecTensors* out);

// Ids, counts, offsets and map hold values: in range, on the CPU.
Status check_routing_values(const CallRules& rules, const ExecTensors& tensors);

// y against everything else, workspace included.
Status check_overlap(const CallRules& rules, const ExecTensors& tensors);

}  // namespace perch
