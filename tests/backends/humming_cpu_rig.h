// What the tests of humming-cpu share: a host whose pool shuffles, the library opened with options,
// a layer driven through the ABI with strided and guarded tensors, and a naive computation in
// double that carries an error bound along.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend_harness.h"
#include "numbers.h"
#include "random_layer.h"

namespace perch::test::humming {

// parallel_for is serial in a seeded random order, or on as many real threads.
struct ShuffledHost {
  perch_host_api api{};
  int32_t threads = 1;
  bool real = false;
  uint32_t seed = 1;

  explicit ShuffledHost(int32_t num_threads = 1, bool real_threads = false)
      : threads(num_threads), real(real_threads) {
    api.struct_size = sizeof(api);
    api.magic = PERCH_ABI_MAGIC;
    api.abi_major = PERCH_ABI_MAJOR;
    api.abi_minor = PERCH_ABI_MINOR;
    api.ctx = this;
    api.log = [](void*, int32_t, const char*, const char*) {};
    api.num_threads = [](void* self) { return static_cast<ShuffledHost*>(self)->threads; };
    api.parallel_for = [](void* self, int64_t count, perch_task_fn task, void* arg) {
      static_cast<const ShuffledHost*>(self)->run(count, task, arg);
    };
  }
  ShuffledHost(const ShuffledHost&) = delete;
  ShuffledHost& operator=(const ShuffledHost&) = delete;

