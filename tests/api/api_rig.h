// What the tests through the host API share: a runtime with rules of its own, a layer built expert
// by expert, a call whose tensors are owned, and the message of a refusal.
//
// Everything goes through libperch's C functions. LayerConfig, TensorMap and Call are those of the
// tests of backends.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <perch/perch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../backends/backend_harness.h"
#include "../backends/numbers.h"
#include "../backends/random_layer.h"
#include "base/layer_config.h"

namespace perch::test {

using nlohmann::json;

// YAML that lets one backend alone run every layer; `more` is added to that rule.
inline std::string only(const std::string& backend, const std::string& more = "") {
  return "version: 1\nselect:\n  rules:\n    - match: {}\n      use: [" + backend + "]\n" +
         (more.empty() ? "" : "      " + more + "\n");
}

inline perch_host::Runtime runtime_of(const std::string& yaml, int32_t threads = 2) {
  perch_runtime_opts opts{};
  opts.struct_size = sizeof(opts);
  opts.num_threads = threads;
  opts.config_text = yaml.c_str();
  opts.log = [](void*, int32_t, const char*, const char*) {};
  return perch_host::make_runtime(&opts);
}

// One runtime per backend for the whole program: starting threads and loading is not what most
// tests are about.
inline perch_runtime* shared_runtime(const std::string& backend) {
  static std::map<std::string, perch_host::Runtime> runtimes;
  auto found = runtimes.find(backend);
  if (found == runtimes.end()) found = runtimes.emplace(backend, runtime_of(only(backend))).first;
  return found->second.get();
}

// The text of the error that `call` throws, with its code before it; "" when it throws none.
template <typename Fn>
std::string refusal(Fn&& call) {
  try {
    call();
  } catch (const perch_host::Error& error) {
    return std::string(perch_status_name(error.code())) + ": " + error.what();
  }
  return "";
}

// Contains, with both texts in the failure.
inline ::testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" lacks \"" << part << "\"";
}

inline json explain(const LayerConfig& config, perch_runtime* runtime) {
  return json::parse(perch_host::json(perch_select, runtime, &config.abi()));
}
// Whether the runtime finds a backend for it.
inline bool accepts(const LayerConfig& config, perch_runtime* runtime) {
  return !explain(config, runtime)["chosen"].is_null();
}

inline void put_expert(perch_layer_builder* builder, int32_t expert, const TensorMap& tensors) {
  const std::vector<perch_named_tensor> named = BackendHarness::name_tensors(tensors);
  perch_host::check(perch_layer_put, builder, expert, named.data(),
                    static_cast<uint32_t>(named.size()));
}

// experts[e] is expert e, or the only element the weights of a linear layer.
inline perch_host::Layer build_layer(perch_runtime* runtime, const LayerConfig& config,
                                     const std::vector<TensorMap>& experts) {
  perch_layer_builder* builder = nullptr;
  perch_host::check(perch_layer_begin, runtime, &config.abi(),
                    static_cast<const perch_stream*>(nullptr), &builder);
  perch_layer* layer = nullptr;
  try {
    for (size_t e = 0; e < experts.size(); ++e) {
      put_expert(builder, config.is_moe() ? static_cast<int32_t>(e) : -1, experts[e]);
    }
    perch_host::check(perch_layer_end, builder, &layer);
  } catch (...) {
    perch_layer_abort(builder);
    throw;
  }
  return perch_host::Layer(layer);
}

inline std::vector<TensorMap> random_experts(const LayerConfig& config, uint32_t seed) {
  std::vector<TensorMap> experts;
  const uint32_t count = config.is_moe() ? config.moe().num_experts : 1;
  for (uint32_t e = 0; e < count; ++e) experts.push_back(random_tensors(config, seed + e));
  return experts;
}

struct MoeSizes {
  uint32_t experts = 4, topk = 2;
  int64_t hidden = 32, intermediate = 24;
};

inline LayerConfig moe_layer(const MoeSizes& sizes, uint32_t activation,
                             uint32_t weight = PERCH_TYPE_F32, uint32_t dtype = PERCH_TYPE_F32) {
  LayerConfig config = LayerConfig::make_moe("moe", make_quant(weight), make_quant(weight));
  config.layer().in_dtype = config.layer().out_dtype = dtype;
  config.layer().max_tokens = 512;
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = sizes.experts;
  moe.topk = sizes.topk;
  moe.hidden = sizes.hidden;
  moe.intermediate = sizes.intermediate;
  moe.activation = activation;
  return config;
}

