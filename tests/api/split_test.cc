// Tensor and expert parallelism: the outputs of all ranks sum to the output of the whole.
#include "checkpoint_rig.h"

namespace perch::test {
namespace {

struct Row {
  const char* backend;
  bool int4;
  const char* name;
};

class SplitTest : public ::testing::TestWithParam<Row> {
 protected:
  static constexpr MoeSizes kSizes{5, 2, 16, 24};

  Checkpoint model(bool integers) const {
    if (!GetParam().int4) {
      return store(Storage::kP, kSizes, random_weights(kSizes, 11, integers));
    }
    return packed_moe(kSizes, 4, 4, 5, [&](std::mt19937& rng) {
      return integers ? 1.0F : static_cast<float>(rng() % 64 + 1) / 256;
    });
  }

  // The rank's output in f32.
  std::vector<float> run_rank(const Checkpoint& checkpoint, const perch_model_opts& opts,
                              const Call& given) const {
    const perch_host::Model rank = checkpoint.open(shared_runtime(GetParam().backend), &opts);
    const perch_host::Layer layer = perch_host::make_layer(rank, 0);
    const LayerConfig config(*perch_model_layer_config(rank.get(), 0));
    Call call = given;
    if (const int32_t* map = perch_model_expert_map(rank.get(), 0)) {
      call.map = i32({5}, {map, map + 5});
    }
    return to_floats(run(layer.get(), config, call));
  }

  perch_model_opts options() const {
    perch_model_opts opts = model_opts();
    opts.in_dtype = opts.out_dtype = PERCH_TYPE_F32;
    return opts;
  }

  Call call(bool integers) const {
    LayerConfig config = moe_layer(kSizes, PERCH_ACTIVATION_SILU);
    Call made = random_call(config, 7, 2);
    if (!integers) return made;
    std::vector<float> x(7 * 16);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 5) - 2;
    made.x = f32({7, 16}, x);
    return made;
  }

  void expect_sum(const Checkpoint& checkpoint, const Call& made, uint32_t tp, uint32_t ep,
                  double tolerance) const {
    const std::vector<float> whole = run_rank(checkpoint, options(), made);
    std::vector<double> sum(whole.size(), 0.0);
    for (uint32_t t = 0; t < tp; ++t) {
      for (uint32_t e = 0; e < ep; ++e) {
        perch_model_opts opts = options();
        opts.tp_rank = t;
        opts.tp_size = tp;
        opts.ep_rank = e;
        opts.ep_size = ep;
        const std::vector<float> part = run_rank(checkpoint, opts, made);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{part[i]};
      }
    }
    double largest = 0;
    for (const float value : whole) largest = std::max(largest, std::fabs(double{value}));
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(sum[i], double{whole[i]}, tolerance * largest) << i;
    }
    EXPECT_GT(largest, 0.0);
  }
};

TEST_P(SplitTest, TensorParallelRanksSumToTheWhole) {
  const Checkpoint checkpoint = model(false);
  for (const uint32_t ranks : {2U, 3U, 5U}) {
    SCOPED_TRACE(ranks);
    expect_sum(checkpoint, call(false), ranks, 1, 1e-5);
  }
}

// 5 experts over 2, 3 and 5 ranks: uneven, and one each.
TEST_P(SplitTest, ExpertParallelRanksSumToTheWhole) {
  const Checkpoint checkpoint = model(false);
  for (const uint32_t ranks : {2U, 3U, 5U}) {
    SCOPED_TRACE(ranks);
    expect_sum(checkpoint, call(false), 1, ranks, 1e-5);
  }
}

TEST_P(SplitTest, BothAtOnce) { expect_sum(model(false), call(false), 2, 2, 1e-5); }

// relu2 of integers is an integer: with whole numbers below 2^24 nothing is rounded, and the sum is
// exact.
TEST_P(SplitTest, ExactForIntegers) {
  Checkpoint checkpoint = model(true);
  checkpoint.config["hidden_act"] = "relu2";
  Call made = call(true);
  made.weights = f32({7, 2}, std::vector<float>(14, 1.0F));
  if (GetParam().int4) {
    // Keep the numbers small: one input column.
    std::vector<float> x(7 * 16, 0.0F);
    for (size_t t = 0; t < 7; ++t) x[t * 16 + t] = 1;
    made.x = f32({7, 16}, x);
  } else {
    std::vector<float> x(7 * 16, 0.0F);
    for (size_t t = 0; t < 7; ++t) x[t * 16 + t] = x[t * 16 + t + 3] = 1;
    made.x = f32({7, 16}, x);
  }
  for (const uint32_t ranks : {2U, 3U}) {
    SCOPED_TRACE(ranks);
    expect_sum(checkpoint, made, ranks, 1, 0);
  }
}