 private:
  void run(int64_t count, perch_task_fn task, void* arg) const {
    if (real) {
      std::atomic<int64_t> next{0};
      const auto work = [&](int32_t tid) {
        for (int64_t i = next++; i < count; i = next++) task(arg, i, tid);
      };
      std::vector<std::thread> pool;
      for (int32_t tid = 1; tid < threads; ++tid) pool.emplace_back(work, tid);
      work(0);
      for (std::thread& thread : pool) thread.join();
      return;
    }
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (const int64_t i : order) task(arg, i, static_cast<int32_t>(i % threads));
  }
};

class Library {
 public:
  explicit Library(const perch_host_api* host) {
    const char* path = PERCH_BUILD_DIR "/lib/perch/backends/libperch_humming_cpu.so";
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto entry =
        reinterpret_cast<perch_backend_entry_fn>(dlsym(library, PERCH_BACKEND_ENTRY));
    if (entry(host, &api_, nullptr) != PERCH_OK) throw std::runtime_error("entry");
    host_ = host;
  }
  ~Library() {
    if (backend_ != nullptr) api_->destroy(backend_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  perch_status create(const std::vector<perch_kv>& options, perch_error* error = nullptr) {
    return api_->create(host_, options.data(), static_cast<uint32_t>(options.size()), &backend_,
                        error);
  }
  const perch_backend_api& api() const { return *api_; }
  perch_backend* backend() const { return backend_; }
  std::string arch() const {
    perch_device_info info{};
    info.struct_size = sizeof(info);
    api_->device_get(backend_, 0, &info, nullptr);
    return info.arch;
  }
  Answer query(const LayerConfig& config, uint32_t variant) const {
    Answer answer;
    answer.reasons.resize(64);
    answer.support.struct_size = sizeof(perch_support);
    answer.support.reasons = answer.reasons.data();
    answer.support.reasons_capacity = 64;
    api_->query_support(backend_, &config.abi(), variant, &answer.support, nullptr);
    answer.reasons.resize(answer.support.num_reasons);
    return answer;
  }

 private:
  const perch_backend_api* api_ = nullptr;
  const perch_host_api* host_ = nullptr;
  perch_backend* backend_ = nullptr;
};

// The levels that this machine runs; the last is its best.
inline std::vector<std::string> isa_levels() {
  std::vector<std::string> levels;
  for (const char* level : {"portable", "avx2", "avx512"}) {
    const ShuffledHost host;
    Library library(&host.api);
    if (library.create({{"isa", level}}) == PERCH_OK) levels.push_back(level);
  }
  return levels;
}

// The tensors of one call. Absent ones have no shape.
struct Input {
  Tensor x, ids, weights, map, counts, offsets;
  int64_t x_padding = 0;  // elements between rows of x, NaN
  int64_t y_padding = 0;
};

class Prepared {
 public:
  Prepared(const Library& library, const LayerConfig& config, const std::vector<TensorMap>& experts,
           uint32_t variant)
      : api_(library.api()), config_(config) {
    perch_builder* builder = nullptr;
    perch_error error = PERCH_ERROR_INIT;
    const perch_stream stream{{kDLCPU, 0}, nullptr, 0, 0};
    perch_status status =
        api_.prepare_begin(library.backend(), &config.abi(), variant, &stream, &builder, &error);
    for (size_t e = 0; e < experts.size() && status == PERCH_OK; ++e) {
      const auto named = BackendHarness::name_tensors(experts[e]);
      status = api_.prepare_put(builder, config.is_moe() ? static_cast<int32_t>(e) : -1,
                                named.data(), static_cast<uint32_t>(named.size()), &error);
    }
    if (status == PERCH_OK) status = api_.prepare_end(builder, &prepared_, &error);
    if (status != PERCH_OK) throw std::runtime_error(error.message);
  }
  ~Prepared() { api_.prepared_destroy(prepared_); }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  perch_status update(int32_t expert, const TensorMap& tensors, std::string* message) {
    perch_error error = PERCH_ERROR_INIT;
    const auto named = BackendHarness::name_tensors(tensors);
    const perch_status status =
        api_.update(prepared_, expert, named.data(), static_cast<uint32_t>(named.size()), &error);
    *message = error.message;
    return status;
  }

  // y's bytes, rows dense. Fails the test where something beside y and the workspace was written.
  std::vector<uint8_t> run(const Input& input) const;

 private:
  const perch_backend_api& api_;
  const LayerConfig config_;
  perch_prepared* prepared_ = nullptr;
};

// `tensor` with `padding` elements of 0xFF behind each row.
inline Tensor spread(const Tensor& tensor, int64_t padding) {
  std::vector<int64_t> shape = tensor.shape;
  const int64_t width = shape.back();
  shape.back() += padding;
  Tensor wide = empty_tensor(tensor.dtype, shape);
  const size_t element = tensor.dtype.bits / 8;
  const size_t row = static_cast<size_t>(width) * element;
  const size_t step = static_cast<size_t>(width + padding) * element;
  for (size_t i = 0; row > 0 && i < tensor.bytes.size() / row; ++i) {
    std::memcpy(&wide.bytes[i * step], &tensor.bytes[i * row], row);
  }
  wide.shape.back() = width;
  return wide;
}

inline std::vector<uint8_t> Prepared::run(const Input& input) const {
  constexpr size_t kGuard = 256;
  const Tensor x = spread(input.x, input.x_padding);
  std::vector<int64_t> y_shape = input.x.shape;
  const int64_t width = config_.rows(config_.is_moe() ? 1 : 0);
  y_shape.back() = width + input.y_padding;
  Tensor y = empty_tensor(dl_float_dtype(config_.abi().out_dtype), y_shape);
  y.shape.back() = width;
  y.bytes.resize(y.bytes.size() + kGuard, 0xFF);

  const perch_call_shape shape{sizeof(shape), config_.is_moe() ? config_.moe().form : 1u,
                               input.x.shape[input.x.shape.size() - 2]};
  perch_workspace_req request{sizeof(request), 0, 0, 0};
  EXPECT_EQ(api_.workspace(prepared_, &shape, &request, nullptr), PERCH_OK);
  const size_t bytes = request.bytes;
  const auto release = [](uint8_t* memory) { std::free(memory); };
  const std::unique_ptr<uint8_t, decltype(release)> memory(
      static_cast<uint8_t*>(std::aligned_alloc(4096, (bytes + 2 * 4096 + 4095) / 4096 * 4096)),
      release);
  std::memset(memory.get(), 0xFF, bytes + 2 * 4096);

  perch_exec_args args{};
  args.struct_size = sizeof(args);
  args.x = x.dl();
  args.y = y.dl();
  const auto given = [](const Tensor& t) { return t.shape.empty() ? nullptr : t.dl(); };
  args.topk_ids = given(input.ids);
  args.topk_weights = given(input.weights);
  args.expert_map = given(input.map);
  args.expert_counts = given(input.counts);
  args.expert_offsets = given(input.offsets);
  args.workspace = bytes == 0 ? nullptr : memory.get() + 4096;
  args.workspace_bytes = bytes;
  args.stream.device = {kDLCPU, 0};
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(api_.execute(prepared_, &args, &error), PERCH_OK) << error.message;

  for (size_t i = 0; i < 4096; ++i) {
    if (memory.get()[i] != 0xFF || memory.get()[4096 + bytes + i] != 0xFF) {
      ADD_FAILURE() << "written outside of the workspace";
      break;
    }
  }
  std::vector<uint8_t> rows;
  const size_t element = y.dtype.bits / 8;
  const size_t row = static_cast<size_t>(width) * element;
  const size_t step = static_cast<size_t>(width + input.y_padding) * element;
  size_t at = 0;
  for (; at + step <= y.bytes.size() - kGuard; at += step) {
    rows.insert(rows.end(), &y.bytes[at], &y.bytes[at] + row);
    for (size_t i = at + row; i < at + step; ++i) EXPECT_EQ(y.bytes[i], 0xFF) << "pad of y";
  }
  for (size_t i = at; i < y.bytes.size(); ++i) EXPECT_EQ(y.bytes[i], 0xFF) << "behind y";
  return rows;
}

// ---- The naive computation ----------------------------------------------------------------------

// A vector with the largest error that f32 arithmetic may have made in each element.
struct Bounded {
  std::vector<double> value, error;
};

class NaiveMatrix {
 public:
  NaiveMatrix(const LayerConfig& config, int index, const TensorMap& tensors)
      : n_(config.rows(index)), k_(config.columns(index)) {
    const perch_quant& quant = index == 0 ? config.first() : config.second();
    const std::string name = !config.is_moe() ? "w" : index == 0 ? "w13" : "w2";
    const Tensor& codes = tensors.at(name);
    const bool int4 = quant.weight == PERCH_TYPE_INT4;
    const std::vector<float> floats = int4 ? std::vector<float>() : to_floats(codes);
    const std::vector<float> scales =
        int4 ? to_floats(tensors.at(name + ".scale")) : std::vector<float>();
    const int64_t groups = num_groups(quant, k_);
    for (int64_t n = 0; n < n_; ++n) {
      for (int64_t k = 0; k < k_; ++k) {
        if (!int4) {
          weight_.push_back(static_cast<double>(floats[static_cast<size_t>(n * k_ + k)]));
          continue;
        }
        const int64_t g = quant.group_k == 0 ? 0 : k / quant.group_k;
        const double zero = quant.zero_kind == PERCH_ZERO_INT
                                ? tensors.at(name + ".zero").bytes[size_t(n * groups + g)]
                                : 8;
        size_t at = 0;
        if (quant.scale_kind == PERCH_SCALE_CHANNEL) at = size_t(n);
        if (quant.scale_kind == PERCH_SCALE_GROUP) at = size_t(n * groups + g);
        if (quant.scale_kind == PERCH_SCALE_BLOCK) at = size_t(n / quant.group_n * groups + g);
        weight_.push_back((unpack_code(4, codes, n, k) - zero) * static_cast<double>(scales[at]));
      }
    }
    bias_.assign(static_cast<size_t>(n_), 0);
    if (quant.flags & PERCH_QUANT_HAS_BIAS) {
      const std::vector<float> bias = tensors.at(name + ".bias").as<float>();
      for (size_t i = 0; i < bias.size(); ++i) bias_[i] = static_cast<double>(bias[i]);
    }
  }

  Bounded multiply(const Bounded& x) const {
    // contract.md 2: c * u_f32 * S, c = 2 sqrt(K) + 4, and half as much again.
    const double c = 1.5 * (2 * std::sqrt(static_cast<double>(k_)) + 4) * 0x1p-24;
    Bounded out;
    for (int64_t n = 0; n < n_; ++n) {
      double sum = bias_[size_t(n)], size = std::fabs(sum), carried = 0;
      for (int64_t k = 0; k < k_; ++k) {
        const double w = weight_[size_t(n * k_ + k)];
        sum += w * x.value[size_t(k)];
        size += std::fabs(w * x.value[size_t(k)]);
        carried += std::fabs(w) * x.error[size_t(k)];
      }
      out.value.push_back(sum);
      out.error.push_back(carried + c * size);
    }
    return out;
  }

 private:
  int64_t n_, k_;
  std::vector<double> weight_, bias_;
};

class NaiveLayer {
 public:
  NaiveLayer(const LayerConfig& config, const std::vector<TensorMap>& experts) : config_(config) {
    for (const TensorMap& tensors : experts) {
      first_.emplace_back(config, 0, tensors);
      if (config.is_moe()) second_.emplace_back(config, 1, tensors);
    }
  }
  // y_e of a row, or y of a linear layer.
  Bounded expert(size_t expert, const std::vector<double>& x) const;

 private:
  Bounded activate(const Bounded& h) const;
  LayerConfig config_;
  std::vector<NaiveMatrix> first_, second_;
};

// f(g) of the gate, in double.
inline double naive_gate(const perch_moe_config& moe, double g) {
  const double limit = moe.flags & PERCH_MOE_HAS_LIMIT ? double(moe.act_limit) : INFINITY;
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (moe.activation) {
    case PERCH_ACTIVATION_SILU:
    case PERCH_ACTIVATION_SILU_NO_MUL:
      return std::min(g, limit) * sigmoid(std::min(g, limit));
    case PERCH_ACTIVATION_GELU:
    case PERCH_ACTIVATION_GELU_NO_MUL:
      return 0.5 * g * std::erfc(-g / std::sqrt(2.0));
    case PERCH_ACTIVATION_GELU_TANH:
    case PERCH_ACTIVATION_GELU_TANH_NO_MUL:
      return 0.5 * g * (1 + std::tanh(0.7978845608 * (g + 0.044715 * g * g * g)));
    case PERCH_ACTIVATION_SWIGLUOAI:
      return std::min(g, limit) * sigmoid(double(moe.act_alpha) * std::min(g, limit));
    case PERCH_ACTIVATION_SWIGLUSTEP:
      return std::min(g * sigmoid(g), limit);
    case PERCH_ACTIVATION_SITU:
      return double(moe.act_beta) * std::tanh(g / double(moe.act_beta)) * sigmoid(g);
    default:
      return g > 0 ? g * g : 0;
  }
}

inline double naive_up(const perch_moe_config& moe, double u) {
  const double limit = moe.flags & PERCH_MOE_HAS_LIMIT ? double(moe.act_limit) : INFINITY;
  const double clamped = std::clamp(u, -limit, limit);
  if (moe.activation == PERCH_ACTIVATION_SWIGLUOAI) return clamped + double(moe.act_beta);
  if (moe.activation == PERCH_ACTIVATION_SITU && (moe.flags & PERCH_MOE_HAS_ALPHA)) {
    return double(moe.act_alpha) * std::tanh(u / double(moe.act_alpha));
  }
  return clamped;
}

inline Bounded NaiveLayer::activate(const Bounded& h) const {
  const perch_moe_config& moe = config_.moe();
  const bool gated = perch_activation_is_gated(moe.activation) != 0;
  Bounded a;
  for (size_t i = 0; i < static_cast<size_t>(moe.intermediate); ++i) {
    const double f = naive_gate(moe, h.value[i]);
    const bool square =
        moe.activation == PERCH_ACTIVATION_RELU2 || moe.activation == PERCH_ACTIVATION_RELU2_NO_MUL;
    const double slope = square ? 2 * std::fabs(h.value[i]) + h.error[i] : 1.2;
    const double f_error = slope * h.error[i] + 8 * 0x1p-24 * (std::fabs(f) + 1e-30);
    if (!gated) {
      a.value.push_back(f);
      a.error.push_back(f_error);
      continue;
    }
    const size_t j = i + static_cast<size_t>(moe.intermediate);
    const double u = naive_up(moe, h.value[j]);
    const double u_error = h.error[j] + 8 * 0x1p-24 * std::fabs(u);
    a.value.push_back(f * u);
    a.error.push_back(f_error * std::fabs(u) + u_error * std::fabs(f) + f_error * u_error);
  }
  return a;
}

inline Bounded NaiveLayer::expert(size_t expert, const std::vector<double>& x) const {
  const Bounded first = first_[expert].multiply({x, std::vector<double>(x.size(), 0)});
  return config_.is_moe() ? second_[expert].multiply(activate(first)) : first;
}

}  // namespace perch::test::humming
