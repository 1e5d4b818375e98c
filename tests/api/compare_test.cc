// perch_model_compare (field report F5): a comparison that can fail. Each damaged output is found,
// with its row and both values; an exact copy passes.
#include "checkpoint_rig.h"

namespace perch::test {
namespace {

constexpr MoeSizes kSizes{4, 2, 32, 48};
constexpr int64_t kRows = 100;

struct Damage {
  const char* name;
  void (*spoil)(std::vector<float>& y);
  int64_t row;  // where the worst element is, -1: anywhere
};

// The reference's output, spoiled, against itself.
perch_comparison compare(void (*spoil)(std::vector<float>& y)) {
  const Checkpoint checkpoint = store(Storage::kP, kSizes, random_weights(kSizes, 3));
  perch_runtime* runtime = shared_runtime("reference");
  const perch_host::Model model = checkpoint.open(runtime);
  const perch_host::Layer layer = perch_host::make_layer(model, 0);
  const LayerConfig config(*perch_model_layer_config(model.get(), 0));
  const Call call = random_call(config, kRows, 6);
  Exec exec(layer.get(), config, call);
  exec.run();
  const std::vector<float> good = to_floats(exec.y);
  std::vector<float> bad = good;
  spoil(bad);
  const Tensor y = f32({kRows, 32}, bad);
  const Tensor want = f32({kRows, 32}, good);
  exec.args.y = y.dl();
  perch_comparison comparison{};
  comparison.struct_size = sizeof(comparison);
  perch_host::check(perch_model_compare, model.get(), 0U, layer.get(),
                    static_cast<const perch_exec_args*>(&exec.args), want.dl(), &comparison);
  return comparison;
}

class CompareTest : public ::testing::TestWithParam<Damage> {};

TEST_P(CompareTest, IsFound) {
  const perch_comparison comparison = compare(GetParam().spoil);
  EXPECT_EQ(comparison.ok, 0U);
  EXPECT_GT(comparison.worst_ratio, 1.0);
  if (GetParam().row >= 0) {
    EXPECT_EQ(comparison.worst_row, GetParam().row);
  }
  EXPECT_NE(comparison.got, comparison.want);
}

const Damage kDamages[] = {
    {"one_row_of_100_zeroed",
     [](std::vector<float>& y) { std::fill_n(y.begin() + 17 * 32, 32, 0.0F); }, 17},
    {"all_zero", [](std::vector<float>& y) { std::fill(y.begin(), y.end(), 0.0F); }, -1},
    {"one_row_doubled",
     [](std::vector<float>& y) {
       for (size_t i = 40 * 32; i < 41 * 32; ++i) y[i] *= 2;
     },
     40},
    {"one_nan",
     [](std::vector<float>& y) { y[99 * 32 + 31] = std::numeric_limits<float>::quiet_NaN(); }, 99},
    {"one_infinity", [](std::vector<float>& y) { y[5] = std::numeric_limits<float>::infinity(); },
     0},
    {"two_rows_exchanged",
     [](std::vector<float>& y) { std::swap_ranges(y.begin(), y.begin() + 32, y.begin() + 32); },
     -1},
    {"last_column_of_every_row",
     [](std::vector<float>& y) {
       for (size_t row = 0; row < kRows; ++row) y[row * 32 + 31] = 0;
     },
     -1},
};
INSTANTIATE_TEST_SUITE_P(Damages, CompareTest, ::testing::ValuesIn(kDamages),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Compare, AnExactCopyPasses) {
  const perch_comparison comparison = compare([](std::vector<float>&) {});
  EXPECT_EQ(comparison.ok, 1U);
  EXPECT_EQ(comparison.worst_ratio, 0.0);
  EXPECT_GT(comparison.allowed, 0.0);
}

}  // namespace
}  // namespace perch::test
