// Field reports on MoE arithmetic (A1, A3, C1, C3, C7) with the right values of the reports, on
// every backend, through the host API.
#include <cmath>
#include <cstring>
#include <limits>

#include "api_rig.h"

namespace perch::test {
namespace {

struct Row {
  const char* backend;
  uint32_t weight;
  const char* name;
};

class MoeReportTest : public ::testing::TestWithParam<Row> {
 protected:
  perch_runtime* runtime() const { return shared_runtime(GetParam().backend); }
  uint32_t weight() const { return GetParam().weight; }
  // Output in f32 where the backend offers it for these weights.
  LayerConfig layer(const MoeSizes& sizes, uint32_t activation) const {
    return moe_layer(sizes, activation, weight(), PERCH_TYPE_F32);
  }
  std::vector<float> run_one(const LayerConfig& config, const std::vector<TensorMap>& experts,
                             const Call& call) const {
    const perch_host::Layer built = build_layer(runtime(), config, experts);
    return to_floats(run(built.get(), config, call));
  }
};

TEST_P(MoeReportTest, A1NonGatedValues) {
  const LayerConfig config = layer({1, 1, 4, 3}, PERCH_ACTIVATION_RELU2_NO_MUL);
  const TensorMap weights = moe_weights(config, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0},
                                        {1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1});
  const Call call = moe_call(config, {1, 2, -1, 0.5F}, {0}, {1});
  EXPECT_EQ(run_one(config, {weights}, call), (std::vector<float>{5, 1, 4, 0}));
}

TEST_P(MoeReportTest, A1OddRowsUnderAGatedActivationAreRefused) {
  const LayerConfig config = layer({1, 1, 4, 3}, PERCH_ACTIVATION_SILU);
  TensorMap weights = random_tensors(config, 1);
  weights["w13"] = floats(weight(), {3, 4}, std::vector<float>(12, 1.0F));
  const std::string text = refusal([&] { build_layer(runtime(), config, {weights}); });
  EXPECT_TRUE(says(text, "PERCH_E_INVALID_ARGUMENT"));
  EXPECT_TRUE(says(text, "weights[\"w13\"]: shape: got [3, 4]; want [6, 4]"));
  EXPECT_TRUE(says(text, "activation silu, gated: 6 rows = 2 x intermediate 3"));
}

TEST_P(MoeReportTest, A3IntermediateThatIsNoTileMultiple) {
  const LayerConfig config = layer({1, 1, 1, 10}, PERCH_ACTIVATION_SILU);
  std::vector<float> w13(20, 1.0F);
  std::fill(w13.begin() + 10, w13.end(), 2.0F);
  const TensorMap weights = moe_weights(config, w13, std::vector<float>(10, 1.0F));
  const std::vector<float> y = run_one(config, {weights}, moe_call(config, {1}, {0}, {1}));
  EXPECT_NEAR(y[0], 14.62117157F, 2e-5F);
}

// w13 rows as gate, up; the wrong readings of the report must not appear.
TEST_P(MoeReportTest, A5GateRowsThenUpRows) {
  const LayerConfig config = layer({1, 1, 1, 2}, PERCH_ACTIVATION_SILU);
  const TensorMap weights = moe_weights(config, {1, 2, 3, 5}, {1, 10});
  const std::vector<float> y = run_one(config, {weights}, moe_call(config, {1}, {0}, {1}));
  EXPECT_NEAR(y[0], 90.27288353F, 1e-4F);
}

TEST_P(MoeReportTest, C1ZeroTokens) {
  const LayerConfig config = sq_layer(4, 2, PERCH_TYPE_F32);
  LayerConfig typed = config;
  typed.first().weight = typed.second().weight = weight();
  const perch_host::Layer built = build_layer(runtime(), typed, sq_experts(typed));
  const perch_host::Tensor x(nullptr, {kDLFloat, 32, 1}, {0, 1});
  const perch_host::Tensor y(nullptr, {kDLFloat, 32, 1}, {0, 1});
  const perch_host::Tensor ids(nullptr, {kDLInt, 32, 1}, {0, 2});
  const perch_host::Tensor weights(nullptr, {kDLFloat, 32, 1}, {0, 2});
  perch_exec_args args{};
  args.struct_size = sizeof(args);
  args.x = x.get();
  args.y = y.get();
  args.topk_ids = ids.get();
  args.topk_weights = weights.get();
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(perch_layer_execute(built.get(), &args, &error), PERCH_OK) << error.message;

  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = PERCH_FORM_STANDARD;
  perch_workspace_req request{};
  request.struct_size = sizeof(request);
  EXPECT_EQ(perch_layer_workspace(built.get(), &shape, &request, &error), PERCH_OK);

  // The next call works.
  const Call call = moe_call(typed, {1}, {2, 2}, {0.25F, 0.75F});
  EXPECT_EQ(to_floats(run(built.get(), typed, call)), (std::vector<float>{9}));
}

TEST_P(MoeReportTest, C1NullDataWithTokensIsRefused) {
  LayerConfig config = sq_layer(4, 2, PERCH_TYPE_F32);
  config.first().weight = config.second().weight = weight();
  const perch_host::Layer built = build_layer(runtime(), config, sq_experts(config));
  const Call call = moe_call(config, {1}, {0, 1}, {1, 1});
  for (const char* argument : {"x", "y", "topk_ids", "topk_weights"}) {
    Exec exec(built.get(), config, call);
    const std::string name = argument;
    const DLTensor** slot = name == "x"          ? &exec.args.x
                            : name == "y"        ? &exec.args.y
                            : name == "topk_ids" ? &exec.args.topk_ids
                                                 : &exec.args.topk_weights;
    DLTensor null = **slot;
    null.data = nullptr;
    *slot = &null;
    EXPECT_TRUE(says(refusal([&] { exec.run(); }),
                     "perch_layer_execute: " + name + ": data: got NULL; want the tensor's"));
  }
}

struct IdCase {
  const char* name;
  std::vector<int64_t> ids;
  std::vector<float> weights;
  float want;  // NaN: refused
};

TEST_P(MoeReportTest, C3OddIds) {
  LayerConfig config = sq_layer(4, 2, PERCH_TYPE_F32);
  config.first().weight = config.second().weight = weight();
  const perch_host::Layer built = build_layer(runtime(), config, sq_experts(config));
  const float refused = std::numeric_limits<float>::quiet_NaN();
  const IdCase cases[] = {
      {"duplicates count twice", {2, 2}, {0.25F, 0.75F}, 9.0F},
      {"-1 is skipped without renormalising", {0, -1}, {0.5F, 0.5F}, 0.5F},
      {"none at all is +0", {-1, -1}, {0.5F, 0.5F}, 0.0F},
      {"any negative id is skipped", {0, -7}, {1.0F, 0.5F}, 1.0F},
      {"E is out of range", {0, 4}, {1, 1}, refused},
      {"INT32_MAX", {0, 2147483647}, {1, 1}, refused},
  };
  for (const IdCase& row : cases) {
    for (const bool wide : {false, true}) {
      // Few and many rows: kernels differ by their number.
      for (const int64_t rows : {1, 40}) {
        SCOPED_TRACE(std::string(row.name) + (wide ? " int64 " : " int32 ") + std::to_string(rows));
        Call call = moe_call(config, std::vector<float>(static_cast<size_t>(rows), 1.0F),
                             std::vector<int32_t>(static_cast<size_t>(2 * rows), 0),
                             std::vector<float>(static_cast<size_t>(2 * rows), 1.0F));
        std::vector<int64_t> ids(static_cast<size_t>(2 * rows), 0);
        std::vector<float> weights(ids.size(), 1.0F);
        std::copy(row.ids.begin(), row.ids.end(), ids.end() - 2);
        std::copy(row.weights.begin(), row.weights.end(), weights.end() - 2);
        if (wide) {
          call.ids = i64({rows, 2}, ids);
        } else {
          call.ids = i32({rows, 2}, std::vector<int32_t>(ids.begin(), ids.end()));
        }
        call.weights = f32({rows, 2}, weights);
        Exec exec(built.get(), config, call);
        if (std::isnan(row.want)) {
          EXPECT_TRUE(says(refusal([&] { exec.run(); }), "want less than 4"));
          for (const uint8_t byte : exec.y.bytes) ASSERT_EQ(byte, 0xFF) << "y was written";
          continue;
        }
        exec.run();
        const float got = to_floats(exec.y).back();
        EXPECT_EQ(got, row.want);
        EXPECT_FALSE(std::signbit(got));
      }
    }
  }
}

TEST_P(MoeReportTest, C3Int64BeyondInt32IsRefusedNotCut) {
  LayerConfig config = sq_layer(4, 2, PERCH_TYPE_F32);
  config.first().weight = config.second().weight = weight();
  const perch_host::Layer built = build_layer(runtime(), config, sq_experts(config));
  Call call = moe_call(config, {1}, {0, 0}, {1, 1});
  call.ids = i64({1, 2}, {0, int64_t{1} << 32});
  EXPECT_TRUE(says(refusal([&] { run(built.get(), config, call); }),
                   "topk_ids[1]: value: got 4294967296; want less than 4"));
}

TEST_P(MoeReportTest, C3ExpertMapSendsElsewhere) {
  LayerConfig config = sq_layer(2, 2, PERCH_TYPE_F32);
  config.first().weight = config.second().weight = weight();
  config.moe().num_experts_global = 4;
  const perch_host::Layer built = build_layer(runtime(), config, sq_experts(config));
  Call call = moe_call(config, {1}, {3, 0}, {1, 1});
  EXPECT_TRUE(says(refusal([&] { run(built.get(), config, call); }), "expert_map: got NULL"));
  call.map = i32({4}, {-1, 0, -1, 1});  // global 3 is local 1: (2 x)^2; global 0 is elsewhere
  EXPECT_EQ(to_floats(run(built.get(), config, call)), (std::vector<float>{4}));
  call.map = i32({4}, {-1, 0, -1, 2});
  EXPECT_TRUE(says(refusal([&] { run(built.get(), config, call); }),
                   "expert_map[3]: value: got 2; want -1 to 1"));
  call.map = i32({3}, {-1, 0, -1});
  EXPECT_TRUE(says(refusal([&] { run(built.get(), config, call); }),
                   "expert_map: shape: got [3]; want [4]"));
}

TEST_P(MoeReportTest, C7WeightOnInputOrOnOutputButOnce) {
  for (const bool on_input : {true, false}) {
    LayerConfig config = layer({1, 1, 1, 1}, PERCH_ACTIVATION_SILU);
    if (on_input) config.moe().flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
    const TensorMap weights = moe_weights(config, {1, 1}, {1});
    const std::vector<float> y = run_one(config, {weights}, moe_call(config, {2}, {0}, {0.5F}));
    EXPECT_NEAR(y[0], on_input ? 0.73105858F : 2 * 0.88079708F, 2e-6F) << on_input;
  }
}

TEST_P(MoeReportTest, C7WeightOnInputWithTopk2IsRefusedAtCreate) {
  LayerConfig config = layer({2, 2, 1, 1}, PERCH_ACTIVATION_SILU);
  config.moe().flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
  EXPECT_TRUE(says(refusal([&] { build_layer(runtime(), config, {}); }), "ROUTER_WEIGHT_ON_INPUT"));
}

const Row kRows[] = {
    {"reference", PERCH_TYPE_F32, "reference_f32"},
    {"reference", PERCH_TYPE_BF16, "reference_bf16"},
    {"humming-cpu", PERCH_TYPE_BF16, "humming_cpu_bf16"},
};
INSTANTIATE_TEST_SUITE_P(Backends, MoeReportTest, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace perch::test
