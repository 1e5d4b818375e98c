// A layer to be timed, from a case line or from a checkpoint: how to make one, and its calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/limits/floor.h"
#include "check/case_data.h"
#include "command.h"

namespace perch_bench {

// The input of one call, owned, and the arguments that point to it.
class Call {
 public:
  // `call` is moved from. y is the caller's, of y_bytes(), so that calls may share it.
  Call(const perch_layer_config& config, perch_check::CallData call, bool ids64, std::byte* y);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  static int64_t y_bytes(const perch_layer_config& config, int64_t num_tokens);

  // Everything but the workspace.
  const perch_exec_args& args() const { return args_; }
  int64_t num_tokens() const { return data_.num_tokens; }
  int64_t visits() const { return visits_; }  // rows through an expert that is held here
  double share_touched() const { return share_touched_; }  // of the experts

 private:
  const DLTensor* add(void* data, DLDataType dtype, std::vector<int64_t> shape);
  void count_visits(const perch_layer_config& config);

  perch_check::CallData data_;
  std::vector<int32_t> ids32_;
  std::vector<std::unique_ptr<perch_host::Tensor>> tensors_;
  perch_exec_args args_{};
  int64_t visits_ = 0;
  double share_touched_ = 1;
};

struct Target {
  const perch_layer_config* config = nullptr;
  double format_bytes = 0;  // of all weights as the checkpoint would hold them; 0: not known
  std::function<perch_host::Layer()> make_layer;
};

// What makes the input of call number i: rows and routing that no other i has.
using CallMaker = std::function<perch_check::CallData(int64_t i)>;

// Layers of a case, with random weights. A few experts are made and serve all the others: each
// still has packed memory of its own. `runtime` and `config` outlive the target.
Target case_target(const perch_host::Runtime& runtime, const perch::LayerConfig& config);
CallMaker case_calls(const perch::Case& problem);

// Layer `index` of a checkpoint; rows by hash, routed by the model's own router where it has one.
Target model_target(const perch_host::Model& model, uint32_t index);
CallMaker model_calls(const perch_host::Model& model, uint32_t index, int64_t tokens);

}  // namespace perch_bench