TEST_P(SplitTest, RanksThatCannotBeAreRefused) {
  const Checkpoint checkpoint = model(false);
  const auto opened = [&](uint32_t tp_rank, uint32_t tp, uint32_t ep_rank, uint32_t ep) {
    perch_model_opts opts = options();
    opts.tp_rank = tp_rank;
    opts.tp_size = tp;
    opts.ep_rank = ep_rank;
    opts.ep_size = ep;
    return refusal([&] { checkpoint.open(shared_runtime(GetParam().backend), &opts); });
  };
  EXPECT_TRUE(says(opened(2, 2, 0, 1), "tp: got rank 2 of 2; want 0 <= rank < size"));
  EXPECT_TRUE(says(opened(0, 1, 3, 3), "ep: got rank 3 of 3; want 0 <= rank < size"));
  EXPECT_EQ(opened(0, 1, 5, 6), "");  // more ranks than experts: the last one holds none
  EXPECT_TRUE(says(opened(0, 25, 0, 1), "tp 25"));
}

const Row kRows[] = {{"reference", false, "reference_bf16"},
                     {"reference", true, "reference_int4"},
                     {"humming-cpu", false, "humming_cpu_bf16"},
                     {"humming-cpu", true, "humming_cpu_int4"}};
INSTANTIATE_TEST_SUITE_P(Backends, SplitTest, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

// A group is never cut: 24 columns in groups of 8 over 2 ranks are 16 and 8 (field report B3).
TEST(Split, GroupsStayWhole) {
  const MoeSizes sizes{1, 1, 8, 24};
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", sizes);
  checkpoint.config["quantization_config"] = packed_config(4, "group", 8);
  const std::string expert = "model.layers.0.mlp.experts.0.";
  store_packed(expert + "gate_proj", 4, 24, 8, std::vector<int>(192, 1), std::vector<float>(24, 1),
               &checkpoint);
  store_packed(expert + "up_proj", 4, 24, 8, std::vector<int>(192, 1), std::vector<float>(24, 1),
               &checkpoint);
  std::vector<float> scales;
  for (int n = 0; n < 8; ++n) scales.insert(scales.end(), {1, 10, 100});
  store_packed(expert + "down_proj", 4, 8, 24, std::vector<int>(192, 1), scales, &checkpoint);
  const std::vector<float> want[2] = {{1, 10}, {100}};
  for (uint32_t rank : {0U, 1U}) {
    perch_model_opts opts = model_opts();
    opts.tp_rank = rank;
    opts.tp_size = 2;
    const perch_host::Model model = checkpoint.open(shared_runtime("reference"), &opts);
    const std::vector<float> got = to_floats(canonical(model, 0)["w2.scale"]);
    EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + static_cast<int>(want[rank].size())),
              want[rank]);
    EXPECT_EQ(perch_model_layer_config(model.get(), 0)->moe->intermediate, rank == 0 ? 16 : 8);
  }
}

// Field report B3: a linear layer with K 12 in groups of 4 over 2 ranks is 8 and 4, and the sum is
// exact.
TEST(Split, LinearGroupsStayWholeAndSumExactly) {
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", {1, 1, 12, 4});
  checkpoint.config["quantization_config"] = packed_config(4, "group", 4);
  store_packed("model.layers.0.self_attn.o_proj", 4, 1, 12, std::vector<int>(12, 1), {1, 10, 100},
               &checkpoint);
  float sum = 0;
  for (const uint32_t rank : {0U, 1U}) {
    perch_model_opts opts = model_opts();
    opts.tp_rank = rank;
    opts.tp_size = 2;
    const perch_host::Model model = checkpoint.open(shared_runtime("reference"), &opts);
    const LayerConfig config(*perch_model_layer_config(model.get(), 0));
    const int64_t k = rank == 0 ? 8 : 4;
    ASSERT_EQ(config.linear().in_features, k);
    const perch_host::Layer layer = perch_host::make_layer(model, 0);
    Call call;
    call.x = f32({1, k}, std::vector<float>(static_cast<size_t>(k), 1.0F));
    sum += to_floats(run(layer.get(), config, call))[0];
  }
  EXPECT_EQ(sum, 444.0F);
  perch_model_opts opts = model_opts();
  opts.tp_size = 4;
  const std::string text = refusal([&] { checkpoint.open(shared_runtime("reference"), &opts); });
  for (const char* part : {"12", "groups of 4", "tp 4", "tp 3 or less works"}) {
    EXPECT_TRUE(says(text, part));
  }
}

// Field report H6: rank 1 of 2 starts at row 3 of 6, not at a padded 4.
TEST(Split, StartsAtLogicalRows) {
  const MoeSizes sizes{1, 1, 1, 6};
  const Checkpoint checkpoint =
      store(Storage::kP, sizes, {{{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}, {1, 1, 1, 1, 1, 1}}});
  perch_model_opts opts = model_opts();
  opts.tp_rank = 1;
  opts.tp_size = 2;
  const perch_host::Model model = checkpoint.open(shared_runtime("reference"), &opts);
  EXPECT_EQ(to_floats(canonical(model, 0)["w13"]), (std::vector<float>{4, 5, 6, 10, 11, 12}));
}

}  // namespace
}  // namespace perch::test
