#include "prepare/expert_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/recipe.h"
#include "base/tensor_rules.h"

namespace perch {
namespace {

uint32_t elements_of(const TensorSpec& spec) {
  if (spec.int32) return kElementI32;
  return spec.type == PERCH_TYPE_INT8 ? static_cast<uint32_t>(kElementU8) : element_of(spec.type);
}

// Where the sizes in an error come from: "(silu, gated: 2 x intermediate 4 rows)".
std::string explain_rows(const LayerConfig& config, const TensorSpec& spec) {
  if (!config.is_moe()) return "";
  const perch_moe_config& moe = config.moe();
  const bool gated = perch_activation_is_gated(moe.activation) != 0;
  if (!spec.name.starts_with("w13")) {
    return fmt::format(" (hidden {}, intermediate {})", moe.hidden, moe.intermediate);
  }
  return fmt::format(" (activation {}, {}: {} rows = {}intermediate {})", print_activation(moe),
                     gated ? "gated" : "non-gated", config.rows(0), gated ? "2 x " : "",
                     moe.intermediate);
}

Status add_checked(const char* function, const LayerConfig& config, int64_t experts, int64_t expert,
                   const perch_named_tensor& given, const TensorSpec& spec, ExpertTensors* out) {
  std::vector<int64_t> shape = spec.shape;
  if (experts > 0) shape.insert(shape.begin(), experts);
  // A scalar may come as [], [1] or [1,1]; one per expert as [E], [E,1] or [E,1,1].
  const bool scalar = spec.shape.size() == 1 && spec.shape[0] == 1;
  const int32_t fewest = experts > 0 ? 1 : 0;
  if (scalar && given.tensor != nullptr && given.tensor->ndim >= fewest &&
      given.tensor->ndim <= 3) {
    shape.resize(static_cast<size_t>(given.tensor->ndim), 1);
  }
  const std::string argument = fmt::format("weights[\"{}\"]", spec.name);
  TensorWant want;
  want.function = function;
  want.argument = argument.c_str();
  want.elements = elements_of(spec);
  want.shape = shape.data();
  want.ndim = static_cast<int32_t>(shape.size());
  NormalTensor normal;
  const Status status = check_tensor(given.tensor, given.flags, want, &normal);
  if (!status.ok()) return {status.code(), status.message() + explain_rows(config, spec)};
  out->add(spec, static_cast<const std::byte*>(normal.tensor.data) +
                     (experts > 0 ? expert * spec.bytes() : 0));
  return {};
}

std::string spec_names(const std::vector<TensorSpec>& specs) {
  std::string names;
  for (const TensorSpec& spec : specs) names += (names.empty() ? "" : ", ") + spec.name;
  return names;
}

}  // namespace

DLDataType dtype_of(const TensorSpec& spec) {
  if (spec.int32) return {kDLInt, 32, 1};
  switch (spec.type) {
    case PERCH_TYPE_F32:
      return {kDLFloat, 32, 1};
    case PERCH_TYPE_F16:
      return {kDLFloat, 16, 1};
    case PERCH_TYPE_BF16:
      return {kDLBfloat, 16, 1};
    default:
      return {kDLUInt, 8, 1};
  }
}

void ExpertTensors::add(const TensorSpec& spec, const void* data) {
  auto entry = std::make_unique<Entry>();
  entry->name = spec.name;
  entry->shape = spec.shape;
  entry->strides.assign(spec.shape.size(), 1);
  for (size_t i = spec.shape.size(); i-- > 1;) {
    entry->strides[i - 1] = entry->strides[i] * spec.shape[i];
  }
  entry->tensor.data = const_cast<void*>(data);
  entry->tensor.device = {kDLCPU, 0};
  entry->tensor.ndim = static_cast<int32_t>(entry->shape.size());
  entry->tensor.dtype = dtype_of(spec);
  entry->tensor.shape = entry->shape.data();
  entry->tensor.strides = entry->strides.data();
  named_.push_back({entry->name.c_str(), &entry->tensor, PERCH_TENSOR_READ_ONLY});
  entries_.push_back(std::move(entry));
}

Status check_expert_tensors(const char* function, const LayerConfig& config, int64_t experts,
                            int64_t expert, std::span<const perch_named_tensor> tensors,
                            ExpertTensors* out) {
  const std::vector<TensorSpec> specs = tensor_specs(config);
  std::vector<const perch_named_tensor*> given(specs.size(), nullptr);
  for (const perch_named_tensor& tensor : tensors) {
    const std::string name = tensor.name == nullptr ? "" : tensor.name;
    const auto found = std::find_if(specs.begin(), specs.end(),
                                    [&](const TensorSpec& spec) { return spec.name == name; });
    if (found == specs.end()) {
      return invalid_argument(
          fmt::format("{}: weights[\"{}\"]: name: not called for by {}; want {}", function, name,
                      recipe_text(config), spec_names(specs)));
    }
    const perch_named_tensor*& slot = given[static_cast<size_t>(found - specs.begin())];
    if (slot != nullptr) {
      return invalid_argument(
          fmt::format("{}: weights[\"{}\"]: name: got it twice; want it once", function, name));
    }
    slot = &tensor;
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (given[i] == nullptr) {
      return invalid_argument(fmt::format("{}: weights[\"{}\"]: missing; {} calls for {}", function,
                                          specs[i].name, recipe_text(config), spec_names(specs)));
    }
    PERCH_RETURN_IF_ERROR(add_checked(function, config, experts, expert, *given[i], specs[i], out));
  }
  return {};
}

void add_canonical(const std::vector<CanonicalTensor>& tensors, ExpertTensors* out) {
  for (const CanonicalTensor& tensor : tensors) out->add(tensor.spec, tensor.data.data());
}

}  // namespace perch
