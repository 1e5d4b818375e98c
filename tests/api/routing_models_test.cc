// perch_route: the formulas of single model types (R3g, R5, R6, R8, R9 and those without a number),
// each written out in double beside it; ties, groups, a bias that changes the choice alone, and
// field report C5 for each.
#include <functional>
#include <numeric>

#include "routing_rig.h"

namespace perch::test {
namespace {

constexpr size_t kExperts = 16;
using Row = std::vector<double>;

// Best first.
struct Chosen {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

const std::vector<float>& bias() {
  static const std::vector<float> kBias = {0.1F,  0.0F, -0.2F, 0.3F,  0.05F, 0.2F, -0.1F, 0.15F,
                                           -0.3F, 0.4F, 0.0F,  -0.1F, 0.25F, 0.1F, -0.2F, 0.35F};
  return kBias;
}
const std::vector<float>& expert_scale() {
  static const std::vector<float> kScale = {1, 2, 0.5F, 3, 1, 1.5F, 0.25F, 4,
                                            1, 1, 2,    5, 1, 0.1F, 7,     1};
  return kScale;
}

Row softmax(const Row& x) {
  const double max = *std::max_element(x.begin(), x.end());
  Row p = x;
  for (double& value : p) value = std::exp(value - max);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

Row sigmoid(Row x) {
  for (double& value : x) value = 1 / (1 + std::exp(-value));
  return x;
}

Row with_bias(Row s) {
  for (size_t e = 0; e < s.size(); ++e) s[e] += double{bias()[e]};
  return s;
}

// The `topk` best by `choice`, with the weights `s`.
Chosen choose(const Row& choice, const Row& s, size_t topk) {
  Chosen chosen;
  for (int32_t e = 0; e < static_cast<int32_t>(choice.size()); ++e) chosen.ids.push_back(e);
  std::stable_sort(chosen.ids.begin(), chosen.ids.end(), [&](int32_t a, int32_t b) {
    return choice[static_cast<size_t>(a)] > choice[static_cast<size_t>(b)];
  });
  chosen.ids.resize(topk);
  for (const int32_t e : chosen.ids) chosen.weights.push_back(s[static_cast<size_t>(e)]);
  return chosen;
}

Chosen divided(Chosen chosen, double add, double min) {
  const double sum = std::accumulate(chosen.weights.begin(), chosen.weights.end(), 0.0);
  for (double& weight : chosen.weights) weight /= std::max(sum + add, min);
  return chosen;
}

Chosen times(Chosen chosen, double scale) {
  for (double& weight : chosen.weights) weight *= scale;
  return chosen;
}

Chosen plain_r3g(const Row& x) {
  const Row p = softmax(x);
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g < 4; ++g) {
    const auto begin = p.begin() + static_cast<std::ptrdiff_t>(4 * g);
    groups.emplace_back(-*std::max_element(begin, begin + 4), g);
  }
  std::sort(groups.begin(), groups.end());
  Row choice(kExperts, -1.0);
  for (size_t i = 0; i < 2; ++i) {
    for (size_t e = 4 * groups[i].second; e < 4 * groups[i].second + 4; ++e) choice[e] = p[e];
  }
  return times(choose(choice, p, 3), 4);
}

Chosen plain_r5(const Row& x) {
  Chosen chosen;
  std::vector<bool> taken(kExperts, false);
  for (int i = 0; i < 2; ++i) {
    size_t best = kExperts;
    for (size_t e = 0; e < kExperts; ++e) {
      if (!taken[e] && (best == kExperts || x[e] > x[best])) best = e;
    }
    double sum = 0;
    for (size_t e = 0; e < kExperts; ++e) {
      const double distance = (x[best] - x[e]) / std::max(std::fabs(x[e]), x[best]);
      if (!taken[e] && distance <= 2 * 0.25) sum += std::exp(x[e] - x[best]);
    }
    taken[best] = true;
    chosen.ids.push_back(static_cast<int32_t>(best));
    chosen.weights.push_back(1 / sum);
  }
  return chosen;
}

Chosen plain_r6(const Row& x) {
  const Row p = softmax(x);
  return divided(choose(with_bias(p), p, 3), 0, 0.75);
}

Chosen plain_r8(const Row& x) {
  const Row p = softmax(x);
  return divided(choose(p, p, 3), 0, 0);
}

Chosen plain_r9(const Row& x) {
  Row s = x;
  for (double& value : s) value = std::sqrt(std::log(1 + std::exp(value)));
  return times(divided(choose(with_bias(s), s, 3), 1e-20, 0), 1.5);
}

Chosen plain_lfm2(const Row& x) {
  const Row s = sigmoid(x);
  return times(divided(choose(with_bias(s), s, 3), 1e-6, 0), 1.5);
}

Chosen plain_longcat(const Row& x) {
  const Row p = softmax(x);
  return times(choose(with_bias(p), p, 3), 6);
}

Chosen plain_gemma4(const Row& x) {
  const Row p = softmax(x);
  Chosen chosen = divided(choose(p, p, 3), 0, 0);
  for (size_t i = 0; i < 3; ++i) {
    chosen.weights[i] *= double{expert_scale()[static_cast<size_t>(chosen.ids[i])]};
  }
  return chosen;
}

struct Formula {
  const char* name;
  std::function<perch_route_config()> config;
  Chosen (*plain)(const Row& x);
  float shift = 0;  // of the logits
};

perch_route_config biased(uint32_t scoring, uint32_t flags, float scale) {
  perch_route_config config = route_config(scoring, kExperts, 3, flags);
  config.bias = bias().data();
  config.scale = scale;
  return config;
}

perch_route_config r3g() {
  perch_route_config config = route_config(PERCH_ROUTE_SOFTMAX, kExperts, 3);
  config.num_groups = 4;
  config.topk_groups = 2;
  config.group_score = PERCH_ROUTE_GROUP_MAX;
  config.scale = 4;
  return config;
}
perch_route_config r5() {
  perch_route_config config = route_config(PERCH_ROUTE_SPARSEMIXER, kExperts, 2);
  config.jitter = 0.25F;
  return config;
}
perch_route_config r6() {
  perch_route_config config = biased(PERCH_ROUTE_SOFTMAX, PERCH_ROUTE_RENORMALIZE, 1);
  config.sum_min = 0.75F;
  return config;
}
perch_route_config r8() {
  return route_config(PERCH_ROUTE_SOFTMAX, kExperts, 3, PERCH_ROUTE_RENORMALIZE);
}
perch_route_config r9() {
  perch_route_config config = biased(PERCH_ROUTE_SQRT_SOFTPLUS, PERCH_ROUTE_RENORMALIZE, 1.5F);
  config.sum_add = 1e-20F;
  return config;
}
perch_route_config lfm2() {
  perch_route_config config = biased(PERCH_ROUTE_SIGMOID, PERCH_ROUTE_RENORMALIZE, 1.5F);
  config.sum_add = 1e-6F;
  return config;
}
perch_route_config longcat() { return biased(PERCH_ROUTE_SOFTMAX, 0, 6); }
perch_route_config gemma4() {
  perch_route_config config = r8();
  config.expert_scale = expert_scale().data();
  return config;
}

const Formula kFormulas[] = {
    {"R3g", r3g, plain_r3g},
    {"R5", r5, plain_r5},
    {"R5_negative", r5, plain_r5, -5},
    {"R6", r6, plain_r6},
    {"R8", r8, plain_r8},
    {"R9", r9, plain_r9},
    {"R9_large", r9, plain_r9, 40},
    {"lfm2", lfm2, plain_lfm2},
    // Where 1e-6 is as large as the scores themselves.
    {"lfm2_small", lfm2, plain_lfm2, -15},
    {"longcat", longcat, plain_longcat},
    {"gemma4", gemma4, plain_gemma4},
};

class ModelRouteTest : public ::testing::TestWithParam<Formula> {};

TEST_P(ModelRouteTest, EqualsPlainDouble) {
  const Formula& formula = GetParam();
  const perch_route_config config = formula.config();
  std::mt19937 rng(23);
  std::uniform_real_distribution<float> any(-4, 4);
  constexpr size_t kRows = 50;
  std::vector<float> logits(kRows * kExperts);
  for (float& logit : logits) logit = any(rng) + formula.shift;
  const Routed routed = route(config, logits);
  for (size_t t = 0; t < kRows; ++t) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(t * kExperts);
    const Chosen want = formula.plain(Row(begin, begin + kExperts));
    for (size_t s = 0; s < config.topk; ++s) {
      EXPECT_EQ(routed.ids[t * config.topk + s], want.ids[s]) << "row " << t;
      EXPECT_NEAR(double{routed.weights[t * config.topk + s]}, want.weights[s],
                  2e-6 * std::fabs(want.weights[s]))
          << "row " << t;
    }
  }
}

TEST_P(ModelRouteTest, TiesGoToTheLowerId) {
  perch_route_config config = GetParam().config();
  config.bias = nullptr;
  std::vector<int32_t> want(config.topk);
  std::iota(want.begin(), want.end(), 0);
  for (const float value : {0.0F, 1.5F, -2.0F}) {
    EXPECT_EQ(route(config, std::vector<float>(kExperts, value)).ids, want);
  }
}

// Rows of ordinary logits, of odd ones, and of both.
std::vector<float> odd_rows(size_t rows) {
  const float odd[] = {kNan, kInf, -kInf, 3e38F, -3e38F, 0.0F, 1e-45F};
  std::mt19937 rng(29);
  std::vector<float> logits;
  for (size_t t = 0; t < rows; ++t) {
    const size_t share = t % 5;  // of 4
    for (size_t e = 0; e < kExperts; ++e) {
      const float ordinary = static_cast<float>(rng() % 100) / 10 - 5;
      logits.push_back(rng() % 4 < share ? odd[rng() % std::size(odd)] : ordinary);
    }
  }
  return logits;
}

TEST_P(ModelRouteTest, OddLogitsGiveDistinctIdsAndFiniteWeights) {
  const std::vector<float> logits = odd_rows(200);
  for (const uint32_t flags : {0U, PERCH_ROUTE_RENORMALIZE}) {
    for (const uint32_t topk : {1U, 3U, 8U}) {
      perch_route_config config = GetParam().config();
      config.flags = flags;
      config.topk = topk;
      const Routed routed = route(config, logits);
      expect_sound(routed, kExperts, topk);
      if (config.num_groups > 1) continue;
      // Never NaN or -infinity while another is left.
      for (size_t t = 0; t < 200; ++t) {
        const float* row = &logits[t * kExperts];
        const auto usable = [](float x) { return x > -kInf; };
        const auto left = static_cast<size_t>(std::count_if(row, row + kExperts, usable));
        for (size_t s = 0; s < std::min<size_t>(topk, left); ++s) {
          EXPECT_TRUE(usable(row[routed.ids[t * topk + s]])) << "row " << t << " slot " << s;
        }
      }
    }
  }
}

TEST_P(ModelRouteTest, InfinityTakesAllTheWeight) {
  perch_route_config config = GetParam().config();
  if (config.scoring == PERCH_ROUTE_SIGMOID) return;  // 1 there, beside others' own
  config.expert_scale = nullptr;
  config.bias = nullptr;
  config.scale = 1;
  std::vector<float> logits(kExperts, 0.5F);
  logits[6] = kInf;
  const Routed routed = route(config, logits);
  EXPECT_EQ(routed.ids[0], 6);
  EXPECT_EQ(routed.weights[0], 1.0F);
  // The second choice of sparsemixer is a softmax of its own.
  if (config.scoring == PERCH_ROUTE_SPARSEMIXER) return;
  EXPECT_EQ(routed.weights[1], 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Formulas, ModelRouteTest, ::testing::ValuesIn(kFormulas),
                         [](const auto& row) { return std::string(row.param.name); });

class RouteBiasTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(RouteBiasTest, ChangesTheChoiceAndNoWeight) {
  perch_route_config config = route_config(GetParam(), 4, 4);
  const std::vector<float> logits = {2, 1, 0.5F, -1};
  const Routed plain = route(config, logits);
  const float bias[4] = {0, 0, 10, 5};
  config.bias = bias;
  config.topk = 2;
  const Routed routed = route(config, logits);
  EXPECT_EQ(plain.ids, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(routed.ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(routed.weights, (std::vector<float>{plain.weights[2], plain.weights[3]}));
}

INSTANTIATE_TEST_SUITE_P(Scorings, RouteBiasTest,
                         ::testing::Values(PERCH_ROUTE_SOFTMAX, PERCH_ROUTE_SIGMOID,
                                           PERCH_ROUTE_SQRT_SOFTPLUS));

// One strong expert against two good ones.
TEST(RouteGroups, ByTheirMaximumOrByTheirTwoBest) {
  const std::vector<float> logits = {3, -9, 2.9F, 2.8F};
  for (const uint32_t scoring : {PERCH_ROUTE_SOFTMAX, PERCH_ROUTE_SQRT_SOFTPLUS}) {
    perch_route_config config = route_config(scoring, 4, 1);
    config.num_groups = 2;
    config.topk_groups = 1;
    config.group_score = PERCH_ROUTE_GROUP_MAX;
    EXPECT_EQ(route(config, logits).ids, (std::vector<int32_t>{0}));
    config.group_score = PERCH_ROUTE_GROUP_TOP2;
    EXPECT_EQ(route(config, logits).ids, (std::vector<int32_t>{2}));
  }
}

TEST(RouteScale, StopsAtTheLargestFloat) {
  const float largest = std::numeric_limits<float>::max();
  const float scales[2] = {largest, -largest};
  perch_route_config config = route_config(PERCH_ROUTE_SQRT_SOFTPLUS, 2, 2);
  config.scale = 100;
  config.expert_scale = scales;
  const Routed routed = route(config, {9, 8});
  EXPECT_EQ(routed.weights, (std::vector<float>{largest, -largest}));
}

// A sum below the floor is not blown up to 1.
TEST(RouteSum, FloorHoldsSmallWeightsDown) {
  perch_route_config config = route_config(PERCH_ROUTE_SIGMOID, 2, 1, PERCH_ROUTE_RENORMALIZE);
  config.sum_min = 0.5F;
  EXPECT_NEAR(route(config, {-20, -30}).weights[0], 2.0 * std::exp(-20.0), 1e-14);
  config.sum_min = 0;
  EXPECT_EQ(route(config, {-20, -30}).weights[0], 1.0F);
}

}  // namespace
}  // namespace perch::test
