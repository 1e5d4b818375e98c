// The two references against each other, and humming-cpu against the oracle: runtime/agree's f64
// evaluation and its bounds on random layers of every kind of recipe.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "agree/agreement.h"
#include "backend_harness.h"
#include "base/case_line.h"
#include "humming_cpu_rig.h"
#include "numbers.h"
#include "random_layer.h"

namespace perch::test {
namespace {

const char* const kCases[] = {
    // weights: every type, scale kind and extra
    "moe t5 e3 top2 h37 i22 w=f32 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h37 i22 w=f16 act=silu in=f16 o=f16",
    "moe t5 e3 top2 h64 i48 w=bf16 act=silu",
    "moe t5 e3 top2 h64 i48 w=bf16+bias act=silu in=bf16 o=f32",
    "moe t5 e3 top2 h37 i22 w=int1g8:bf16 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h37 i22 w=int2g8:f16+z act=silu",
    "moe t5 e3 top2 h37 i22 w=int3g5:f32+zf act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i64 w=int4g32:bf16 act=silu",
    "moe t5 e3 top2 h64 i64 w=int4g32:bf16+z act=silu",
    "moe t5 e3 top2 h64 i64 w=int4c:f16 act=silu",
    "moe t5 e3 top2 h64 i64 w=int4b32:f32 act=silu",
    "moe t5 e3 top2 h64 i48 w=int4g16:bf16+z+gidx act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=int4g16:f32+off act=silu",
    "moe t5 e3 top2 h37 i22 w=int5c:f32 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h37 i22 w=int6g7:e8m0 act=silu in=f32 o=f16",
    "moe t5 e3 top2 h37 i22 w=int7t:f32 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h37 i22 w=int8g16:f16+z0 act=silu in=f16 o=f16",
    "moe t5 e3 top2 h37 i22 w=lut4g16:f32 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=e4m3b16x32:f32 act=silu",
    "moe t5 e3 top2 h37 i22 w=e5m2c:f32 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h37 i22 w=e3m2g32:f32 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h37 i22 w=e2m3g32:e8m0 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i64 w=mxfp4+bias act=silu",
    "moe t5 e3 top2 h64 i64 w=nvfp4 act=silu",
    "moe t5 e3 top2 h64 i64 w=e2m1g16:e4m3+s2c act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=bf16+pre act=silu",
    "moe t5 e3 top2 h64 i48 w=f16+bias+pre act=silu in=f16 o=f16",
    // inputs: every mode
    "moe t5 e3 top2 h64 i48 w=int8c:f32 a=int8t act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=int8c:f32 a=int8t act=silu",
    "moe t5 e3 top2 h64 i48 w=int8c:f32 a=int8t:e8m0 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=int8c:f32 a=int8g16 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=int8c:f32 a=int8g7:e8m0 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=int8c:f32+pre a=int8s act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=e4m3c:f32 a=e4m3t act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=e4m3c:f32 a=e4m3t:e8m0 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=e4m3b16:f32+bias a=e4m3g16 act=silu",
    "moe t5 e3 top2 h64 i64 w=mxfp8 a=e4m3g32:e8m0 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=e4m3t:f32 a=e4m3s act=silu in=f16 o=f16",
    "moe t5 e3 top2 h64 i64 w=mxfp4+pre a=e2m1g32:e8m0 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i64 w=nvfp4 a=e2m1sg16 act=silu in=f32 o=f32",
    "moe t5 e3 top2 h64 i64 w=nvfp4 a=none a2=e2m1sg16 act=silu",
    "moe t5 e3 top2 h64 i64 w=int4g32:bf16 a=int8t a2=none act=silu",
    // activations
    "moe t5 e3 top2 h64 i48 w=bf16 act=silu:-:-:0.4",
    "moe t5 e3 top2 h64 i48 w=bf16 act=gelu",
    "moe t5 e3 top2 h64 i48 w=bf16 act=gelu_tanh in=bf16 o=f32",
    "moe t5 e3 top2 h64 i48 w=bf16+bias act=swigluoai:1.702:1:0.5",
    "moe t5 e3 top2 h64 i48 w=bf16 act=swiglustep:-:-:0.25",
    "moe t5 e3 top2 h64 i48 w=bf16 act=relu2",
    "moe t5 e3 top2 h64 i48 w=bf16 act=situ:-:0.7:-",
    "moe t5 e3 top2 h64 i48 w=bf16 act=situ:0.6:1.3:- in=f32 o=f32",
    "moe t5 e3 top2 h64 i48 w=bf16 act=silu_no_mul",
    "moe t5 e3 top2 h64 i48 w=bf16 act=gelu_no_mul",
    "moe t5 e3 top2 h64 i48 w=f16 act=gelu_tanh_no_mul in=f16 o=f16",
    "moe t5 e3 top2 h64 i48 w=bf16 act=relu2_no_mul",
    "moe t5 e3 top2 h64 i48 w=int8c:f32 a=int8t act=relu2_no_mul",
    // routing
    "moe t5 e3 top1 h64 i48 w=bf16 act=silu wx",
    "moe t5 e3 top1 h64 i48 w=f16+pre act=gelu wx in=f16 o=f16",
    "moe t5 e8 top6 h64 i48 w=bf16 act=silu",
    // larger sums
    "moe t8 e2 top2 h768 i384 w=bf16 act=silu",
    "moe t8 e2 top2 h768 i384 w=bf16 act=silu in=bf16 o=f32",
    "moe t8 e2 top2 h768 i384 w=f16 act=silu in=f16 o=f16",
    "moe t8 e2 top2 h768 i384 w=int4g128:bf16 act=silu",
    "moe t8 e2 top2 h768 i384 w=int4g128:f16+z act=silu in=bf16 o=f32",
    "moe t8 e2 top2 h768 i384 w=e4m3b128:f32 a=e4m3g128 act=silu",
    "moe t8 e2 top2 h768 i384 w=nvfp4 a=e2m1sg16 act=silu",
    // linear layers
    "linear t3 n19 k45 w=f32 in=f32 o=f32",
    "linear t3 n19 k45 w=f16+bias in=f16 o=f16",
    "linear t3 n64 k512 w=bf16+bias+pre",
    "linear t3 n64 k512 w=bf16 in=bf16 o=f32",
    "linear t3 n64 k512 w=int4g32:bf16+z",
    "linear t3 n64 k512 w=int4g128:f16 in=bf16 o=f32",
    "linear t3 n64 k512 w=int4c:f32 in=f32 o=f32",
    "linear t3 n64 k512 w=int8c:f32+bias a=int8t",
    "linear t3 n64 k512 w=e4m3b128:f32 a=e4m3g128 in=f32 o=f32",
    "linear t3 n64 k512 w=nvfp4 a=e2m1sg16 in=f32 o=f32",
    "linear t3 n64 k512 w=mxfp4 a=e2m1g32 in=f32 o=f32",
};

// The largest shares that were seen, by backend and output type: printed at the end of a run.
std::map<std::string, Agreement>& worst_seen() {
  static std::map<std::string, Agreement> worst;
  return worst;
}

class OracleAgrees : public testing::TestWithParam<const char*> {
 protected:
  static void TearDownTestSuite() {
    for (const auto& [who, worst] : worst_seen()) {
      std::printf("%s: worst ratio %.3f, row share %.3f\n", who.c_str(), worst.worst_ratio,
                  worst.worst_row_share);
    }
  }
};

// A problem that a backend and the oracle can both be given.
struct Problem {
  LayerConfig config;
  std::vector<TensorMap> experts;
  Call call;
  std::vector<OracleRow> rows;
};

Problem random_problem(const std::string& line) {
  const perch::Result<Case> parsed = parse_case(line);
  if (!parsed.ok()) throw std::runtime_error(parsed.status().message());
  Problem problem{parsed->config, {}, {}, {}};
  const LayerConfig& config = problem.config;
  const bool is_moe = config.is_moe();
  const uint32_t experts = is_moe ? config.moe().num_experts : 1;
  for (uint32_t e = 0; e < experts; ++e) problem.experts.push_back(random_tensors(config, 100 + e));
  std::mt19937 rng(7);
  const int64_t k = config.columns(0);
  problem.call.x = random_floats(config.abi().in_dtype, {parsed->t, k}, -2, 2, rng);
  const std::vector<float> x = to_floats(problem.call.x);
  const int64_t topk = is_moe ? config.moe().topk : 0;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int64_t t = 0; t < parsed->t; ++t) {
    OracleRow row{{x.begin() + t * k, x.begin() + (t + 1) * k}, {}};
    for (int64_t slot = 0; slot < topk; ++slot) {
      const bool none = rng() % 8 == 0;
      ids.push_back(none ? -1 : static_cast<int32_t>(rng() % experts));
      weights.push_back(std::uniform_real_distribution<float>(-1, 1)(rng));
      if (!none) row.visits.push_back({ids.back(), weights.back()});
    }
    problem.rows.push_back(std::move(row));
  }
  problem.call.ids = is_moe ? i32({parsed->t, topk}, ids) : Tensor{};
  problem.call.weights = is_moe ? f32({parsed->t, topk}, weights) : Tensor{};
  return problem;
}

Oracle evaluate(const Problem& problem) {
  const ReadTensors read = [&](int64_t expert, std::vector<NamedData>* tensors) {
    for (const auto& [name, tensor] : problem.experts[static_cast<size_t>(expert)]) {
      tensors->push_back({name, tensor.bytes.data()});
    }
    return Status();
  };
  perch::Result<Oracle> oracle = evaluate_rows(problem.config, read, problem.rows);
  EXPECT_TRUE(oracle.ok()) << oracle.status().message();
  return oracle.ok() ? *oracle : Oracle{};
}

std::vector<double> to_doubles(const Tensor& y) {
  const std::vector<float> values = to_floats(y);
  return {values.begin(), values.end()};
}

void check(const std::string& who, uint32_t support_flags, const Problem& problem,
           const Oracle& oracle, const Tensor& y) {
  const LayerConfig& config = problem.config;
  const std::vector<double> got = to_doubles(y);
  ASSERT_EQ(got.size(), oracle.value.size());
  const Agreement agreement = compare_rows(config, support_flags, oracle, got, oracle.value);
  EXPECT_TRUE(agreement.ok) << who << ": " << agreement.worst_ratio << " of what is allowed at ["
                            << agreement.row << "," << agreement.column << "]: got "
                            << agreement.got << ", want " << agreement.want << "; row share "
                            << agreement.worst_row_share;
  const ExactAgreement exact = compare_exact(config, oracle, got);
  EXPECT_TRUE(exact.ok) << who << ": [" << exact.row << "," << exact.column << "]: got "
                        << exact.got << ", want exactly " << exact.want;
  const bool quantized = config.act_first().mode != PERCH_ACT_NONE ||
                         (config.is_moe() && config.act_second().mode != PERCH_ACT_NONE);
  const bool rounds = (support_flags & PERCH_SUPPORT_ROUNDS_WEIGHTS) != 0;
  Agreement& worst =
      worst_seen()[who + (config.is_moe() ? ", moe" : ", linear") + ", out " +
                   type_name(config.abi().out_dtype) + (quantized ? ", quantized input" : "") +
                   (rounds ? ", rounds weights" : "")];
  worst.worst_ratio = std::max(worst.worst_ratio, agreement.worst_ratio);
  worst.worst_row_share = std::max(worst.worst_row_share, agreement.worst_row_share);
}

TEST_P(OracleAgrees, WithTheReference) {
  const Problem problem = random_problem(GetParam());
  const Oracle oracle = evaluate(problem);
  BackendHarness harness(PERCH_BUILD_DIR "/lib/perch/backends/libperch_reference.so");
  const Answer answer = harness.query(problem.config.abi());
  ASSERT_TRUE(answer.yes()) << answer.print();
  Layer layer(harness, problem.config);
  harness.prepare(problem.experts, &layer);
  ASSERT_TRUE(layer.ok()) << layer.message;
  const Result result = layer.run(problem.call);
  ASSERT_EQ(result.status, PERCH_OK) << result.message;
  check("reference", answer.support.flags, problem, oracle, result.y);
}

TEST_P(OracleAgrees, WithHummingCpu) {
  const Problem problem = random_problem(GetParam());
  const humming::ShuffledHost host(2);
  humming::Library library(&host.api);
  ASSERT_EQ(library.create({}), PERCH_OK);
  const Oracle oracle = evaluate(problem);
  const perch_layer_config& config = problem.config.abi();
  const uint32_t variants = library.api().variant_count(library.backend(), &config);
  for (uint32_t variant = 0; variant < variants; ++variant) {
    const Answer answer = library.query(problem.config, variant);
    if (!answer.yes()) continue;
    const humming::Prepared layer(library, problem.config, problem.experts, variant);
    Tensor y = empty_tensor(dl_float_dtype(config.out_dtype), {oracle.rows, oracle.columns});
    y.bytes = layer.run({problem.call.x, problem.call.ids, problem.call.weights, {}, {}, {}});
    check("humming-cpu", answer.support.flags, problem, oracle, y);
  }
}

std::string name_of(const testing::TestParamInfo<const char*>& row) {
  std::string name = row.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Cases, OracleAgrees, testing::ValuesIn(kCases), name_of);

}  // namespace
}  // namespace perch::test
