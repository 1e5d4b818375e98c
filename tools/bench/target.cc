#include "bench/target.h"

#include <numeric>

#include "layer_input.h"

namespace perch_bench {
namespace {

using perch_check::CallData;
using perch_check::CaseTensor;
using perch_check::Fill;

// Distinct experts that a case's layers are made of. Filling by hash is slow, so larger experts are
// fewer; what they cost to run does not depend on how many differ.
constexpr int64_t kDistinctBytes = int64_t{64} << 20;
constexpr int64_t kDistinctMost = 8;

// The canonical tensors of one expert, as the API takes them.
class ExpertTensors {
 public:
  explicit ExpertTensors(std::vector<CaseTensor> tensors) : data_(std::move(tensors)) {
    for (CaseTensor& tensor : data_) {
      views_.push_back(std::make_unique<perch_host::Tensor>(
          tensor.data.data(), dtype_of(tensor.spec), tensor.spec.shape));
      named_.push_back({tensor.spec.name.c_str(), views_.back()->get(), 0});
    }
  }
  const std::vector<perch_named_tensor>& named() const { return named_; }

 private:
  static DLDataType dtype_of(const perch::TensorSpec& spec) {
    if (spec.int32) return {kDLInt, 32, 1};
    if (perch::type_bits(spec.type) <= 8) return {kDLUInt, 8, 1};
    return perch_check::float_dlpack(spec.type);
  }

  std::vector<CaseTensor> data_;
  std::vector<std::unique_ptr<perch_host::Tensor>> views_;
  std::vector<perch_named_tensor> named_;
};

struct BuilderRelease {
  void operator()(perch_layer_builder* builder) const { perch_layer_abort(builder); }
};

perch_host::Layer build(perch_runtime* runtime, const perch_layer_config& config,
                        const std::vector<std::unique_ptr<ExpertTensors>>& distinct) {
  perch_layer_builder* begun = nullptr;
  perch_host::check(perch_layer_begin, runtime, &config, static_cast<const perch_stream*>(nullptr),
                    &begun);
  std::unique_ptr<perch_layer_builder, BuilderRelease> builder(begun);
  const bool moe = config.kind == PERCH_KIND_MOE;
  const auto experts = moe ? static_cast<int32_t>(config.moe->num_experts) : 1;
  for (int32_t expert = 0; expert < experts; ++expert) {
    const auto& named = distinct[static_cast<size_t>(expert) % distinct.size()]->named();
    perch_host::check(perch_layer_put, builder.get(), moe ? expert : -1, named.data(),
                      static_cast<uint32_t>(named.size()));
  }
  perch_layer* layer = nullptr;
  perch_host::check(perch_layer_end, builder.get(), &layer);
  static_cast<void>(builder.release());
  return perch_host::Layer(layer);
}

int64_t expert_bytes(const perch::LayerConfig& config) {
  int64_t bytes = 0;
  for (const perch::TensorSpec& spec : perch::tensor_specs(config)) bytes += spec.bytes();
  return bytes;
}

}  // namespace

Target case_target(const perch_host::Runtime& runtime, const perch::LayerConfig& config) {
  const int64_t bytes = expert_bytes(config);
  const int64_t experts = config.is_moe() ? config.moe().num_experts : 1;
  Target target;
  target.config = &config.abi();
  target.format_bytes = static_cast<double>(bytes * experts);
  // Made at the first use: a backend that refuses the case needs none.
  auto distinct = std::make_shared<std::vector<std::unique_ptr<ExpertTensors>>>();
  const int64_t count =
      std::min(experts, std::clamp<int64_t>(kDistinctBytes / bytes, 1, kDistinctMost));
  target.make_layer = [&runtime, &config, distinct, count] {
    for (int64_t e = static_cast<int64_t>(distinct->size()); e < count; ++e) {
      distinct->push_back(
          std::make_unique<ExpertTensors>(perch_check::make_expert(config, e, 1, Fill::kReal)));
    }
    return build(runtime.get(), config.abi(), *distinct);
  };
  return target;
}

CallMaker case_calls(const perch::Case& problem) {
  return [problem](int64_t i) {
    std::vector<perch_check::RowKey> keys(static_cast<size_t>(problem.t));
    std::iota(keys.begin(), keys.end(), i * problem.t);
    return perch_check::make_call(problem, keys, Fill::kReal, problem.load);
  };
}

Target model_target(const perch_host::Model& model, uint32_t index) {
  Target target;
  target.config = perch_model_layer_config(model.get(), index);
  target.make_layer = [&model, index] { return perch_host::make_layer(model, index); };
  return target;
}

CallMaker model_calls(const perch_host::Model& model, uint32_t index, int64_t tokens) {
  return [&model, index, tokens](int64_t i) {
    perch_command::InputOptions options;
    options.tokens = tokens;
    options.seed = static_cast<uint64_t>(i) + 1;
    // Without a file there is always an input.
    auto input = *perch_command::make_input(model.get(), index, options, nullptr);
    const perch_layer_config& config = *perch_model_layer_config(model.get(), index);
    CallData call;
    call.num_tokens = tokens;
    call.columns = perch_command::input_width(config);
    call.x = std::move(input.x);
    call.ids.assign(input.ids.begin(), input.ids.end());
    call.weights = std::move(input.weights);
    if (const int32_t* map = perch_model_expert_map(model.get(), index); map != nullptr) {
      call.expert_map.assign(map, map + config.moe->num_experts_global);
    }
    return call;
  };
}

}  // namespace perch_bench
