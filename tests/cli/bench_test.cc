// `perch bench`: the machine's limits, the arithmetic of floors and shares, what it prints and
// refuses. No time is tested: machines are shared.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/limits/floor.h"
#include "bench/limits/limits.h"
#include "cli_rig.h"

namespace perch::test {
namespace {

using perch_bench::DotClass;
using perch_bench::Floor;
using perch_bench::LoopSet;
using perch_bench::MachineLimits;
using perch_bench::Standing;

perch::Case case_of(const std::string& line) { return perch::parse_case(line).value(); }

// A loop's factors are 1, so its result is the number of multiply-adds that were carried out.
TEST(LimitLoops, DoWhatTheyAreCountedFor) {
  for (const LoopSet* set : perch_bench::loop_sets()) {
    if (!set->runs()) continue;
    for (const perch_bench::DotLoop& loop : set->dots) {
      if (loop.run == nullptr) continue;
      EXPECT_EQ(2 * loop.run(1000), 1000.0 * static_cast<double>(loop.operations_per_round))
          << set->isa << " " << loop.instructions;
    }
  }
}

TEST(LimitLoops, ReadEveryByteOnce) {
  std::vector<uint64_t> words(8 * 1024 + 8, 0);
  const size_t skip = (64 - reinterpret_cast<uintptr_t>(words.data()) % 64) % 64 / 8;
  uint64_t want = 0;
  for (size_t i = 0; i < 8 * 1024; ++i) want += words[skip + i] = i * i + 1;
  for (const LoopSet* set : perch_bench::loop_sets()) {
    if (!set->runs() || set->read[0] == nullptr) continue;
    for (const auto read : set->read) {
      EXPECT_EQ(read(reinterpret_cast<const std::byte*>(words.data() + skip), 64 * 1024), want)
          << set->isa;
    }
  }
}

using BestGflops = std::map<std::string, double>;

// Why two loops do not stand in [low, high] to each other, or nothing.
std::string ratio_error(const BestGflops& best, const char* fast, const char* slow, double low,
                        double high) {
  if (best.count(fast) == 0 || best.count(slow) == 0) return "";
  const double ratio = best.at(fast) / best.at(slow);
  if (ratio > low && ratio < high) return "";
  return fmt::format("{} to {}: got {}; want {} to {}\n", fast, slow, ratio, low, high);
}

// One f32 FMA per lane, two bf16 products, four int8 products: 1 : 2 : 4 where each instruction has
// the same throughput. bf16's is a quarter of that on Sapphire Rapids, and int8's more than four
// times f32's where the clock drops under f32. A neighbour can slow either loop for seconds, so
// the best passes of some rounds count, and a sanitizer's build counts its own checks.
TEST(LimitLoops, StandInTheRatioOfTheirInstructions) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer slows the loops unevenly";
  auto machine = MachineLimits::open(1, "");
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  BestGflops best;
  std::string errors = "not measured";
  for (int round = 0; round < 10 && !errors.empty(); ++round) {
    for (const auto& loop : (*machine)->measure_all()) {
      double& entry =
          best[loop.set->isa + std::string(" ") + perch_bench::dot_class_name(loop.dot)];
      entry = std::max(entry, loop.limit.best_gflops);
    }
    errors = ratio_error(best, "avx512_vnni int8", "avx512 f32", 2.6, 6) +
             ratio_error(best, "avx512_bf16 bf16", "avx512 f32", 0.3, 3) +
             ratio_error(best, "avx2 int8", "avx2 f32", 1, 3.5) +
             ratio_error(best, "avx512 f32", "avx2 f32", 0.6, 3);
  }
  EXPECT_EQ(errors, "");
}

TEST(MachineLimits, RefusesALevelThatItDoesNotKnow) {
  const auto machine = MachineLimits::open(1, "avx3");
  ASSERT_FALSE(machine.ok());
  EXPECT_TRUE(says(machine.status().message(), "got \"avx3\"; want one of: portable"));
}

TEST(Floor, IsTheLargerOfReadingAndMultiplying) {
  const Floor read = perch_bench::floor_of({2e6, 1e6}, {10, 100});
  EXPECT_DOUBLE_EQ(read.ms, 0.2);
  EXPECT_TRUE(read.of_memory);
  const Floor dots = perch_bench::floor_of({2e6, 5e7}, {10, 100});
  EXPECT_DOUBLE_EQ(dots.ms, 0.5);
  EXPECT_FALSE(dots.of_memory);
}

TEST(Floor, CountsTheOperationsOfEachKindOfLayer) {
  const auto operations = [](const std::string& line) {
    return perch_bench::operations_per_visit(case_of(line).config.abi());
  };
  EXPECT_EQ(operations("linear t5 n64 k96 w=bf16"), 2 * 64 * 96);
  EXPECT_EQ(operations("moe t5 e4 top2 h64 i96 w=bf16 act=silu"), 3 * 64 * 96 * 2);
  EXPECT_EQ(operations("moe t5 e4 top2 h64 i96 w=bf16 act=relu2_no_mul"), 2 * 64 * 96 * 2);
}

TEST(Floor, TakesTheClassFromTheRecipe) {
  const auto dot = [](const std::string& line) {
    return perch_bench::dot_class_of(case_of(line).config.abi());
  };
  EXPECT_EQ(dot("linear t1 n64 k64 w=bf16"), DotClass::kBf16);
  EXPECT_EQ(dot("linear t1 n64 k64 w=int4g32:bf16"), DotClass::kBf16);
  EXPECT_EQ(dot("linear t1 n64 k64 w=f32 in=f32 o=f32"), DotClass::kF32);
  EXPECT_EQ(dot("linear t1 n64 k64 w=bf16 in=f16 o=f16"), DotClass::kF32);
  EXPECT_EQ(dot("linear t1 n64 k64 w=int8c:f32 a=int8t"), DotClass::kInt8);
}

TEST(Floor, AShareThatCannotBeIsVoid) {
  EXPECT_EQ(perch_bench::judge(1.06, std::nullopt), Standing::kVoid);
  EXPECT_EQ(perch_bench::judge(1.06, 0.9), Standing::kVoid);
  EXPECT_EQ(perch_bench::judge(1.04, 0.9), Standing::kFine);
  EXPECT_EQ(perch_bench::judge(0.89, 0.9), Standing::kShort);
  EXPECT_EQ(perch_bench::judge(0.1, std::nullopt), Standing::kFine);
}

class BenchTest : public ::testing::Test {
 protected:
  // Fast rather than right.
  CommandResult bench(const std::string& arguments) const {
    return perch_command("bench --threads 1 --seconds 0.02 --cold-bytes 0 " + arguments);
  }
  TempDir folder_;
};

TEST_F(BenchTest, RowsHoldTheirOwnArithmetic) {
  const CommandResult result = bench(
      "--json --backend reference,humming-cpu,mine --backend-path " PERCH_BUILD_DIR
      "/tests/api_fixtures/libperch_mine.so 'moe t3 e8 top2 h64 i96 w=f16 act=silu load=one:1' "
      "'linear t2 n64 k96 w=e4m3b128:f32'");
  ASSERT_EQ(result.code, 0) << result.err;
  const json document = result.document();
  const json& machine = document["machine"];
  EXPECT_EQ(machine["threads"], 1);
  EXPECT_GT(machine["read_gbps"].get<double>(), 0);
  EXPECT_FALSE(machine["cpu"].get<std::string>().empty());
  for (const char* dot : {"f32", "bf16", "int8"}) {
    EXPECT_GT(machine["peak_gflops"][dot].get<double>(), 0) << dot;
  }
  ASSERT_EQ(document["rows"].size(), 6u);
  for (const json& row : document["rows"]) {
    if (row.contains("skipped")) continue;
    const double read_ms = row["bytes"].get<double>() / row["read_gbps"].get<double>() / 1e6;
    const double dot_ms = row["operations"].get<double>() / row["peak_gflops"].get<double>() / 1e6;
    const double floor_ms = row["floor_ms"];
    const double median_ms = row["median_ms"];
    EXPECT_NEAR(floor_ms, std::max(read_ms, dot_ms), 1e-9 * floor_ms) << row;
    EXPECT_NEAR(row["share"].get<double>(), floor_ms / median_ms, 1e-9) << row;
    EXPECT_EQ(row["bound"], read_ms >= dot_ms ? "memory" : "compute") << row;
    EXPECT_NEAR(row["gbps"].get<double>(), row["bytes"].get<double>() / median_ms / 1e6, 1e-6);
    EXPECT_EQ(row["class"], "bf16");
    EXPECT_TRUE(row["required"].is_null());
    EXPECT_GE(row["calls"].get<int>(), 5);
  }
  const json& moe = document["rows"][0];
  EXPECT_EQ(moe["case"], "moe t3 e8 top2 h64 i96 w=f16 act=silu load=one:1");
  EXPECT_EQ(moe["backend"], "reference");
  EXPECT_EQ(moe["t"], 3);
  EXPECT_EQ(moe["operations"].get<double>(), 3 * 2 * (3 * 64 * 96 * 2));
  // Weights are not counted beyond what the format holds: of 2 to 4 experts of f16.
  const double experts = 8 * moe["experts_touched"].get<double>();
  EXPECT_GE(experts, 2);
  EXPECT_LE(experts, 4);
  EXPECT_LE(moe["bytes"].get<double>(), experts * 3 * 64 * 96 * 2);
  const json& refused = document["rows"][5];
  EXPECT_EQ(refused["backend"], "mine");
  EXPECT_TRUE(refused["median_ms"].is_null());
  EXPECT_TRUE(refused["ok"].get<bool>());
  EXPECT_TRUE(says(refused["skipped"], "DTYPE"));
}

TEST_F(BenchTest, ASuiteSaysWhatMustBeReachedAndThePlotShowsIt) {
  write_text(folder_ / "s.cases", "linear t{1,2} n64 k4096 w=bf16 >= 1\n");
  const bool plot = is_installed("gnuplot");
  const std::string svg = folder_ / "out.svg";
  const CommandResult result = bench("--backend reference --suite " + (folder_ / "s.cases") +
                                     (plot ? " --plot " + svg : ""));
  EXPECT_EQ(result.code, 1) << result.err << result.out;
  EXPECT_TRUE(says(result.out, "100 % required"));
  EXPECT_TRUE(says(result.out, "linear t2 n64 k4096 w=bf16"));
  if (!plot) GTEST_SKIP() << "gnuplot is not installed";
  const std::string text = read_text(svg);
  EXPECT_TRUE(says(text, "<svg"));
  EXPECT_TRUE(says(text, "Roofline"));
  EXPECT_TRUE(says(text, "</svg>"));
}

TEST_F(BenchTest, TimesTheLayersOfACheckpoint) {
  const CommandResult result = bench("--json --tokens 1,3 --layer '*.1.*' " + fixture("qwen3_moe"));
  ASSERT_EQ(result.code, 0) << result.err;
  const json rows = result.document()["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["case"], "model.layers.1.mlp.experts t3");
  EXPECT_EQ(rows[1]["backend"], "humming-cpu");
}

TEST_F(BenchTest, WithoutGnuplotAPlotIsRefusedAtOnce) {
  const TempDir folder;
  const ShellResult result = run_shell("PATH=/nowhere " PERCH_BUILD_DIR
                                       "/bin/perch bench 'linear t1 n64 k64 w=bf16' --plot " +
                                       (folder / "p.svg") + " 2>&1");
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(says(result.output, "apt-get install gnuplot-nox"));
  EXPECT_FALSE(std::filesystem::exists(folder / "p.svg"));
}

struct BenchRefusal {
  const char* name;
  const char* arguments;
  int code;
  const char* message;
};
class BenchRefusalTest : public ::testing::TestWithParam<BenchRefusal> {};

TEST_P(BenchRefusalTest, SaysWhatIsWanted) {
  const CommandResult result = perch_command(std::string("bench ") + GetParam().arguments);
  EXPECT_EQ(result.code, GetParam().code);
  EXPECT_TRUE(says(result.err, GetParam().message));
}

const BenchRefusal kRefusals[] = {
    {"nothing", "", 2, "nothing to time"},
    {"unquoted", "moe t1 e4", 2, "in quotes"},
    {"bad_case", "'moe t1 e4 top9 h32 i32 w=bf16 act=silu'", 2, "CASE: "},
    {"bad_share", "'linear t1 n64 k64 w=bf16 >= 95'", 2, "want a share such as 0.95"},
    {"strided", "'linear t1 n64 k64 w=bf16 strided'", 2, "strided"},
    {"no_suite", "--suite nothing", 2, "--suite: got \"nothing\""},
    {"bad_backend", "--backend 'a b' 'linear t1 n64 k64 w=bf16'", 2, "--backend: got \"a b\""},
    {"two_policies", "--backend reference --config /no.yaml 'linear t1 n64 k64 w=bf16'", 2,
     "want it without --config"},
    {"bad_isa", "--isa avx3 'linear t1 n64 k64 w=bf16'", 2, "--isa: got \"avx3\""},
    {"bad_option", "--option fast 'linear t1 n64 k64 w=bf16'", 2, "want KEY=VALUE"},
    {"no_model", "/no/such/model", 2, "/no/such/model"},
    {"plot_nowhere", "'linear t1 n64 k64 w=bf16' --plot /no/such/p.svg", 2, "--plot: "},
};
INSTANTIATE_TEST_SUITE_P(Refusals, BenchRefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace perch::test
