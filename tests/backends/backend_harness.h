// BackendHarness: a backend library opened and driven directly, without the runtime.
//
// For tests of one backend. It plays the host: memory is filled with 0xFF and counted, parallel_for
// is serial unless told otherwise, the workspace has exactly the size asked for and guard bytes
// around it, y is prefilled with 0xFF. It checks none of what the runtime checks; tests give it
// calls that the runtime would let through.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/layer_config.h"
#include "perch/backend.h"

namespace perch::test {

// A tensor that owns its bytes. dl() is valid until the tensor is changed, moved or copied.
struct Tensor {
  DLDataType dtype{kDLFloat, 32, 1};
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
  std::vector<int64_t> strides;  // in elements; set by make_tensor
  mutable DLTensor view{};

  const DLTensor* dl() const {
    view = DLTensor{};
    view.data = bytes.empty() ? nullptr : const_cast<uint8_t*>(bytes.data());
    view.device = {kDLCPU, 0};
    view.ndim = static_cast<int32_t>(shape.size());
    view.dtype = dtype;
    view.shape = const_cast<int64_t*>(shape.data());
    view.strides = const_cast<int64_t*>(strides.data());
    return &view;
  }
  template <typename T>
  std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

inline Tensor empty_tensor(DLDataType dtype, std::vector<int64_t> shape) {
  Tensor tensor;
  tensor.dtype = dtype;
  int64_t numel = 1;
  tensor.strides.resize(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    tensor.strides[i] = numel;
    numel *= shape[i];
  }
  tensor.shape = std::move(shape);
  tensor.bytes.assign(static_cast<size_t>(numel) * dtype.bits / 8, 0xFF);
  return tensor;
}

template <typename T>
Tensor make_tensor(DLDataType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  Tensor tensor = empty_tensor(dtype, std::move(shape));
  if (tensor.bytes.size() != values.size() * sizeof(T)) throw std::logic_error("tensor size");
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}
inline Tensor f32(std::vector<int64_t> shape, const std::vector<float>& values) {
  return make_tensor(DLDataType{kDLFloat, 32, 1}, std::move(shape), values);
}
inline Tensor i32(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
  return make_tensor(DLDataType{kDLInt, 32, 1}, std::move(shape), values);
}
inline Tensor i64(std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  return make_tensor(DLDataType{kDLInt, 64, 1}, std::move(shape), values);
}
inline Tensor u8(std::vector<int64_t> shape, const std::vector<uint8_t>& values) {
  return make_tensor(DLDataType{kDLUInt, 8, 1}, std::move(shape), values);
}
inline DLDataType dl_float_dtype(uint32_t perch_type) {
  if (perch_type == PERCH_TYPE_F16) return {kDLFloat, 16, 1};
  if (perch_type == PERCH_TYPE_BF16) return {kDLBfloat, 16, 1};
  return {kDLFloat, 32, 1};
}

using TensorMap = std::map<std::string, Tensor>;  // one expert's tensors by name

// The host side of the ABI.
class TestHost {
 public:
  int32_t threads = 1;
  bool real_threads = false;    // else all tasks run here, one after the other
  bool reversed = false;        // last task first (serial only)
  int64_t fail_allocation = 0;  // the n-th from now returns NULL; 0 = none
  std::atomic<int64_t> live_bytes{0};
  std::atomic<int64_t> allocations{0};

  TestHost() {
    api_.struct_size = sizeof(api_);
    api_.magic = PERCH_ABI_MAGIC;
    api_.abi_major = PERCH_ABI_MAJOR;
    api_.abi_minor = PERCH_ABI_MINOR;
    api_.ctx = this;
    api_.log = [](void*, int32_t, const char*, const char*) {};
    api_.alloc = [](void* self, uint64_t bytes, uint64_t align) {
      return static_cast<TestHost*>(self)->allocate(bytes, align);
    };
    api_.free_memory = [](void* self, void* memory) {
      static_cast<TestHost*>(self)->release(memory);
    };
    api_.num_threads = [](void* self) { return static_cast<TestHost*>(self)->threads; };
    api_.parallel_for = [](void* self, int64_t count, perch_task_fn task, void* arg) {
      static_cast<TestHost*>(self)->parallel_for(count, task, arg);
    };
  }
  TestHost(const TestHost&) = delete;
  TestHost& operator=(const TestHost&) = delete;
  const perch_host_api* api() const { return &api_; }

 private:
  // The block's size stands in front of it, at a distance that keeps the alignment.
  static constexpr uint64_t kHeader = 64;

