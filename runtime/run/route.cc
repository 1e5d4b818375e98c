#include "run/route.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace perch {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Scorings whose score of an expert depends on its own logit alone.
bool scores_one_by_one(uint32_t scoring) {
  return scoring == PERCH_ROUTE_SIGMOID || scoring == PERCH_ROUTE_TOPK_SIGMOID ||
         scoring == PERCH_ROUTE_SQRT_SOFTPLUS;
}

float score_one(uint32_t scoring, float logit) {
  const double x = logit;
  if (scoring != PERCH_ROUTE_SQRT_SOFTPLUS) return static_cast<float>(1.0 / (1.0 + std::exp(-x)));
  return static_cast<float>(std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));
}

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

// Experts of the kept groups: those whose best score, or two best scores summed, are highest.
std::vector<int32_t> kept_experts(const perch_route_config& config, const float* score) {
  const auto experts = static_cast<int32_t>(config.num_experts);
  std::vector<int32_t> kept;
  if (config.num_groups <= 1 || config.topk_groups >= config.num_groups) {
    for (int32_t e = 0; e < experts; ++e) kept.push_back(e);
    return kept;
  }
  const int32_t size = experts / static_cast<int32_t>(config.num_groups);
  const size_t counted = config.group_score == PERCH_ROUTE_GROUP_MAX ? 1 : 2;
  std::vector<float> group_score(config.num_groups);
  std::vector<int32_t> groups(config.num_groups);
  for (int32_t g = 0; g < static_cast<int32_t>(config.num_groups); ++g) {
    std::vector<int32_t> members;
    for (int32_t e = g * size; e < (g + 1) * size; ++e) members.push_back(e);
    select_best(score, std::min(counted, members.size()), &members);
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

// One at a time: the best expert left, weighted by its softmax among those left that are near it.
void sparsemixer(const perch_route_config& config, const float* logits,
                 std::vector<int32_t>* chosen, float* weights) {
  std::vector<int32_t> left;
  for (int32_t e = 0; e < static_cast<int32_t>(config.num_experts); ++e) left.push_back(e);
  for (uint32_t i = 0; i < config.topk; ++i) {
    const auto best = std::min_element(left.begin(), left.end(),
                                       [&](int32_t a, int32_t b) { return better(logits, a, b); });
    const int32_t id = *best;
    const float max = logits[id];
    std::vector<int32_t> near;
    for (const int32_t e : left) {
      const float distance = (max - logits[e]) / std::max(std::fabs(logits[e]), max);
      // Not "distance <= ...": a quotient of zeros or of infinities keeps its expert.
      if (!(distance > 2.0F * config.jitter)) near.push_back(e);
    }
    softmax_weights(logits, near, {id}, weights + i);
    chosen->push_back(id);
    left.erase(best);
  }
}

void renormalize(const perch_route_config& config, float* weights) {
  double sum = 0.0;
  for (uint32_t i = 0; i < config.topk; ++i) sum += weights[i];
  sum = std::max(sum + config.sum_add, double{config.sum_min});
  for (uint32_t i = 0; i < config.topk; ++i) {
    weights[i] = sum > 0.0 ? static_cast<float>(weights[i] / sum) : 0.0F;
  }
}

// What decides the choice: a score per expert, or, where that ranks alike, the logit itself.
std::vector<float> choice_scores(const perch_route_config& config, const float* logits,
                                 const std::vector<int32_t>& all) {
  std::vector<float> score(logits, logits + config.num_experts);
  const bool sums = config.num_groups > 1 && config.group_score == PERCH_ROUTE_GROUP_TOP2;
  if (config.scoring == PERCH_ROUTE_SOFTMAX && (config.bias != nullptr || sums)) {
    softmax_weights(logits, all, all, score.data());
    for (const int32_t e : all) {
      if (std::isnan(logits[e])) score[static_cast<size_t>(e)] = logits[e];
    }
  }
  if (scores_one_by_one(config.scoring) && config.scoring != PERCH_ROUTE_TOPK_SIGMOID) {
    for (float& value : score) value = score_one(config.scoring, value);
  }
  if (config.bias != nullptr) {
    for (const int32_t e : all) score[static_cast<size_t>(e)] += config.bias[e];
  }
  return score;
}

// Weights of the chosen experts, before any sum or scale.
void weigh(const perch_route_config& config, const float* logits, const std::vector<int32_t>& all,
           const std::vector<int32_t>& chosen, float* weights) {
  if (config.scoring == PERCH_ROUTE_SOFTMAX) softmax_weights(logits, all, chosen, weights);
  if (config.scoring == PERCH_ROUTE_TOPK_SOFTMAX) {
    softmax_weights(logits, chosen, chosen, weights);
  }
  if (!scores_one_by_one(config.scoring)) return;
  bool infinite = false;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const float value = score_one(config.scoring, logits[chosen[i]]);
    weights[i] = std::isnan(value) ? 0.0F : value;
    infinite |= weights[i] == kInfinity;
  }
  if (!infinite) return;
  for (size_t i = 0; i < chosen.size(); ++i) weights[i] = weights[i] == kInfinity ? 1.0F : 0.0F;
}

float scaled(const perch_route_config& config, int32_t id, float weight) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  double value = double{weight} * (config.scale == 0.0F ? 1.0 : double{config.scale});
  if (config.expert_scale != nullptr) value *= double{config.expert_scale[id]};
  return std::isnan(value) ? 0.0F : static_cast<float>(std::clamp(value, -kLargest, kLargest));
}

