// What each model type calls things, config keys and tensors, and what its routing is read as; the
// types and layers whose routing is not offered, with the reason.
#include "model_variants.h"

namespace perch::test {
namespace {

class VariantTest : public ::testing::TestWithParam<Variant> {};

TEST_P(VariantTest, LoadsAndRoutes) {
  const Variant& row = GetParam();
  const Checkpoint checkpoint = build(row);
  const perch_host::Model model = checkpoint.open(shared_runtime("reference"));
  const json document = inspect(model);
  ASSERT_EQ(document["layers"].size(), 1U) << document;
  EXPECT_EQ(document["warnings"], json::array());
  const json& layer = document["layers"][0];
  EXPECT_EQ(layer["name"], row.module());
  EXPECT_EQ(layer["sizes"]["experts"], kExperts);
  EXPECT_EQ(layer["sizes"]["topk"], 2);
  EXPECT_EQ(layer["sizes"]["intermediate"], kWidth);
  const perch_route_config* route = perch_model_route_config(model.get(), 0);
  ASSERT_NE(route, nullptr) << layer["routing"];
  EXPECT_EQ(route->scoring, row.scoring);
  EXPECT_EQ(route->flags, row.renormalize ? PERCH_ROUTE_RENORMALIZE : 0U);
  EXPECT_EQ(route->scale, row.scale);
  EXPECT_EQ(route->bias != nullptr, row.biased);
  EXPECT_EQ(route->topk, 2U);
}

INSTANTIATE_TEST_SUITE_P(Types, VariantTest, ::testing::ValuesIn(variants()),
                         [](const auto& row) { return std::string(row.param.name); });

perch_route_config route_of(const Checkpoint& checkpoint) {
  const perch_host::Model model = checkpoint.open(shared_runtime("reference"));
  return *perch_model_route_config(model.get(), 0);
}

TEST(ModelTypes, NumbersOfTheFormulas) {
  EXPECT_EQ(route_of(build("ernie4_5_moe")).sum_min, 1e-6F);
  EXPECT_EQ(route_of(build("phimoe")).jitter, 0.01F);
  EXPECT_EQ(route_of(build("lfm2_moe")).sum_add, 1e-6F);
  EXPECT_EQ(route_of(build("deepseek_v3")).sum_add, 1e-20F);
  EXPECT_NE(route_of(build("gemma4")).expert_scale, nullptr);
}

TEST(ModelTypes, GroupsOfDeepseekV2AreJudgedByTheirMaximum) {
  EXPECT_LE(route_of(build("deepseek_v2_greedy")).num_groups, 1U);
  const perch_route_config route =
      route_of(build("deepseek_v2_greedy", {{"topk_method", "group_limited_greedy"}}));
  EXPECT_EQ(route.num_groups, 2U);
  EXPECT_EQ(route.topk_groups, 1U);
  EXPECT_EQ(route.group_score, PERCH_ROUTE_GROUP_MAX);
}

TEST(ModelTypes, GroupsOfKimiLinear) {
  const perch_route_config route =
      route_of(build("kimi_linear", {{"num_expert_group", 2}, {"topk_group", 1}}));
  EXPECT_EQ(route.num_groups, 2U);
  EXPECT_EQ(route.group_score, PERCH_ROUTE_GROUP_TOP2);
}

// gate.bias is a selection bias there, and no part of the logits.
TEST(ModelTypes, DeepseekV4sBiasIsNotOneOfItsLogits) {
  const Checkpoint checkpoint = build("deepseek_v4");
  const perch_host::Model model = checkpoint.open(shared_runtime("reference"));
  const Tensor x = f32({1, kHidden}, std::vector<float>(kHidden, 0));
  const Tensor logits = empty_tensor({kDLFloat, 32, 1}, {1, kExperts});
  perch_host::check(perch_model_router_logits, model.get(), 0U, x.dl(), logits.dl());
  EXPECT_EQ(logits.as<float>(), (std::vector<float>(kExperts, 0)));
}

// ---- Not offered -------------------------------------------------------------------------------

struct Refusal {
  const char* name;
  const char* variant;
  json config;
  const char* tensor;  // added; "" for none
  const char* reason;
};

class NotOfferedTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(NotOfferedTest, TheLayerLoadsAndSaysWhy) {
  const Refusal& row = GetParam();
  Checkpoint checkpoint = build(row.variant, row.config);
  if (*row.tensor != '\0') checkpoint.tensors[row.tensor] = filled({16, 2});
  const perch_host::Model model = checkpoint.open(shared_runtime("reference"));
  EXPECT_EQ(perch_model_route_config(model.get(), 0), nullptr);
  EXPECT_TRUE(says(inspect(model)["layers"][0]["routing"], row.reason));
}

const Refusal kRefusals[] = {
    {"scoring",
     "deepseek_v3",
     {{"scoring_func", "softmax"}},
     "",
     "scoring_func: got \"softmax\"; want \"sigmoid\""},
    {"kimi_activation",
     "kimi_linear",
     {{"moe_router_activation_func", "softmax"}},
     "",
     "moe_router_activation_func: got \"softmax\""},
    {"topk_method",
     "deepseek_v2_greedy",
     {{"topk_method", "noaux_tc"}},
     "",
     "topk_method: got \"noaux_tc\"; want greedy or group_limited_greedy"},
    {"identities",
     "longcat_flash",
     {{"zero_expert_num", 2}},
     "",
     "2 experts after the stored ones are the identity"},
    {"sparsemixer", "phimoe", {{"num_experts_per_tok", 3}}, "", "sparsemixer chooses 2 experts"},
    {"token_table", "deepseek_v4", json::object(), "layers.3.ffn.gate.tid2eid",
     "chosen by token id, from the table \"layers.3.ffn.gate.tid2eid\""},
};
INSTANTIATE_TEST_SUITE_P(Routes, NotOfferedTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(RefusedTypes, SayWhy) {
  const auto open = [](const std::string& type) {
    Variant row = variant("mixtral");
    row.type = type.c_str();
    return refusal([&] { build(row).open(shared_runtime("reference")); });
  };
  EXPECT_TRUE(says(open("dbrx"), "PERCH_E_UNSUPPORTED: config.json: model_type: got \"dbrx\""));
  EXPECT_TRUE(says(open("dbrx"), "is to be read later"));
  for (const char* type : {"ernie4_5_vl_moe", "ernie4_5_moe_vl", "ernie4_5_vl_moe_text"}) {
    EXPECT_TRUE(says(open(type), "its text and its vision experts have different sizes"));
  }
}

}  // namespace
}  // namespace perch::test
