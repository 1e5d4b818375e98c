// One call of a backend, every tensor of it in guarded memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "check/door.h"
#include "check/heap_watch.h"
#include "numeric/decode.h"

namespace perch_check {
namespace {

constexpr int64_t kRowGap = 3;  // elements between rows of a strided tensor
constexpr std::byte kGap{0xA7};

// A tensor of a call in memory of its own.
struct CallTensor {
  GuardedBuffer buffer;
  std::vector<int64_t> shape, strides;
  DLTensor tensor{};

  void make(const std::string& name, DLDataType dtype, std::vector<int64_t> dims, int64_t gap,
            size_t align, Side side) {
    shape = std::move(dims);
    strides.assign(shape.size(), 1);
    const size_t last = shape.size() - 1;
    int64_t next = shape[last] + gap;
    int64_t rows = 1;
    for (size_t i = last; i-- > 0;) {
      strides[i] = next;
      next *= shape[i];
      rows *= shape[i];
    }
    const int64_t elements = rows == 0 ? 0 : (rows - 1) * (shape[last] + gap) + shape[last];
    const size_t bytes = static_cast<size_t>(elements) * dtype.bits / 8;
    buffer = GuardedBuffer(name, bytes, std::max<size_t>(align, dtype.bits / 8U), side);
    tensor.data = elements == 0 ? nullptr : buffer.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dtype = dtype;
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }

  template <typename T>
  void fill_from(const std::vector<T>& values) {
    if (!values.empty()) std::memcpy(buffer.data(), values.data(), values.size() * sizeof(T));
    buffer.make_read_only();
  }
  const DLTensor* get() const { return shape.empty() ? nullptr : &tensor; }
};

int64_t rows_of(const CallTensor& tensor) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return rows;
}

// Copies rows between dense bytes and a tensor whose rows may lie apart.
template <typename Fn>
void for_each_row(const CallTensor& tensor, Fn&& fn) {
  const int64_t width = tensor.shape.back();
  const int64_t stride =
      tensor.strides.size() > 1 ? tensor.strides[tensor.strides.size() - 2] : width;
  const int64_t element = tensor.tensor.dtype.bits / 8;
  for (int64_t row = 0; row < rows_of(tensor); ++row) {
    fn(row, tensor.buffer.data() + row * stride * element, static_cast<size_t>(width * element),
       static_cast<size_t>((stride - width) * element));
  }
}

class CallMemory {
 public:
  CallMemory(const Prepared& prepared, const CallData& call, const CallOptions& options)
      : prepared_(prepared), config_(prepared.config()), call_(call), options_(options) {
    request_ = prepared.workspace(call.num_tokens);
    const perch_layer_config& layer = config_.abi();
    const int64_t gap = options.strided ? kRowGap : 0;
    const bool batched = config_.is_moe() && config_.moe().form == PERCH_FORM_BATCHED;
    std::vector<int64_t> rows =
        batched ? std::vector<int64_t>{config_.moe().num_experts, call.num_tokens}
                : std::vector<int64_t>{call.num_tokens};
    std::vector<int64_t> x_shape = rows, y_shape = rows;
    x_shape.push_back(call.columns);
    y_shape.push_back(config_.rows(config_.is_moe() ? 1 : 0));
    x_.make("x", float_dlpack(layer.in_dtype), x_shape, gap, 1, options.side);
    for_each_row(x_, [&](int64_t row, std::byte* at, size_t bytes, size_t) {
      std::memcpy(at, call.x.data() + row * static_cast<int64_t>(bytes), bytes);
    });
    y_.make("y", float_dlpack(layer.out_dtype), y_shape, gap, 1, options.side);
    make_workspace();
    fill_output();
    if (options.overlap != CallOptions::Overlap::kInPlace) x_.buffer.make_read_only();
    if (config_.is_moe()) make_routing();
  }

