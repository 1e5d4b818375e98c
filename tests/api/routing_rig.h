// perch_route on rows of logits, and what its answers must always be.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "api_rig.h"

namespace perch::test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

inline perch_route_config route_config(uint32_t scoring, uint32_t experts, uint32_t topk,
                                       uint32_t flags = 0) {
  perch_route_config config{};
  config.struct_size = sizeof(config);
  config.scoring = scoring;
  config.num_experts = experts;
  config.topk = topk;
  config.flags = flags;
  return config;
}

inline Routed route(const perch_route_config& config, const std::vector<float>& logits) {
  const auto rows = static_cast<int64_t>(logits.size() / config.num_experts);
  const Tensor in = f32({rows, config.num_experts}, logits);
  const Tensor ids = empty_tensor({kDLInt, 32, 1}, {rows, config.topk});
  const Tensor weights = empty_tensor({kDLFloat, 32, 1}, {rows, config.topk});
  perch_host::check(perch_route, &config, in.dl(), ids.dl(), weights.dl());
  return {ids.as<int32_t>(), weights.as<float>()};
}

// Ids in range and distinct, weights finite.
inline void expect_sound(const Routed& routed, uint32_t experts, uint32_t topk) {
  for (size_t t = 0; t < routed.ids.size() / topk; ++t) {
    std::vector<int32_t> ids(routed.ids.begin() + static_cast<std::ptrdiff_t>(t * topk),
                             routed.ids.begin() + static_cast<std::ptrdiff_t>((t + 1) * topk));
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end()) << "row " << t;
    EXPECT_GE(ids.front(), 0) << "row " << t;
    EXPECT_LT(ids.back(), static_cast<int32_t>(experts)) << "row " << t;
    for (size_t s = 0; s < topk; ++s) {
      EXPECT_TRUE(std::isfinite(routed.weights[t * topk + s])) << "row " << t;
    }
  }
}

}  // namespace perch::test
