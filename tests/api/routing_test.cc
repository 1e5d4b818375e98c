// perch_route: the formulas R1, R1n, R2, R3, R4 of the model types against plain double, and field
// report C5: NaN, infinite and underflowing logits.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "routing_rig.h"

namespace perch::test {
namespace {

// One row by the formulas, in double. Returns ids best first.
struct Plain {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};
Plain plain_route(const perch_route_config& config, const float* logits) {
  const size_t experts = config.num_experts;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const bool by_sigmoid = config.scoring == PERCH_ROUTE_SIGMOID;
  std::vector<double> choice(experts);
  for (size_t e = 0; e < experts; ++e) {
    choice[e] = by_sigmoid ? sigmoid(double{logits[e]}) : double{logits[e]};
    if (config.bias != nullptr) choice[e] += double{config.bias[e]};
  }
  std::vector<bool> allowed(experts, true);
  if (config.num_groups > 1) {
    const size_t size = experts / config.num_groups;
    std::vector<std::pair<double, size_t>> groups;
    for (size_t g = 0; g < config.num_groups; ++g) {
      std::vector<double> members(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
                                  choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      groups.emplace_back(-(members[0] + (size > 1 ? members[1] : 0)), g);
    }
    std::sort(groups.begin(), groups.end());
    for (size_t i = config.topk_groups; i < groups.size(); ++i) {
      for (size_t e = 0; e < size; ++e) allowed[groups[i].second * size + e] = false;
    }
  }
  Plain plain;
  std::vector<int32_t> order;
  for (size_t e = 0; e < experts; ++e) {
    if (allowed[e]) order.push_back(static_cast<int32_t>(e));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return choice[static_cast<size_t>(a)] > choice[static_cast<size_t>(b)];
  });
  plain.ids.assign(order.begin(), order.begin() + config.topk);
  double over_all = 0;
  double over_chosen = 0;
  for (size_t e = 0; e < experts; ++e) over_all += std::exp(double{logits[e]});
  for (const int32_t e : plain.ids) over_chosen += std::exp(double{logits[e]});
  for (const int32_t e : plain.ids) {
    const double logit = double{logits[e]};
    plain.weights.push_back(config.scoring == PERCH_ROUTE_SOFTMAX ? std::exp(logit) / over_all
                            : config.scoring == PERCH_ROUTE_TOPK_SOFTMAX
                                ? std::exp(logit) / over_chosen
                                : sigmoid(logit));
  }
  if (config.flags & PERCH_ROUTE_RENORMALIZE) {
    const double sum = std::accumulate(plain.weights.begin(), plain.weights.end(), 0.0);
    for (double& weight : plain.weights) weight /= sum;
  }
  const double scale = config.scale == 0 ? 1.0 : double{config.scale};
  for (double& weight : plain.weights) weight *= scale;
  return plain;
}

struct Formula {
  const char* name;
  uint32_t scoring;
  uint32_t topk;
  uint32_t flags;
  uint32_t groups, topk_groups;
  float scale;
  bool bias;
};

class RouteFormulaTest : public ::testing::TestWithParam<Formula> {};

TEST_P(RouteFormulaTest, EqualsPlainDouble) {
  const Formula& row = GetParam();
  std::mt19937 rng(17);
  std::uniform_real_distribution<float> any(-4, 4);
  std::vector<float> logits(50 * 16);
  for (float& logit : logits) logit = any(rng);
  std::vector<float> bias(16);
  for (float& value : bias) value = 0.2F * any(rng);
  perch_route_config config = route_config(row.scoring, 16, row.topk, row.flags);
  config.num_groups = row.groups;
  config.topk_groups = row.topk_groups;
  config.scale = row.scale;
  config.bias = row.bias ? bias.data() : nullptr;
  const Routed routed = route(config, logits);
  for (size_t t = 0; t < 50; ++t) {
    const Plain want = plain_route(config, &logits[t * 16]);
    for (size_t s = 0; s < row.topk; ++s) {
      EXPECT_EQ(routed.ids[t * row.topk + s], want.ids[s]) << "row " << t;
      EXPECT_NEAR(double{routed.weights[t * row.topk + s]}, want.weights[s],
                  1e-6 * std::fabs(want.weights[s]));
    }
  }
}

const Formula kFormulas[] = {
    {"R1", PERCH_ROUTE_SOFTMAX, 3, PERCH_ROUTE_RENORMALIZE, 0, 0, 0, false},
    {"R1n", PERCH_ROUTE_SOFTMAX, 3, 0, 0, 0, 0, false},
    {"R1_scaled", PERCH_ROUTE_SOFTMAX, 4, PERCH_ROUTE_RENORMALIZE, 0, 0, 2.5F, false},
    {"R2", PERCH_ROUTE_TOPK_SOFTMAX, 4, 0, 0, 0, 0, false},
    {"R3", PERCH_ROUTE_SIGMOID, 4, PERCH_ROUTE_RENORMALIZE, 1, 1, 2.5F, true},
    {"R3_groups", PERCH_ROUTE_SIGMOID, 4, PERCH_ROUTE_RENORMALIZE, 4, 2, 2.5F, true},
    {"R3_groups_unnormalized", PERCH_ROUTE_SIGMOID, 3, 0, 8, 3, 1.0F, true},
    {"R4", PERCH_ROUTE_TOPK_SIGMOID, 1, 0, 0, 0, 0, false},
};
INSTANTIATE_TEST_SUITE_P(Formulas, RouteFormulaTest, ::testing::ValuesIn(kFormulas),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- C5 ----------------------------------------------------------------------------------------

const std::vector<float> kOddRows = {kNan,  kNan,  kNan,  kNan,   // row 0
                                     kNan,  1,     2,     kNan,   // row 1
                                     1e4F,  9999,  0,     0,      // row 2
                                     kInf,  0,     0,     0,      // row 3
                                     -kInf, -kInf, -kInf, -kInf,  // row 4
                                     0.5F,  1.5F,  0.25F, 1};     // row 5 is an ordinary one

class OddLogitsTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(OddLogitsTest, IdsDistinctAndInRangeWeightsFinite) {
  for (const uint32_t flags : {0U, PERCH_ROUTE_RENORMALIZE}) {
    for (const uint32_t topk : {1U, 2U, 4U}) {
      expect_sound(route(route_config(GetParam(), 4, topk, flags), kOddRows), 4, topk);
    }
  }
}

TEST_P(OddLogitsTest, OtherRowsAreUntouched) {
  const perch_route_config config = route_config(GetParam(), 4, 2, PERCH_ROUTE_RENORMALIZE);
  const Routed together = route(config, kOddRows);
  const Routed alone = route(config, {kOddRows.end() - 4, kOddRows.end()});
  EXPECT_EQ(together.ids[10], alone.ids[0]);
  EXPECT_EQ(together.ids[11], alone.ids[1]);
  EXPECT_EQ(std::memcmp(&together.weights[10], alone.weights.data(), 2 * sizeof(float)), 0);
}

std::string scoring_name(const ::testing::TestParamInfo<uint32_t>& row) {
  static const char* const kNames[] = {"softmax",      "topk_softmax", "sigmoid",
                                       "topk_sigmoid", "sparsemixer",  "sqrt_softplus"};
  return kNames[row.param - 1];
}
INSTANTIATE_TEST_SUITE_P(Scorings, OddLogitsTest,
                         ::testing::Values(PERCH_ROUTE_SOFTMAX, PERCH_ROUTE_TOPK_SOFTMAX,
                                           PERCH_ROUTE_SIGMOID, PERCH_ROUTE_TOPK_SIGMOID,
                                           PERCH_ROUTE_SPARSEMIXER, PERCH_ROUTE_SQRT_SOFTPLUS),
                         scoring_name);

TEST(RouteC5, SoftmaxValues) {
  const Routed routed =
      route(route_config(PERCH_ROUTE_SOFTMAX, 4, 2, PERCH_ROUTE_RENORMALIZE), kOddRows);
  EXPECT_EQ((std::vector<int32_t>{routed.ids[2], routed.ids[3]}), (std::vector<int32_t>{2, 1}));
  EXPECT_NEAR(routed.weights[2], 0.73105858F, 1e-7F);
  EXPECT_NEAR(routed.weights[3], 0.26894142F, 1e-7F);
  EXPECT_EQ((std::vector<int32_t>{routed.ids[4], routed.ids[5]}), (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(routed.weights[4], 0.73105858F, 1e-7F);
  EXPECT_NEAR(routed.weights[5], 0.26894142F, 1e-7F);
  EXPECT_EQ(routed.ids[6], 0);
  EXPECT_EQ(routed.weights[6], 1.0F);
  EXPECT_EQ(routed.weights[7], 0.0F);
}

TEST(RouteC5, SigmoidThatUnderflowsGivesZeroWeights) {
  const float bias[4] = {1, 2, 3, 4};
  perch_route_config config = route_config(PERCH_ROUTE_SIGMOID, 4, 2, PERCH_ROUTE_RENORMALIZE);
  config.bias = bias;
  const Routed routed = route(config, {-200, -200, -200, -200});
  EXPECT_EQ(routed.ids, (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0, 0}));
}

TEST(RouteC7, ScaleOnce) {
  perch_route_config config = route_config(PERCH_ROUTE_SOFTMAX, 4, 1, PERCH_ROUTE_RENORMALIZE);
  config.scale = 2.5F;
  EXPECT_EQ(route(config, {0, 3, 0, 0}).weights, (std::vector<float>{2.5F}));
}

TEST(RouteC1, ZeroTokens) {
  const perch_route_config config = route_config(PERCH_ROUTE_SOFTMAX, 6, 2);
  const perch_host::Tensor logits(nullptr, {kDLFloat, 32, 1}, {0, 6});
  const perch_host::Tensor ids(nullptr, {kDLInt, 32, 1}, {0, 2});
  const perch_host::Tensor weights(nullptr, {kDLFloat, 32, 1}, {0, 2});
  EXPECT_EQ(perch_route(&config, logits.get(), ids.get(), weights.get(), nullptr), PERCH_OK);
}

struct BadConfig {
  const char* name;
  void (*spoil)(perch_route_config*);
  const char* message;
};

class BadRouteConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadRouteConfigTest, IsRefused) {
  perch_route_config config = route_config(PERCH_ROUTE_SIGMOID, 4, 2);
  GetParam().spoil(&config);
  EXPECT_TRUE(says(refusal([&] { route(config, {0, 0, 0, 0}); }), GetParam().message));
}

const BadConfig kBadConfigs[] = {
    {"size", [](auto* c) { c->struct_size = 8; }, "config.struct_size: got 8"},
    {"scoring", [](auto* c) { c->scoring = 0; }, "config.scoring: got 0"},
    {"flags", [](auto* c) { c->flags = 6; }, "config.flags: got 0x6"},
    {"topk", [](auto* c) { c->topk = 5; }, "config.topk: got 5; want 1 to 4"},
    {"groups", [](auto* c) { c->num_groups = 3; }, "num_groups: got 3; want a divisor of 4"},
    {"topk_in_groups",
     [](auto* c) {
       c->num_groups = 4;
       c->topk_groups = 1;
     },
     "config.topk: got 2; want 1 to 1"},
    {"scale", [](auto* c) { c->scale = kInf; }, "config.scale: got inf"},
    {"scoring_seven", [](auto* c) { c->scoring = 7; }, "config.scoring: got 7; want"},
    {"group_score", [](auto* c) { c->group_score = 2; }, "config.group_score: got 2; want"},
    {"sum_add", [](auto* c) { c->sum_add = -1.0F; }, "config.sum_add: got -1"},
    {"sum_min", [](auto* c) { c->sum_min = kNan; }, "config.sum_min: got nan"},
    {"jitter", [](auto* c) { c->jitter = kInf; }, "config.jitter: got inf"},
    {"sparsemixer_groups",
     [](auto* c) {
       c->scoring = PERCH_ROUTE_SPARSEMIXER;
       c->num_groups = c->topk_groups = 2;
     },
     "got SPARSEMIXER with groups or a bias"},
};
INSTANTIATE_TEST_SUITE_P(Configs, BadRouteConfigTest, ::testing::ValuesIn(kBadConfigs),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace perch::test