  Output run() {
    Output output;
    perch_exec_args args = make_args();
    perch_error error = PERCH_ERROR_INIT;
    Instance& instance = prepared_.instance();
    if (options_.read_only_weights) instance.host().set_read_only(true);
    if (options_.count_allocations) HeapWatch::start();
    const int64_t before = instance.host().allocations();
    output.reply.status = instance.api().execute(prepared_.handle(), &args, &error);
    if (options_.count_allocations) {
      output.allocations = HeapWatch::stop() + instance.host().allocations() - before;
    }
    if (options_.read_only_weights) instance.host().set_read_only(false);
    if (!output.reply.ok()) output.reply.message = error.message;
    read_output(&output);
    output.damage = damage();
    return output;
  }

 private:
  using Overlap = CallOptions::Overlap;

  // y's memory: its own, x's, or a part of the workspace.
  std::byte* output_data() const {
    if (options_.overlap == Overlap::kInPlace) return x_.buffer.data();
    if (options_.overlap == Overlap::kWorkspaceHead) return workspace_.data();
    if (options_.overlap == Overlap::kWorkspaceTail) return workspace_.data() + workspace_shift_;
    return y_.buffer.data();
  }

  void make_workspace() {
    // Where y lies in the workspace, the workspace may have to be longer than asked for.
    size_t bytes = request_.bytes;
    const bool shared =
        options_.overlap == Overlap::kWorkspaceHead || options_.overlap == Overlap::kWorkspaceTail;
    if (shared) bytes = std::max(bytes, y_.buffer.size());
    workspace_ = GuardedBuffer("workspace", bytes, request_.align, options_.side);
    workspace_.fill(options_.poison);
    if (options_.overlap == Overlap::kWorkspaceTail) {
      const size_t element = y_.tensor.dtype.bits / 8U;
      workspace_shift_ = (bytes - y_.buffer.size()) / element * element;
    }
    if (options_.overlap != Overlap::kNone && y_.tensor.data != nullptr) {
      y_.tensor.data = output_data();
    }
  }

  void fill_output() {
    if (options_.overlap != Overlap::kNone) return;
    for_each_row(y_, [&](int64_t row, std::byte* at, size_t bytes, size_t gap) {
      if (options_.stale != nullptr && !options_.stale->empty()) {
        const size_t from = static_cast<size_t>(row) * bytes % options_.stale->size();
        for (size_t i = 0; i < bytes; ++i) {
          at[i] = (*options_.stale)[(from + i) % options_.stale->size()];
        }
      } else {
        std::memset(at, static_cast<int>(options_.poison), bytes);
      }
      if (row + 1 < rows_of(y_)) std::memset(at + bytes, static_cast<int>(kGap), gap);
    });
  }

  void make_routing() {
    const perch_moe_config& moe = config_.moe();
    const Side side = options_.side;
    if (moe.form == PERCH_FORM_BATCHED) {
      counts_.make("expert_counts", {kDLInt, 64, 1}, {moe.num_experts}, 0, 1, side);
      counts_.fill_from(call_.counts);
    } else if (moe.form == PERCH_FORM_GROUPED) {
      offsets_.make("expert_offsets", {kDLInt, 64, 1}, {int64_t{moe.num_experts} + 1}, 0, 1, side);
      offsets_.fill_from(call_.offsets);
    } else {
      const std::vector<int64_t> shape = {call_.num_tokens, moe.topk};
      const uint8_t bits = options_.ids64 ? 64 : 32;
      ids_.make("topk_ids", {kDLInt, bits, 1}, shape, 0, 1, side);
      if (options_.ids64) {
        ids_.fill_from(call_.ids);
      } else {
        ids_.fill_from(std::vector<int32_t>(call_.ids.begin(), call_.ids.end()));
      }
      weights_.make("topk_weights", {kDLFloat, 32, 1}, shape, 0, 1, side);
      weights_.fill_from(call_.weights);
    }
    if (call_.expert_map.empty()) return;
    map_.make("expert_map", {kDLInt, 32, 1}, {moe.num_experts_global}, 0, 1, side);
    map_.fill_from(call_.expert_map);
  }