Status check_numbers(const perch_route_config& config) {
  if (!std::isfinite(config.scale)) {
    return invalid_argument(
        fmt::format("perch_route: config.scale: got {}; want a finite number", config.scale));
  }
  const std::pair<const char*, float> kNotNegative[] = {
      {"sum_add", config.sum_add}, {"sum_min", config.sum_min}, {"jitter", config.jitter}};
  for (const auto& [name, value] : kNotNegative) {
    if (std::isfinite(value) && value >= 0.0F) continue;
    return invalid_argument(fmt::format(
        "perch_route: config.{}: got {}; want a finite number, 0 or more", name, value));
  }
  return {};
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
  if (config.scoring < PERCH_ROUTE_SOFTMAX || config.scoring > PERCH_ROUTE_SQRT_SOFTPLUS) {
    return fail(fmt::format("scoring: got {}; want PERCH_ROUTE_*, 1 to 6", config.scoring));
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
  if (config.group_score > PERCH_ROUTE_GROUP_MAX) {
    return fail(
        fmt::format("group_score: got {}; want PERCH_ROUTE_GROUP_*, 0 or 1", config.group_score));
  }
  if (config.scoring == PERCH_ROUTE_SPARSEMIXER && (groups > 1 || config.bias != nullptr)) {
    return fail("scoring: got SPARSEMIXER with groups or a bias; want neither");
  }
  return check_numbers(config);
}

void route_row(const perch_route_config& config, const float* logits, int32_t* ids,
               float* weights) {
  const size_t experts = config.num_experts;
  std::vector<int32_t> all(experts);
  for (size_t e = 0; e < experts; ++e) all[e] = static_cast<int32_t>(e);

  std::vector<int32_t> chosen;
  if (config.scoring == PERCH_ROUTE_SPARSEMIXER) {
    sparsemixer(config, logits, &chosen, weights);
  } else {
    std::vector<float> score = choice_scores(config, logits, all);
    chosen = kept_experts(config, score.data());
    // Whatever its bias, an expert of no score comes after all others.
    for (size_t e = 0; e < experts; ++e) {
      if (logits[e] == -kInfinity) score[e] = -kInfinity;
    }
    select_best(score.data(), config.topk, &chosen);
    weigh(config, logits, all, chosen, weights);
  }
  if ((config.flags & PERCH_ROUTE_RENORMALIZE) != 0) renormalize(config, weights);
  for (size_t i = 0; i < config.topk; ++i) {
    ids[i] = chosen[i];
    weights[i] = scaled(config, chosen[i], weights[i]);
  }
}

}  // namespace perch
