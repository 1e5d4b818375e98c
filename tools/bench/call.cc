// call.cc - Call: the tensors of one call.
#include <set>

#include "bench/target.h"
#include "layer_input.h"

namespace perch_bench {
namespace {

using perch_command::dlpack_type;
using perch_command::input_width;
using perch_command::output_width;
using perch_command::type_bytes;

uint32_t form_of(const perch_layer_config& config) {
  return config.kind == PERCH_KIND_MOE ? config.moe->form : PERCH_FORM_STANDARD;
}

std::vector<int64_t> row_shape(const perch_layer_config& config, int64_t num_tokens,
                               int64_t width) {
  if (form_of(config) != PERCH_FORM_BATCHED) return {num_tokens, width};
  return {static_cast<int64_t>(config.moe->num_experts), num_tokens, width};
}

}  // namespace

int64_t Call::y_bytes(const perch_layer_config& config, int64_t num_tokens) {
  int64_t bytes = type_bytes(config.out_dtype);
  for (const int64_t dim : row_shape(config, num_tokens, output_width(config))) bytes *= dim;
  return bytes;
}

const DLTensor* Call::add(void* data, DLDataType dtype, std::vector<int64_t> shape) {
  tensors_.push_back(std::make_unique<perch_host::Tensor>(data, dtype, std::move(shape)));
  return tensors_.back()->get();
}

Call::Call(const perch_layer_config& config, perch_check::CallData call, bool ids64, std::byte* y)
    : data_(std::move(call)) {
  args_.struct_size = sizeof(args_);
  args_.x = add(data_.x.data(), dlpack_type(config.in_dtype),
                row_shape(config, data_.num_tokens, input_width(config)));
  args_.y = add(y, dlpack_type(config.out_dtype),
                row_shape(config, data_.num_tokens, output_width(config)));
  count_visits(config);
  if (config.kind != PERCH_KIND_MOE) return;
  const DLDataType i64 = {kDLInt, 64, 1};
  const DLDataType i32 = {kDLInt, 32, 1};
  const auto experts = static_cast<int64_t>(config.moe->num_experts);
  if (config.moe->form == PERCH_FORM_BATCHED) {
    args_.expert_counts = add(data_.counts.data(), i64, {experts});
  } else if (config.moe->form == PERCH_FORM_GROUPED) {
    args_.expert_offsets = add(data_.offsets.data(), i64, {experts + 1});
  } else {
    const std::vector<int64_t> shape = {data_.num_tokens, config.moe->topk};
    ids32_.assign(data_.ids.begin(), data_.ids.end());
    args_.topk_ids = ids64 ? add(data_.ids.data(), i64, shape) : add(ids32_.data(), i32, shape);
    args_.topk_weights = add(data_.weights.data(), {kDLFloat, 32, 1}, shape);
    if (!data_.expert_map.empty()) {
      args_.expert_map =
          add(data_.expert_map.data(), i32, {static_cast<int64_t>(data_.expert_map.size())});
    }
  }
}

void Call::count_visits(const perch_layer_config& config) {
  if (config.kind != PERCH_KIND_MOE) {
    visits_ = data_.num_tokens;
    return;
  }
  std::set<int64_t> touched;
  const auto visit = [&](int64_t expert) {
    if (expert < 0) return;
    ++visits_;
    touched.insert(expert);
  };
  for (const int64_t id : data_.ids) {
    const bool mapped = id >= 0 && !data_.expert_map.empty();
    visit(mapped ? data_.expert_map[static_cast<size_t>(id)] : id);
  }
  for (const int64_t expert : data_.expert) visit(expert);
  share_touched_ = static_cast<double>(touched.size()) / config.moe->num_experts;
}

}  // namespace perch_bench
