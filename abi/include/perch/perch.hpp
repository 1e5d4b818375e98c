// perch.hpp - the host API for C++: handles that release themselves, errors as exceptions.
//
// Header-only, C++17, on top of runtime.h alone: exceptions are thrown and caught in your own
// binary and never cross into the library. Two rules: a Runtime outlives its Models and Layers, and
// a Layer executes on one thread at a time unless it promises CONCURRENT_EXECUTE.
#ifndef PERCH_PERCH_HPP_
#define PERCH_PERCH_HPP_

#include <perch/runtime.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace perch_host {

// What a failed call said. what() is the message, code() its PERCH_E_* number.
class Error : public std::runtime_error {
 public:
  Error(perch_status code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  perch_status code() const noexcept { return code_; }

 private:
  perch_status code_;
};

// check(perch_xyz, args...) calls perch_xyz(args..., &error) and throws what it reports.
template <typename Function, typename... Args>
void check(Function function, Args... args) {
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status = function(args..., &error);
  if (status != PERCH_OK) {
    throw Error(status, error.message[0] != '\0' ? error.message : perch_status_name(status));
  }
}

// The document of a function that writes JSON: json(perch_layer_explain, layer).
template <typename Function, typename... Args>
std::string json(Function function, Args... args) {
  uint64_t needed = 0;
  perch_error error = PERCH_ERROR_INIT;
  perch_status status = function(args..., nullptr, 0, &needed, &error);
  if (status != PERCH_E_BUFFER_TOO_SMALL) throw Error(status, error.message);
  std::vector<char> text(needed);
  status = function(args..., text.data(), needed, &needed, &error);
  if (status != PERCH_OK) throw Error(status, error.message);
  return std::string(text.data());
}

template <typename T, void (*release)(T*)>
struct Release {
  void operator()(T* handle) const noexcept { release(handle); }
};
using Runtime = std::unique_ptr<perch_runtime, Release<perch_runtime, perch_runtime_destroy>>;
using Model = std::unique_ptr<perch_model, Release<perch_model, perch_model_destroy>>;
using Layer = std::unique_ptr<perch_layer, Release<perch_layer, perch_layer_destroy>>;
using Tensors = std::unique_ptr<perch_tensors, Release<perch_tensors, perch_tensors_destroy>>;

inline Runtime make_runtime(const perch_runtime_opts* opts = nullptr) {
  perch_runtime* runtime = nullptr;
  check(perch_runtime_create, opts, &runtime);
  return Runtime(runtime);
}

inline Model open_model(const Runtime& runtime, const std::string& directory,
                        const perch_model_opts* opts = nullptr) {
  perch_model* model = nullptr;
  check(perch_model_open, runtime.get(), directory.c_str(), opts, &model);
  return Model(model);
}

inline Layer make_layer(const Model& model, uint32_t index) {
  perch_layer* layer = nullptr;
  check(perch_model_layer, model.get(), index, static_cast<const perch_stream*>(nullptr), &layer);
  return Layer(layer);
}

inline Layer make_layer(const Runtime& runtime, const perch_layer_config& config,
                        const std::vector<perch_named_tensor>& tensors) {
  perch_layer* layer = nullptr;
  check(perch_layer_create, runtime.get(), &config, tensors.data(),
        static_cast<uint32_t>(tensors.size()), static_cast<const perch_stream*>(nullptr), &layer);
  return Layer(layer);
}

inline Tensors open_tensors(const std::string& path) {
  perch_tensors* tensors = nullptr;
  check(perch_tensors_open, path.c_str(), &tensors);
  return Tensors(tensors);
}

// A contiguous CPU tensor of our own, or a view on the caller's memory.
class Tensor {
 public:
  Tensor(DLDataType dtype, std::vector<int64_t> shape) : Tensor(nullptr, dtype, std::move(shape)) {
    size_t count = 1;
    for (const int64_t dim : shape_) count *= static_cast<size_t>(dim);
    owned_.resize(count * dtype.bits / 8 + 1);
    tensor_.data = owned_.data();
  }
  // `data` must outlive this object.
  Tensor(void* data, DLDataType dtype, std::vector<int64_t> shape) : shape_(std::move(shape)) {
    tensor_.data = data;
    tensor_.device = {kDLCPU, 0};
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.dtype = dtype;
    tensor_.shape = shape_.data();
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const DLTensor* get() const noexcept { return &tensor_; }
  template <typename T>
  T* data() noexcept {
    return static_cast<T*>(tensor_.data);
  }
  const std::vector<int64_t>& shape() const noexcept { return shape_; }

 private:
  std::vector<int64_t> shape_;
  std::vector<unsigned char> owned_;
  DLTensor tensor_{};
};

// Runs a layer with a workspace that grows as calls need it. One per thread.
class Executor {
 public:
  explicit Executor(perch_layer* layer) : layer_(layer) {}

  // `args` with everything but the workspace. `form` is the layer's.
  void run(perch_exec_args args, int64_t num_tokens, uint32_t form = PERCH_FORM_STANDARD) {
    const perch_call_shape shape = {static_cast<uint32_t>(sizeof(perch_call_shape)), form,
                                    num_tokens};
    perch_workspace_req request{};
    request.struct_size = sizeof(request);
    check(perch_layer_workspace, layer_, &shape, &request);
    const size_t align = request.align == 0 ? 1 : request.align;
    if (memory_.size() < request.bytes + align) memory_.resize(request.bytes + align);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    args.struct_size = sizeof(args);
    args.workspace = memory_.data() + (align - address % align) % align;
    args.workspace_bytes = request.bytes;
    check(perch_layer_execute, layer_, static_cast<const perch_exec_args*>(&args));
  }

 private:
  perch_layer* layer_;
  std::vector<unsigned char> memory_;
};

}  // namespace perch_host

#endif  // PERCH_PERCH_HPP_
