// Weights on their way in: builder, prepared layer, replacement of one expert.
#pragma once

#include <perch/backend.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "formats.h"
#include "layer_spec.h"
#include "matrix.h"
#include "status.h"

struct perch_backend {
  const perch_host_api* host;
  reference::FormatSet formats;
};

namespace reference {

// The matrices of one expert: w13 and w2, or w alone.
using Expert = std::vector<Matrix>;

}  // namespace reference

struct perch_prepared {
  perch_prepared(const perch_backend& owner, const reference::LayerSpec& layer)
      : backend(owner), spec(layer) {}

  const perch_backend& backend;
  reference::LayerSpec spec;
  std::vector<reference::Expert> experts;
};

struct perch_builder {
  std::unique_ptr<perch_prepared> layer;
  std::vector<uint8_t> present;  // one per expert; puts of different experts may run at once
};

namespace reference {

perch_builder* begin_layer(const perch_backend& backend, const LayerSpec& spec);
Status put_expert(perch_builder* builder, int32_t expert, const perch_named_tensor* tensors,
                  uint32_t num_tensors);
// On success the builder is gone and *prepared is the layer; on refusal it still lives.
Status finish_layer(perch_builder* builder, perch_prepared** prepared);
// Either the whole expert is replaced or nothing is; the addresses of its numbers stay.
Status replace_expert(perch_prepared* layer, int32_t expert, const perch_named_tensor* tensors,
                      uint32_t num_tensors);

}  // namespace reference