  perch_exec_args make_args() const {
    perch_exec_args args{};
    args.struct_size = sizeof(args);
    args.x = x_.get();
    args.y = y_.get();
    args.topk_ids = ids_.get();
    args.topk_weights = weights_.get();
    args.expert_map = map_.get();
    args.expert_counts = counts_.get();
    args.expert_offsets = offsets_.get();
    args.workspace = workspace_.size() == 0 ? nullptr : workspace_.data();
    args.workspace_bytes = workspace_.size();
    args.stream.device = {kDLCPU, 0};
    return args;
  }

  void read_output(Output* output) const {
    const int64_t width = y_.shape.back() * (y_.tensor.dtype.bits / 8);
    output->row_bytes = width;
    output->place = call_.place;
    output->y.resize(static_cast<size_t>(rows_of(y_) * width));
    if (options_.overlap != Overlap::kNone) {
      if (!output->y.empty()) std::memcpy(output->y.data(), output_data(), output->y.size());
      return;
    }
    for_each_row(y_, [&](int64_t row, const std::byte* at, size_t bytes, size_t) {
      std::memcpy(output->y.data() + row * width, at, bytes);
    });
  }

  // The first byte that nobody may write and somebody wrote.
  std::string damage() const {
    const std::pair<const char*, const GuardedBuffer*> all[] = {
        {"x", &x_.buffer},
        {"y", &y_.buffer},
        {"workspace", &workspace_},
        {"topk_ids", &ids_.buffer},
        {"topk_weights", &weights_.buffer},
        {"expert_map", &map_.buffer},
        {"expert_counts", &counts_.buffer},
        {"expert_offsets", &offsets_.buffer}};
    for (const auto& [name, buffer] : all) {
      const int64_t offset = buffer->broken_canary();
      if (offset != 0) {
        return fmt::format("{} ({} bytes): byte {} beside it was written", name, buffer->size(),
                           offset);
      }
    }
    std::string text = prepared_.instance().host().broken_canary();
    if (!text.empty() || options_.overlap != Overlap::kNone) return text;
    for_each_row(y_, [&](int64_t row, const std::byte* at, size_t bytes, size_t gap) {
      if (row + 1 == rows_of(y_) || !text.empty()) return;
      const std::byte* end = at + bytes + gap;
      const std::byte* hit =
          std::find_if(at + bytes, end, [](std::byte byte) { return byte != kGap; });
      if (hit != end) {
        text = fmt::format("y: byte {} of the gap behind row {} was written",
                           hit - at - static_cast<std::ptrdiff_t>(bytes), row);
      }
    });
    return text;
  }

  const Prepared& prepared_;
  const perch::LayerConfig& config_;
  const CallData& call_;
  CallOptions options_;
  perch_workspace_req request_{};
  CallTensor x_, y_, ids_, weights_, map_, counts_, offsets_;
  GuardedBuffer workspace_;
  size_t workspace_shift_ = 0;
};

}  // namespace

Output execute(const Prepared& prepared, const CallData& call, const CallOptions& options) {
  return CallMemory(prepared, call, options).run();
}

std::vector<double> output_values(const perch::LayerConfig& config, const Output& output) {
  const uint32_t type = config.abi().out_dtype;
  const int64_t columns = output.row_bytes / float_bytes(type);
  std::vector<double> values;
  values.reserve(output.place.size() * static_cast<size_t>(columns));
  for (const int64_t place : output.place) {
    for (int64_t c = 0; c < columns; ++c) {
      values.push_back(
          double{perch::numeric::load_float(type, output.y.data(), place * columns + c)});
    }
  }
  return values;
}

}  // namespace perch_check
