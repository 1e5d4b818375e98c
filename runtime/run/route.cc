#include "run/route.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace perch {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + std::exp(-double{x}))); }

// Ranks a before b: larger first; NaN after everything; equal scores by the lower index.
bool better(const float* score, int32_t a, int32_t b) {
  const bool nan_a = std::isnan(score[a]);
  const bool nan_b = std::isnan(score[b]);
  if (nan_a != nan_b) return nan_b;
  if (!nan_a && score[a] != score[b]) return score[a] > score[b];
  return a < b;
}

// The first `count` of `items` by score, in order.
void select_best(const float* score, size_t count, std::vector<int32_t>* items) {
  std::partial_sort(items->begin(), items->begin() + static_cast<std::ptrdiff_t>(count),
                    items->end(), [&](int32_t a, int32_t b) { return better(score, a, b); });
  items->resize(count);
}

// exp(x - max) with the infinities taken to their limits; 0 for NaN.
double softmax_term(float x, float max) {
  if (std::isnan(x) || x == -kInfinity) return 0.0;
  if (max == kInfinity) return x == kInfinity ? 1.0 : 0.0;
  return std::exp(double{x} - double{max});
}

// softmax over `over` evaluated at `ids`; all zero when no logit is a number.
void softmax_weights(const float* logits, const std::vector<int32_t>& over,
                     const std::vector<int32_t>& ids, float* weights) {
  float max = -kInfinity;
  for (const int32_t e : over) {
    if (!std::isnan(logits[e])) max = std::max(max, logits[e]);
  }
  double sum = 0.0;
  for (const int32_t e : over) sum += softmax_term(logits[e], max);
  for (size_t i = 0; i < ids.size(); ++i) {
    weights[i] = sum > 0.0 ? static_cast<float>(softmax_term(logits[ids[i]], max) / sum) : 0.0F;
  }
}

// Experts of the kept groups: those whose two best scores sum highest.
std::vector<int32_t> kept_experts(const perch_route_config& config, const float* score) {
  const auto experts = static_cast<int32_t>(config.num_experts);
  std::vector<int32_t> kept;
  if (config.num_groups <= 1 || config.topk_groups >= config.num_groups) {
    for (int32_t e = 0; e < experts; ++e) kept.push_back(e);
    return kept;
  }
  const int32_t size = experts / static_cast<int32_t>(config.num_groups);
  std::vector<float> group_score(config.num_groups);
  std::vector<int32_t> groups(config.num_groups);
  for (int32_t g = 0; g < static_cast<int32_t>(config.num_groups); ++g) {
    std::vector<int32_t> members;
    for (int32_t e = g * size; e < (g + 1) * size; ++e) members.push_back(e);
    select_best(score, std::min<size_t>(2, members.size()), &members);
    float sum = 0.0F;
    for (const int32_t e : members) {
      const float term = std::isnan(score[e]) ? -kInfinity : score[e];
      sum += term;
    }
    groups[static_cast<size_t>(g)] = g;
    group_score[static_cast<size_t>(g)] = sum;
  }
  select_best(group_score.data(), config.topk_groups, &groups);
  std::sort(groups.begin(), groups.end());
  for (const int32_t g : groups) {
    for (int32_t e = g * size; e < (g + 1) * size; ++e) kept.push_back(e);
  }
  return kept;
}

void renormalize(size_t count, double floor, float* weights) {
  double sum = 0.0;
  for (size_t i = 0; i < count; ++i) sum += weights[i];
  sum += floor;
  for (size_t i = 0; i < count; ++i) {
    weights[i] = sum > 0.0 ? static_cast<float>(weights[i] / sum) : 0.0F;
  }
}

}  // namespace

Status check_route_config(const perch_route_config& config) {
  const auto fail = [](const std::string& text) {
    return invalid_argument("perch_route: config." + text);
  };
  if (config.struct_size < sizeof(perch_route_config) || config.struct_size > 65536) {
    return {PERCH_E_ABI_MISMATCH, fmt::format("perch_route: config.struct_size: got {}; want {}",
                                              config.struct_size, sizeof(perch_route_config))};
  }
  if (config.scoring < PERCH_ROUTE_SOFTMAX || config.scoring > PERCH_ROUTE_TOPK_SIGMOID) {
    return fail(fmt::format("scoring: got {}; want PERCH_ROUTE_*, 1 to 4", config.scoring));
  }
  if ((config.flags & ~PERCH_ROUTE_RENORMALIZE) != 0) {
    return fail(fmt::format("flags: got {:#x}; want only bit 0", config.flags));
  }
  if (config.num_experts == 0 || config.num_experts > (1U << 20)) {
    return fail(fmt::format("num_experts: got {}; want 1 to {}", config.num_experts, 1U << 20));
  }
  const uint32_t groups = std::max(1U, config.num_groups);
  if (config.num_experts % groups != 0) {
    return fail(fmt::format("num_groups: got {}; want a divisor of {} experts", groups,
                            config.num_experts));
  }
  const uint32_t kept = groups == 1 ? 1 : config.topk_groups;
  if (kept < 1 || kept > groups) {
    return fail(fmt::format("topk_groups: got {}; want 1 to {}", kept, groups));
  }
  const uint32_t available = config.num_experts / groups * kept;
  if (config.topk < 1 || config.topk > available) {
    return fail(fmt::format("topk: got {}; want 1 to {}", config.topk, available));
  }
  if (!std::isfinite(config.scale)) {
    return fail(fmt::format("scale: got {}; want a finite number", config.scale));
  }
  return {};
}

void route_row(const perch_route_config& config, const float* logits, int32_t* ids,
               float* weights) {
  const size_t experts = config.num_experts;
  const size_t topk = config.topk;
  std::vector<int32_t> all(experts);
  for (size_t e = 0; e < experts; ++e) all[e] = static_cast<int32_t>(e);

  // `score` decides the choice; without a bias the logit itself ranks as softmax does.
  std::vector<float> score(logits, logits + experts);
  if (config.scoring == PERCH_ROUTE_SOFTMAX && config.bias != nullptr) {
    softmax_weights(logits, all, all, score.data());
  }
  if (config.scoring == PERCH_ROUTE_SIGMOID) {
    for (size_t e = 0; e < experts; ++e) score[e] = sigmoid(logits[e]);
  }
  if (config.bias != nullptr) {
    for (size_t e = 0; e < experts; ++e) score[e] += config.bias[e];
  }
  std::vector<int32_t> chosen = kept_experts(config, score.data());
  select_best(score.data(), topk, &chosen);

  if (config.scoring == PERCH_ROUTE_SOFTMAX) softmax_weights(logits, all, chosen, weights);
  if (config.scoring == PERCH_ROUTE_TOPK_SOFTMAX) {
    softmax_weights(logits, chosen, chosen, weights);
  }
  if (config.scoring == PERCH_ROUTE_SIGMOID || config.scoring == PERCH_ROUTE_TOPK_SIGMOID) {
    for (size_t i = 0; i < topk; ++i) {
      const float value = sigmoid(logits[chosen[i]]);
      weights[i] = std::isnan(value) ? 0.0F : value;
    }
  }
  if ((config.flags & PERCH_ROUTE_RENORMALIZE) != 0) {
    renormalize(topk, config.scoring == PERCH_ROUTE_SIGMOID ? 1e-20 : 0.0, weights);
  }
  const float scale = config.scale == 0.0F ? 1.0F : config.scale;
  for (size_t i = 0; i < topk; ++i) {
    ids[i] = chosen[i];
    weights[i] *= scale;
  }
}

}  // namespace perch
