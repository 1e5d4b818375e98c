// The check of one expert's named tensors against what its config calls for.
//
// The runtime's half of the paired assertion: the backend checks names and completeness again.
#pragma once

#include <vector>

#include "base/layer_config.h"
#include "base/status.h"
#include "canonical/read_expert.h"

namespace perch {

// The type in which a canonical tensor crosses.
DLDataType dtype_of(const TensorSpec& spec);

// Tensors ready to cross: every pointer is into this object, so it is not copied.
class ExpertTensors {
 public:
  ExpertTensors() = default;
  ExpertTensors(const ExpertTensors&) = delete;
  ExpertTensors& operator=(const ExpertTensors&) = delete;

  const perch_named_tensor* data() const { return named_.data(); }
  uint32_t size() const { return static_cast<uint32_t>(named_.size()); }

  // Adds a tensor of `spec` whose elements lie at `data`.
  void add(const TensorSpec& spec, const void* data);

 private:
  struct Entry {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
    DLTensor tensor{};
  };
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<perch_named_tensor> named_;
};

// What a caller gave, checked: names, shapes, dtypes, strides, alignment; each required tensor
// once. experts = 0: tensors have the shapes of tensor_specs; otherwise each has a leading
// dimension of that many experts, and the result holds expert `expert` of it.
Status check_expert_tensors(const char* function, const LayerConfig& config, int64_t experts,
                            int64_t expert, std::span<const perch_named_tensor> tensors,
                            ExpertTensors* out);

// Canonical tensors as they come from a checkpoint.
void add_canonical(const std::vector<CanonicalTensor>& tensors, ExpertTensors* out);

}  // namespace perch