// The expert's tensors from plain numbers, in the config's own float type.
inline TensorMap moe_weights(const LayerConfig& config, const std::vector<float>& w13,
                             const std::vector<float>& w2) {
  TensorMap tensors;
  tensors["w13"] = floats(config.first().weight, {config.rows(0), config.columns(0)}, w13);
  tensors["w2"] = floats(config.second().weight, {config.rows(1), config.columns(1)}, w2);
  return tensors;
}

// Family SQ of the field reports: H = I = 1, f_e(x) = ((e + 1) x)^2.
inline LayerConfig sq_layer(uint32_t experts, uint32_t topk, uint32_t dtype) {
  return moe_layer({experts, topk, 1, 1}, PERCH_ACTIVATION_RELU2_NO_MUL, dtype, dtype);
}
inline std::vector<TensorMap> sq_experts(const LayerConfig& config) {
  std::vector<TensorMap> experts;
  for (uint32_t e = 0; e < config.moe().num_experts; ++e) {
    experts.push_back(moe_weights(config, {static_cast<float>(e + 1)}, {1.0F}));
  }
  return experts;
}

// A call under construction: tensors given by the test, an output filled with 0xFF, a workspace of
// exactly the size that the layer asked for, filled with 0xFF too.
class Exec {
 public:
  Exec(perch_layer* layer, const LayerConfig& config, const Call& call) : layer_(layer) {
    std::vector<int64_t> shape = call.x.shape;
    shape.back() = config.rows(config.is_moe() ? 1 : 0);
    y = empty_tensor(dl_float_dtype(config.abi().out_dtype), shape);
    args.struct_size = sizeof(args);
    args.x = call.x.dl();
    args.y = y.dl();
    const auto given = [](const Tensor& tensor) {
      return tensor.shape.empty() ? nullptr : tensor.dl();
    };
    args.topk_ids = given(call.ids);
    args.topk_weights = given(call.weights);
    args.expert_map = given(call.map);
    args.expert_counts = given(call.counts);
    args.expert_offsets = given(call.offsets);
    perch_call_shape shape_of_call{};
    shape_of_call.struct_size = sizeof(shape_of_call);
    shape_of_call.form = config.is_moe() ? config.moe().form : PERCH_FORM_STANDARD;
    shape_of_call.num_tokens = call.x.shape[call.x.shape.size() - 2];
    perch_workspace_req request{};
    request.struct_size = sizeof(request);
    perch_host::check(perch_layer_workspace, layer_, &shape_of_call, &request);
    const size_t align = request.align == 0 ? 1 : request.align;
    memory_.assign(request.bytes + align, 0xFF);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    args.workspace =
        request.bytes == 0 ? nullptr : memory_.data() + (align - address % align) % align;
    args.workspace_bytes = request.bytes;
  }
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;

  void run() {
    perch_host::check(perch_layer_execute, layer_, static_cast<const perch_exec_args*>(&args));
  }

  perch_exec_args args{};
  Tensor y;

 private:
  perch_layer* layer_;
  std::vector<uint8_t> memory_;
};

inline Tensor run(perch_layer* layer, const LayerConfig& config, const Call& call) {
  Exec exec(layer, config, call);
  exec.run();
  return exec.y;
}

// x of the config's input type, ids and weights of `topk` columns.
inline Call moe_call(const LayerConfig& config, const std::vector<float>& x,
                     const std::vector<int32_t>& ids, const std::vector<float>& weights) {
  const int64_t topk = config.moe().topk;
  const int64_t rows = static_cast<int64_t>(ids.size()) / topk;
  Call call;
  call.x = floats(config.abi().in_dtype, {rows, config.moe().hidden}, x);
  call.ids = i32({rows, topk}, ids);
  call.weights = f32({rows, topk}, weights);
  return call;
}

// Rows by seed, distinct experts per row, weights that sum to 1.
inline Call random_call(const LayerConfig& config, int64_t rows, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto topk = static_cast<size_t>(config.moe().topk);
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int64_t t = 0; t < rows; ++t) {
    std::vector<int32_t> order(config.moe().num_experts_global);
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
    for (size_t s = 0; s < topk; ++s) {
      std::swap(order[s], order[s + rng() % (order.size() - s)]);
      ids.push_back(order[s]);
      weights.push_back(1.0F / static_cast<float>(topk));
    }
  }
  Call call;
  call.x = random_floats(config.abi().in_dtype, {rows, config.moe().hidden}, -1, 1, rng);
  call.ids = i32({rows, config.moe().topk}, ids);
  call.weights = f32({rows, config.moe().topk}, weights);
  return call;
}

}  // namespace perch::test