  void* allocate(uint64_t bytes, uint64_t align) {
    if (fail_allocation > 0 && --fail_allocation == 0) return nullptr;
    if (align > kHeader) return nullptr;
    const uint64_t size = (bytes + 2 * kHeader - 1) / kHeader * kHeader;
    auto* block = static_cast<uint8_t*>(std::aligned_alloc(kHeader, size));
    if (block == nullptr) return nullptr;
    std::memcpy(block, &bytes, sizeof(bytes));
    std::memset(block + kHeader, 0xFF, bytes);
    live_bytes += static_cast<int64_t>(bytes);
    ++allocations;
    return block + kHeader;
  }
  void release(void* memory) {
    if (memory == nullptr) return;
    uint8_t* block = static_cast<uint8_t*>(memory) - kHeader;
    uint64_t bytes = 0;
    std::memcpy(&bytes, block, sizeof(bytes));
    live_bytes -= static_cast<int64_t>(bytes);
    std::free(block);
  }
  void parallel_for(int64_t count, perch_task_fn task, void* arg) const {
    if (!real_threads) {
      for (int64_t i = 0; i < count; ++i) task(arg, reversed ? count - 1 - i : i, 0);
      return;
    }
    std::atomic<int64_t> next{0};
    std::vector<std::thread> pool;
    for (int32_t tid = 0; tid < threads; ++tid) {
      pool.emplace_back([&, tid] {
        for (int64_t i = next++; i < count; i = next++) task(arg, i, tid);
      });
    }
    for (std::thread& thread : pool) thread.join();
  }

  perch_host_api api_{};
};

struct Answer {
  perch_support support{};
  std::vector<perch_reason> reasons;
  bool yes() const { return support.verdict == PERCH_VERDICT_YES; }
  bool has(int32_t code, const std::string& field) const {
    for (const perch_reason& reason : reasons) {
      if (reason.code == code && field == reason.field) return true;
    }
    return false;
  }
  std::string print() const {
    std::string all;
    for (const perch_reason& reason : reasons) {
      all += std::to_string(reason.code) + " " + reason.field + ": " + reason.text + "\n";
    }
    return all;
  }
};

// The tensors of one call; y is made by run().
struct Call {
  Tensor x;
  Tensor ids, weights;        // STANDARD
  Tensor map;                 // no shape: none
  Tensor counts, offsets;     // BATCHED, GROUPED
  int64_t y_row_padding = 0;  // elements between rows of y
};

struct Result {
  perch_status status = PERCH_OK;
  std::string message;
  Tensor y;
  bool guards_intact = true;  // nothing was written around the workspace
};

class BackendHarness;

// A prepared layer. The harness must outlive it.
class Layer {
 public:
  Layer(BackendHarness& harness, const LayerConfig& config) : harness_(harness), config_(config) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  inline ~Layer();

  bool ok() const { return prepared_ != nullptr; }
  perch_prepared* prepared() const { return prepared_; }
  inline Result run(const Call& call) const;
  inline perch_status update(int32_t expert, const TensorMap& tensors);

  perch_status status = PERCH_OK;  // of the step of prepare that failed
  std::string message;

 private:
  friend class BackendHarness;
  Tensor make_output(const Call& call) const {
    std::vector<int64_t> shape = call.x.shape;
    const int64_t width = config_.rows(config_.is_moe() ? 1 : 0);
    shape.back() = width + call.y_row_padding;
    Tensor y = empty_tensor(dl_float_dtype(config_.abi().out_dtype), shape);
    y.shape.back() = width;
    return y;
  }

  BackendHarness& harness_;
  LayerConfig config_;
  perch_prepared* prepared_ = nullptr;
};

class BackendHarness {
 public:
  TestHost host;

  // Throws std::runtime_error with the loader's text.
  explicit BackendHarness(const std::string& path) {
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    auto entry = reinterpret_cast<perch_backend_entry_fn>(dlsym(library_, PERCH_BACKEND_ENTRY));
    if (entry == nullptr) throw std::runtime_error(path + " has no " PERCH_BACKEND_ENTRY);
    perch_error error = PERCH_ERROR_INIT;
    if (entry(host.api(), &api_, &error) != PERCH_OK) throw std::runtime_error(error.message);
    if (api_->create(host.api(), nullptr, 0, &backend_, &error) != PERCH_OK) {
      throw std::runtime_error(error.message);
    }
  }
  ~BackendHarness() { api_->destroy(backend_); }
  BackendHarness(const BackendHarness&) = delete;
  BackendHarness& operator=(const BackendHarness&) = delete;

  const perch_backend_api& api() const { return *api_; }
  perch_backend* backend() const { return backend_; }

