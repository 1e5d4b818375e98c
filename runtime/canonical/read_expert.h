// Canonical tensors of one expert: the end of step 3, read when step 6 asks for them.
#pragma once

#include <vector>

#include "base/status.h"
#include "canonical/canonical_layer.h"

namespace perch {

// One tensor in canonical form, owned.
struct CanonicalTensor {
  TensorSpec spec;
  std::vector<std::byte> data;
};

struct CanonicalExpert {
  std::vector<CanonicalTensor> tensors;  // those of tensor_specs, in that order
  int64_t bytes_read = 0;                // of the checkpoint

  // The tensor of that name, or null.
  const CanonicalTensor* find(std::string_view name) const;
  CanonicalTensor* find(std::string_view name);
};

// Reads expert `expert` (local index; -1 for a linear layer): the tensors of tensor_specs(config).
// `config` is the layer's own, or one whose input quantization was changed by a rule.
Result<CanonicalExpert> read_expert(const CanonicalLayer& layer, const LayerConfig& config,
                                    int64_t expert);

// Gives back the pages of the checkpoint that hold this expert: it is packed and not needed again.
// A hint; the tensors stay readable.
void release_expert(const CanonicalLayer& layer, int64_t expert);

}  // namespace perch
