// What humming-cpu promises beyond numbers: bytes that do not depend on the batch, the neighbours,
// the threads; nothing read that must not be; update in place.
#include "humming_cpu_problems.h"

namespace perch::test::humming {
namespace {

constexpr uint32_t kOrdered = 0;
constexpr uint32_t kSplit = 1;

struct Rig {
  ShuffledHost host;
  Library library;
  explicit Rig(const std::string& isa, int32_t threads = 2, bool real = false)
      : host(threads, real), library(&host.api) {
    if (library.create({{"isa", isa.c_str()}}) != PERCH_OK) throw std::runtime_error(isa);
  }
};

std::vector<Problem> problems() {
  const perch_quant int4 = int4_weight(32, PERCH_TYPE_BF16, false, true);
  const perch_quant bf16 = bf16_weight(true);
  return {moe_problem({4, 2, 160, 72}, PERCH_ACTIVATION_SILU, int4, int4, 1),
          moe_problem({4, 2, 150, 70}, PERCH_ACTIVATION_SWIGLUOAI, bf16, bf16, 2),
          linear_problem(150, 160, int4, 3), linear_problem(33, 200, bf16, 4)};
}

size_t row_bytes(const Problem& problem) {
  return static_cast<size_t>(problem.config.rows(problem.config.is_moe() ? 1 : 0)) *
         dl_float_dtype(problem.config.abi().out_dtype).bits / 8;
}

Tensor take_rows(const Tensor& tensor, const std::vector<int64_t>& rows) {
  if (tensor.shape.empty()) return tensor;
  Tensor taken = empty_tensor(tensor.dtype, {static_cast<int64_t>(rows.size()), tensor.shape[1]});
  const size_t bytes = static_cast<size_t>(tensor.shape[1]) * tensor.dtype.bits / 8;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(&taken.bytes[i * bytes], &tensor.bytes[static_cast<size_t>(rows[i]) * bytes],
                bytes);
  }
  return taken;
}

Input pick(const Input& input, const std::vector<int64_t>& rows) {
  Input picked;
  picked.x = take_rows(input.x, rows);
  picked.ids = take_rows(input.ids, rows);
  picked.weights = take_rows(input.weights, rows);
  return picked;
}

std::vector<uint8_t> row_of(const std::vector<uint8_t>& y, size_t row, size_t bytes) {
  return {&y[row * bytes], &y[row * bytes] + bytes};
}

TEST(HummingCpuInvariance, RowDoesNotDependOnItsBatch) {
  for (const std::string& isa : isa_levels()) {
    for (const Problem& problem : problems()) {
      Rig rig(isa);
      const Prepared prepared(rig.library, problem.config, problem.experts, kOrdered);
      const Input all = random_input(problem.config, 257, 5);
      const size_t bytes = row_bytes(problem);
      const std::vector<uint8_t> want = prepared.run(pick(all, {11}));
      for (const int64_t batch : {1, 2, 3, 4, 7, 8, 16, 17, 65, 257}) {
        for (const int64_t place : {int64_t{0}, batch / 2, batch - 1}) {
          std::vector<int64_t> rows(static_cast<size_t>(batch));
          std::iota(rows.begin(), rows.end(), 0);
          if (batch > 11) std::swap(rows[11], rows[12 % static_cast<size_t>(batch)]);
          rows[static_cast<size_t>(place)] = 11;
          const std::vector<uint8_t> got = prepared.run(pick(all, rows));
          ASSERT_EQ(row_of(got, static_cast<size_t>(place), bytes), want)
              << isa << " batch " << batch << " place " << place;
        }
      }
    }
  }
}

// A call of more rows than one chunk holds, and all rows to one expert.
TEST(HummingCpuInvariance, RowDoesNotDependOnChunksOrExpertLoad) {
  const Problem problem =
      moe_problem({4, 2, 33, 17}, PERCH_ACTIVATION_SILU, bf16_weight(true), bf16_weight(false), 1);
  Rig rig("portable");
  const Prepared prepared(rig.library, problem.config, problem.experts, kOrdered);
  Input all = random_input(problem.config, 2050, 6);
  all.ids = i32({2050, 2}, std::vector<int32_t>(4100, 3));
  const std::vector<uint8_t> got = prepared.run(all);
  for (const int64_t row : {0, 1023, 1024, 2047, 2048, 2049}) {
    EXPECT_EQ(row_of(got, static_cast<size_t>(row), row_bytes(problem)),
              prepared.run(pick(all, {row})));
  }
}

TEST(HummingCpuInvariance, NeighboursWithNanDoNotMatter) {
  for (const std::string& isa : isa_levels()) {
    for (const Problem& problem : problems()) {
      for (const uint32_t variant : {kOrdered, kSplit}) {
        Rig rig(isa);
        const Prepared prepared(rig.library, problem.config, problem.experts, variant);
        for (const int64_t batch : {3, 9}) {
          Input input = random_input(problem.config, batch, 7);
          const std::vector<uint8_t> clean = prepared.run(input);
          const size_t x_row = input.x.bytes.size() / static_cast<size_t>(batch);
          for (size_t row = 0; row < static_cast<size_t>(batch); ++row) {
            if (row != 1) std::memset(&input.x.bytes[row * x_row], 0xFF, x_row);
          }
          const std::vector<uint8_t> got = prepared.run(input);
          const size_t bytes = row_bytes(problem);
          EXPECT_EQ(row_of(got, 1, bytes), row_of(clean, 1, bytes)) << isa;
          if (problem.config.is_moe()) continue;
          for (const float value :
               to_floats(make_tensor(dl_float_dtype(problem.config.abi().out_dtype),
                                     {problem.config.rows(0)}, row_of(got, 0, bytes)))) {
            EXPECT_TRUE(std::isnan(value));
          }
        }
      }
    }
  }
}

// A pad column of w13 is 0 * inf for an infinite x; it must not reach y where relu2 is finite.
TEST(HummingCpuInvariance, InfiniteInputMeetsNoPad) {
  Problem problem = moe_problem({1, 1, 1, 1}, PERCH_ACTIVATION_RELU2_NO_MUL, bf16_weight(false),
                                bf16_weight(false), 1);
  problem.config.layer().in_dtype = PERCH_TYPE_F32;
  problem.config.layer().out_dtype = PERCH_TYPE_F32;
  problem.experts[0]["w13"] = floats(PERCH_TYPE_BF16, {1, 1}, {-1.0f});
  problem.experts[0]["w2"] = floats(PERCH_TYPE_BF16, {1, 1}, {1.0f});
  for (const std::string& isa : isa_levels()) {
    Rig rig(isa);
    const Prepared prepared(rig.library, problem.config, problem.experts, kOrdered);
    Input input = random_input(problem.config, 1, 1);
    input.ids = i32({1, 1}, {0});
    input.x = f32({1, 1}, {INFINITY});
    EXPECT_EQ(prepared.run(input), std::vector<uint8_t>(4, 0)) << isa;
  }
}

TEST(HummingCpuInvariance, ThreadsAndTaskOrderDoNotMatter) {
  for (const std::string& isa : isa_levels()) {
    for (const Problem& problem : problems()) {
      for (const uint32_t variant : {kOrdered, kSplit}) {
        for (const int64_t tokens : {1, 4, 33}) {
          const Input input = random_input(problem.config, tokens, 8);
          Rig first(isa, 1);
          const std::vector<uint8_t> want =
              Prepared(first.library, problem.config, problem.experts, variant).run(input);
          for (const int32_t threads : {1, 2, 3, 5}) {
            for (const bool real : {false, true}) {
              Rig rig(isa, threads, real);
              rig.host.seed = static_cast<uint32_t>(threads) * 17;
              const Prepared prepared(rig.library, problem.config, problem.experts, variant);
              ASSERT_EQ(prepared.run(input), want) << isa << " threads " << threads;
            }
          }
        }
      }
    }
  }
}

TEST(HummingCpuInvariance, ConcurrentCallsAgree) {
  const Problem problem = problems()[0];
  Rig rig(isa_levels().back());
  for (const uint32_t variant : {kOrdered, kSplit}) {
    const Prepared prepared(rig.library, problem.config, problem.experts, variant);
    const Input input = random_input(problem.config, 3, 9);
    const std::vector<uint8_t> want = prepared.run(input);
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (int i = 0; i < 4; ++i) {
      // A copy each: the view that a Tensor lends is its own.
      callers.emplace_back([&, own = input] {
        for (int repeat = 0; repeat < 20; ++repeat) wrong += prepared.run(own) != want;
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong, 0);
  }
}

// The variant that promises less must be one that can really differ.
TEST(HummingCpuInvariance, SplitDependsOnTheNumberOfRows) {
  const Problem problem = problems()[0];
  Rig rig(isa_levels().back());
  const Prepared prepared(rig.library, problem.config, problem.experts, kSplit);
  const Input all = random_input(problem.config, 64, 10);
  const std::vector<uint8_t> together = prepared.run(all);
  int different = 0;
  for (int64_t row = 0; row < 64; ++row) {
    different += prepared.run(pick(all, {row})) !=
                 row_of(together, static_cast<size_t>(row), row_bytes(problem));
  }
  EXPECT_GT(different, 0);
}

TEST(HummingCpuRouting, AbsentExpertsContributeZero) {
  const Problem problem = problems()[1];
  for (const uint32_t variant : {kOrdered, kSplit}) {
    Rig rig("portable");
    const Prepared prepared(rig.library, problem.config, problem.experts, variant);
    Input input = random_input(problem.config, 2, 11);
    input.ids = i32({2, 2}, {-1, -1, 1, -7});
    const std::vector<uint8_t> some = prepared.run(input);
    const size_t bytes = row_bytes(problem);
    EXPECT_EQ(row_of(some, 0, bytes), std::vector<uint8_t>(bytes, 0));
    // The same slot beside one of weight 0 differs by an exact +0 only.
    input.ids = i32({2, 2}, {-1, -1, 1, 2});
    std::vector<float> weights = input.weights.as<float>();
    weights[3] = 0;
    input.weights = f32({2, 2}, weights);
    EXPECT_EQ(row_of(prepared.run(input), 1, bytes), row_of(some, 1, bytes));
  }
}

TEST(HummingCpuRouting, WideIdsAndExpertMap) {
  Problem problem = problems()[0];
  Rig rig("portable");
  const Prepared prepared(rig.library, problem.config, problem.experts, kOrdered);
  Input input = random_input(problem.config, 5, 12);
  input.ids = i32({5, 2}, {0, 1, 2, 3, -1, 0, 3, 3, 1, 2});
  const std::vector<uint8_t> want = prepared.run(input);
  input.ids = i64({5, 2}, {0, 1, 2, 3, -1, 0, 3, 3, 1, 2});
  EXPECT_EQ(prepared.run(input), want);

  LayerConfig global = problem.config;
  global.moe().num_experts_global = 9;
  const Prepared mapped(rig.library, global, problem.experts, kOrdered);
  input.map = i32({9}, {-1, 3, 2, -1, 1, 0, -1, -1, -1});
  input.ids = i64({5, 2}, {5, 4, 2, 1, 0, 5, 1, 1, 4, 2});
  EXPECT_EQ(mapped.run(input), want);
}

TEST(HummingCpuUpdate, ReplacesOneExpertOrNothing) {
  const Problem problem = problems()[0];
  Rig rig("portable");
  Prepared prepared(rig.library, problem.config, problem.experts, kOrdered);
  const Input input = random_input(problem.config, 9, 13);
  const std::vector<uint8_t> before = prepared.run(input);

  std::vector<TensorMap> experts = problem.experts;
  experts[2] = random_tensors(problem.config, 999);
  TensorMap broken = experts[2];
  broken.erase("w2.scale");
  std::string message;
  EXPECT_EQ(prepared.update(2, broken, &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(message.find("w2.scale"), std::string::npos) << message;
  EXPECT_EQ(prepared.run(input), before);
  EXPECT_EQ(prepared.update(4, experts[2], &message), PERCH_E_INVALID_ARGUMENT);

  ASSERT_EQ(prepared.update(2, experts[2], &message), PERCH_OK) << message;
  const std::vector<uint8_t> after = prepared.run(input);
  EXPECT_NE(after, before);
  EXPECT_EQ(after, Prepared(rig.library, problem.config, experts, kOrdered).run(input));
}

}  // namespace
}  // namespace perch::test::humming