  Answer query(const perch_layer_config& config, uint32_t variant = 0) const {
    Answer answer;
    for (uint32_t capacity : {0u, 64u}) {
      answer.reasons.assign(capacity, perch_reason{});
      answer.support = {};
      answer.support.struct_size = sizeof(perch_support);
      answer.support.reasons = capacity == 0 ? nullptr : answer.reasons.data();
      answer.support.reasons_capacity = capacity;
      perch_error error = PERCH_ERROR_INIT;
      if (api_->query_support(backend_, &config, variant, &answer.support, &error) != PERCH_OK) {
        throw std::runtime_error(error.message);
      }
    }
    answer.reasons.resize(answer.support.num_reasons);
    return answer;
  }

  // Prepares `experts[e]` as expert e (the only element is the weights of a linear layer). Whether
  // it worked: ok(), status, message of the layer.
  void prepare(const std::vector<TensorMap>& experts, Layer* layer, uint32_t variant = 0) {
    perch_error error = PERCH_ERROR_INIT;
    perch_builder* builder = nullptr;
    const perch_stream stream{{kDLCPU, 0}, nullptr, 0, 0};
    layer->status =
        api_->prepare_begin(backend_, &layer->config_.abi(), variant, &stream, &builder, &error);
    for (size_t e = 0; e < experts.size() && layer->status == PERCH_OK; ++e) {
      const int32_t expert = layer->config_.is_moe() ? static_cast<int32_t>(e) : -1;
      const std::vector<perch_named_tensor> named = name_tensors(experts[e]);
      layer->status = api_->prepare_put(builder, expert, named.data(),
                                        static_cast<uint32_t>(named.size()), &error);
    }
    if (layer->status == PERCH_OK) {
      layer->status = api_->prepare_end(builder, &layer->prepared_, &error);
    }
    if (layer->status == PERCH_OK) return;
    layer->message = error.message;
    if (builder != nullptr) api_->prepare_abort(builder);
  }

  static std::vector<perch_named_tensor> name_tensors(const TensorMap& tensors) {
    std::vector<perch_named_tensor> named;
    for (const auto& [name, tensor] : tensors) {
      named.push_back({name.c_str(), tensor.dl(), PERCH_TENSOR_READ_ONLY});
    }
    return named;
  }

 private:
  void* library_ = nullptr;
  const perch_backend_api* api_ = nullptr;
  perch_backend* backend_ = nullptr;
};

Layer::~Layer() {
  if (prepared_ != nullptr) harness_.api().prepared_destroy(prepared_);
}

perch_status Layer::update(int32_t expert, const TensorMap& tensors) {
  perch_error error = PERCH_ERROR_INIT;
  const std::vector<perch_named_tensor> named = BackendHarness::name_tensors(tensors);
  const perch_status result = harness_.api().update(prepared_, expert, named.data(),
                                                    static_cast<uint32_t>(named.size()), &error);
  message = error.message;
  return result;
}

Result Layer::run(const Call& call) const {
  static constexpr size_t kGuard = 4096;
  Result result;
  result.y = make_output(call);
  const bool batched = call.x.shape.size() == 3;
  const perch_call_shape shape{sizeof(shape), config_.is_moe() ? config_.moe().form : 1u,
                               call.x.shape[batched ? 1 : 0]};
  perch_workspace_req request{sizeof(request), 0, 0, 0};
  perch_error error = PERCH_ERROR_INIT;
  result.status = harness_.api().workspace(prepared_, &shape, &request, &error);
  const size_t bytes = (request.bytes + 2 * kGuard + 4095) / 4096 * 4096;
  auto* memory = static_cast<uint8_t*>(std::aligned_alloc(4096, bytes));
  std::memset(memory, 0xFF, bytes);

  perch_exec_args args{};
  args.struct_size = sizeof(args);
  args.x = call.x.dl();
  args.y = result.y.dl();
  const auto given = [](const Tensor& tensor) {
    return tensor.shape.empty() ? nullptr : tensor.dl();
  };
  args.topk_ids = given(call.ids);
  args.topk_weights = given(call.weights);
  args.expert_map = given(call.map);
  args.expert_counts = given(call.counts);
  args.expert_offsets = given(call.offsets);
  args.workspace = request.bytes == 0 ? nullptr : memory + kGuard;
  args.workspace_bytes = request.bytes;
  args.stream.device = {kDLCPU, 0};
  if (result.status == PERCH_OK) {
    result.status = harness_.api().execute(prepared_, &args, &error);
  }
  if (result.status != PERCH_OK) result.message = error.message;
  for (size_t i = 0; i < kGuard; ++i) {
    const bool before = memory[i] == 0xFF;
    const bool after = memory[kGuard + request.bytes + i] == 0xFF;
    result.guards_intact = result.guards_intact && before && after;
  }
  std::free(memory);
  return result;
}

}  // namespace perch::test
