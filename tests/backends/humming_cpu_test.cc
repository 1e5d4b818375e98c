// humming-cpu against the naive computation, at every ISA level and in both variants.
#include "humming_cpu_problems.h"

namespace perch::test::humming {
namespace {

// One row of y with its bound, out_dtype's rounding included.
Bounded naive_row(const LayerConfig& config, const NaiveLayer& layer, const Input& input,
                  const std::vector<float>& inputs, int64_t row) {
  const auto width = static_cast<size_t>(config.columns(0));
  std::vector<double> x(inputs.begin() + row * config.columns(0),
                        inputs.begin() + (row + 1) * config.columns(0));
  if (!config.is_moe()) return layer.expert(0, x);
  const auto topk = static_cast<size_t>(config.moe().topk);
  const bool on_input = (config.moe().flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) != 0;
  Bounded y;
  y.value.assign(static_cast<size_t>(config.moe().hidden), 0);
  y.error.assign(y.value.size(), 0);
  for (size_t slot = 0; slot < topk; ++slot) {
    const size_t pair = static_cast<size_t>(row) * topk + slot;
    const int32_t id = input.ids.as<int32_t>()[pair];
    if (id < 0) continue;
    double weight = static_cast<double>(input.weights.as<float>()[pair]);
    if (on_input) {
      for (size_t k = 0; k < width; ++k) {
        x[k] = round_to_format(config.abi().in_dtype,
                               static_cast<double>(static_cast<float>(x[k] * weight)));
      }
      weight = 1;
    }
    const Bounded ye = layer.expert(static_cast<size_t>(id), x);
    for (size_t i = 0; i < y.value.size(); ++i) {
      y.value[i] += weight * ye.value[i];
      y.error[i] += std::fabs(weight) * (ye.error[i] + 4 * 0x1p-24 * std::fabs(ye.value[i]));
    }
  }
  return y;
}

void expect_near(const Problem& problem, const Input& input, const std::vector<uint8_t>& bytes,
                 const std::string& what) {
  const NaiveLayer layer(problem.config, problem.experts);
  const uint32_t out = problem.config.abi().out_dtype;
  Tensor y = empty_tensor(dl_float_dtype(out),
                          {static_cast<int64_t>(bytes.size()) * 8 / dl_float_dtype(out).bits});
  y.bytes = bytes;
  const std::vector<float> got = to_floats(y);
  const std::vector<float> inputs = to_floats(input.x);
  const double unit = out == PERCH_TYPE_F32 ? 0x1p-24 : out == PERCH_TYPE_F16 ? 0x1p-11 : 0x1p-8;
  size_t at = 0;
  for (int64_t row = 0; row < input.x.shape[0]; ++row) {
    const Bounded want = naive_row(problem.config, layer, input, inputs, row);
    for (size_t i = 0; i < want.value.size(); ++i, ++at) {
      const double bound = want.error[i] + 1.01 * unit * std::fabs(want.value[i]) + 1e-30;
      const double difference = std::fabs(static_cast<double>(got[at]) - want.value[i]);
      if (!(difference <= bound)) {
        ADD_FAILURE() << what << " row " << row << " column " << i << ": got " << got[at]
                      << " want " << want.value[i] << " +- " << bound;
        return;
      }
    }
  }
}

// Every level and variant.
void check(const Problem& problem, const std::vector<int64_t>& token_counts) {
  for (const std::string& isa : isa_levels()) {
    const ShuffledHost host(2);
    Library library(&host.api);
    ASSERT_EQ(library.create({{"isa", isa.c_str()}}), PERCH_OK);
    for (uint32_t variant = 0; variant < 2; ++variant) {
      const Answer answer = library.query(problem.config, variant);
      ASSERT_TRUE(answer.yes()) << answer.print();
      const Prepared prepared(library, problem.config, problem.experts, variant);
      for (const int64_t tokens : token_counts) {
        Input input = random_input(problem.config, tokens, static_cast<uint32_t>(tokens) + 7);
        input.x_padding = tokens % 2 * 3;
        input.y_padding = tokens % 3;
        const std::string what = std::string(answer.support.kernel) +
                                 " T=" + std::to_string(tokens) +
                                 " K=" + std::to_string(problem.config.columns(0));
        expect_near(problem, input, prepared.run(input), what);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

const std::vector<int64_t> kTokens = {0, 1, 2, 3, 5, 17};

TEST(HummingCpuLinear, Bf16Shapes) {
  uint32_t seed = 1;
  for (const int64_t n : {1, 15, 16, 17, 31, 32, 33, 97, 128, 129}) {
    for (const int64_t k : {1, 2, 3, 5, 63, 64, 65, 131}) {
      check(linear_problem(n, k, bf16_weight(seed % 2 == 0), seed), {1, 3, 6});
      if (HasFailure()) return;
      ++seed;
    }
  }
}

TEST(HummingCpuLinear, Int4Shapes) {
  uint32_t seed = 1;
  for (const int64_t n : {1, 17, 32, 33, 131}) {
    for (const int64_t k : {1, 3, 4, 31, 32, 33, 64, 129, 200}) {
      const uint32_t dtype = seed % 3 == 0   ? PERCH_TYPE_F32
                             : seed % 3 == 1 ? PERCH_TYPE_BF16
                                             : PERCH_TYPE_F16;
      const uint32_t group = std::vector<uint32_t>{32, 16, 0, 128, 64, 4}[seed % 6];
      check(linear_problem(n, k, int4_weight(group, dtype, seed % 2 == 0, seed % 5 == 0), seed),
            {1, 2, 5});
      if (HasFailure()) return;
      ++seed;
    }
  }
}

TEST(HummingCpuLinear, LongKAndGroups) {
  for (const uint32_t group : {256u, 512u, 384u}) {
    check(linear_problem(40, 1500, int4_weight(group, PERCH_TYPE_BF16, true, true), group), {1, 5});
  }
  check(linear_problem(40, 2049, bf16_weight(true), 3), {1, 5});
}

TEST(HummingCpuLinear, Int4BlockAndTensorScales) {
  perch_quant quant = int4_weight(32, PERCH_TYPE_F32, false, false);
  quant.scale_kind = PERCH_SCALE_BLOCK;
  quant.group_n = 24;
  check(linear_problem(50, 70, quant, 1), {1, 6});
  quant = int4_weight(0, PERCH_TYPE_F16, false, false);
  quant.scale_kind = PERCH_SCALE_TENSOR;
  check(linear_problem(50, 70, quant, 2), {1, 6});
}

TEST(HummingCpuLinear, ManyRowsCrossChunksAndTasks) {
  check(linear_problem(33, 20, bf16_weight(true), 4), {64, 65, 1024, 1025, 1028});
}

TEST(HummingCpuMoe, Bf16Shapes) {
  uint32_t seed = 1;
  for (const MoeSize size : std::vector<MoeSize>{{1, 1, 1, 1},
                                                 {2, 1, 15, 7},
                                                 {3, 2, 16, 16},
                                                 {8, 3, 17, 17},
                                                 {4, 2, 32, 31},
                                                 {5, 3, 33, 33},
                                                 {2, 2, 131, 67},
                                                 {6, 3, 64, 130}}) {
    for (const uint32_t activation : {PERCH_ACTIVATION_SILU, PERCH_ACTIVATION_RELU2_NO_MUL}) {
      Problem problem = moe_problem(size, activation, bf16_weight(seed % 2 == 0),
                                    bf16_weight(seed % 3 == 0), seed);
      problem.config.layer().out_dtype = seed % 4 == 0 ? PERCH_TYPE_BF16 : PERCH_TYPE_F32;
      check(problem, kTokens);
      if (HasFailure()) return;
      ++seed;
    }
  }
}

TEST(HummingCpuMoe, Int4Shapes) {
  uint32_t seed = 1;
  for (const MoeSize size : std::vector<MoeSize>{
           {1, 1, 1, 1}, {2, 1, 48, 40}, {8, 3, 64, 33}, {3, 2, 67, 96}, {4, 2, 256, 129}}) {
    for (const uint32_t activation : {PERCH_ACTIVATION_SWIGLUOAI, PERCH_ACTIVATION_SILU}) {
      const bool zero = seed % 3 == 0;
      const perch_quant quant = int4_weight(seed % 2 == 0 ? 32 : 16, PERCH_TYPE_BF16, zero, false);
      Problem problem = moe_problem(size, activation, quant, quant, seed);
      problem.config.layer().out_dtype = PERCH_TYPE_F32;
      check(problem, kTokens);
      if (HasFailure()) return;
      ++seed;
    }
  }
}

TEST(HummingCpuMoe, EveryActivation) {
  for (uint32_t activation = PERCH_ACTIVATION_SILU; activation <= PERCH_ACTIVATION_RELU2_NO_MUL;
       ++activation) {
    for (const uint32_t seed : {activation, activation + 1}) {
      Problem problem = moe_problem({3, 2, 40, 21}, activation, bf16_weight(true),
                                    int4_weight(4, PERCH_TYPE_F16, true, true), seed);
      problem.config.layer().out_dtype = PERCH_TYPE_F32;
      check(problem, {1, 6});
      if (HasFailure()) FAIL() << "activation " << activation;
    }
  }
}

TEST(HummingCpuMoe, SiluWithLimit) {
  Problem problem =
      moe_problem({3, 2, 40, 21}, PERCH_ACTIVATION_SILU, bf16_weight(false), bf16_weight(false), 5);
  problem.config.moe().flags = PERCH_MOE_HAS_LIMIT;
  problem.config.moe().act_limit = 0.4f;
  problem.config.layer().out_dtype = PERCH_TYPE_F32;
  check(problem, {1, 6});
}

TEST(HummingCpuMoe, EveryInputAndOutputType) {
  for (const uint32_t in : {PERCH_TYPE_F32, PERCH_TYPE_F16, PERCH_TYPE_BF16}) {
    for (const uint32_t out : {PERCH_TYPE_F32, PERCH_TYPE_F16, PERCH_TYPE_BF16}) {
      Problem problem = moe_problem({3, 2, 40, 21}, PERCH_ACTIVATION_SILU, bf16_weight(false),
                                    bf16_weight(false), 5);
      problem.config.layer().in_dtype = in;
      problem.config.layer().out_dtype = out;
      check(problem, {1, 6});
    }
  }
}

TEST(HummingCpuMoe, RouterWeightOnInput) {
  for (const uint32_t in : {PERCH_TYPE_F32, PERCH_TYPE_F16, PERCH_TYPE_BF16}) {
    Problem problem = moe_problem({3, 1, 40, 21}, PERCH_ACTIVATION_SILU, bf16_weight(false),
                                  bf16_weight(false), 6);
    problem.config.moe().flags = PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
    problem.config.layer().in_dtype = in;
    problem.config.layer().out_dtype = PERCH_TYPE_F32;
    check(problem, {1, 6});
  }
}

// The unweighted rows of the forms that come sorted must be what STANDARD gives with weight 1.
TEST(HummingCpuMoe, BatchedAndGroupedGiveTheRowsOfStandard) {
  const perch_quant quant = int4_weight(16, PERCH_TYPE_BF16, false, true);
  const Problem problem = moe_problem({3, 1, 40, 21}, PERCH_ACTIVATION_SILU, quant, quant, 8);
  const int64_t rows = 7;
  const size_t row_bytes = 40 * 2;
  for (const uint32_t variant : {0u, 1u}) {
    const ShuffledHost host(2);
    Library library(&host.api);
    ASSERT_EQ(library.create({}), PERCH_OK);
    const std::vector<int32_t> counts = {5, 0, 7};
    Input batched = random_input(problem.config, 3 * rows, 1);
    Input standard = batched;
    std::vector<int32_t> ids;
    for (int32_t e = 0; e < 3; ++e) {
      for (int32_t i = 0; i < rows; ++i) ids.push_back(i < counts[size_t(e)] ? e : -1);
    }
    standard.ids = i32({3 * rows, 1}, ids);
    standard.weights = f32({3 * rows, 1}, std::vector<float>(21, 1.0f));
    const std::vector<uint8_t> want =
        Prepared(library, problem.config, problem.experts, variant).run(standard);

    LayerConfig config = problem.config;
    config.moe().form = PERCH_FORM_BATCHED;
    batched.ids = batched.weights = {};
    batched.counts = i32({3}, counts);
    batched.x = make_tensor(batched.x.dtype, {3, rows, 40}, batched.x.bytes);
    batched.x_padding = 2;
    std::vector<uint8_t> got = Prepared(library, config, problem.experts, variant).run(batched);
    for (size_t row = 0; row < 21; ++row) {
      const std::vector<uint8_t> bytes(&got[row * row_bytes], &got[row * row_bytes] + row_bytes);
      const std::vector<uint8_t> same(&want[row * row_bytes], &want[row * row_bytes] + row_bytes);
      EXPECT_EQ(bytes, ids[row] < 0 ? std::vector<uint8_t>(row_bytes, 0xFF) : same) << row;
    }
    config.moe().form = PERCH_FORM_GROUPED;
    Input grouped = random_input(problem.config, 3 * rows, 1);
    grouped.ids = grouped.weights = {};
    grouped.offsets = i64({4}, {0, 5, 14, 21});
    standard.ids = i32({21, 1}, {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2});
    EXPECT_EQ(Prepared(library, config, problem.experts, variant).run(grouped),
              Prepared(library, problem.config, problem.experts, variant).run(standard));
  }
}

}  // namespace
}  // namespace perch::test::humming
