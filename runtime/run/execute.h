// Step 7: one checked call of a prepared layer.
//
// The only way from a host's arguments to a backend's execute. Every tensor, size, id and overlap
// is checked first, so a refused call has written nothing; nothing is allocated on the way.
#pragma once

#include <mutex>

#include "base/status.h"
#include "perch/layer.h"
#include "prepare/prepare.h"
#include "select/candidate.h"

namespace perch {

// A layer that can run.
struct LayerState {
  LayerState(Selection chosen, Candidate with, Prepared weights)
      : selection(std::move(chosen)), candidate(std::move(with)), prepared(std::move(weights)) {}

  const LayerConfig& config() const { return selection.config; }

  Selection selection;
  Candidate candidate;
  Prepared prepared;
  bool validate = false;  // poison y and workspace first
  std::mutex serial;      // held during a call where CONCURRENT_EXECUTE is not promised
};

// struct_size, flags and extensions of a call's arguments.
Status check_args_header(const perch_exec_args& args);
Status check_call_shape(const char* function, const LayerConfig& config,
                        const perch_call_shape& shape);
Result<perch_workspace_req> query_workspace(const LayerState& layer, const perch_call_shape& shape);
Status execute_layer(LayerState& layer, const perch_exec_args& args);

}  // namespace perch
