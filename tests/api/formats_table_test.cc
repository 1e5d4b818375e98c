// Format x layout x {loads, tensor parallel, expert parallel, runs}: every format that the runtime
// reads, in every layout that a package stores it in. tests/golden/formats_table.txt is the table
// as it must be; each test prints its rows, so that a changed one can be taken over.
//
// Loads: the canonical tensors decode to the writer's values, bit for bit, and fused ones are not
// taken the wrong way round. Parallel: the ranks' outputs sum to the whole's exactly, as all
// products and sums are small whole numbers of halves; where the model's own activation rounds, to
// a few units in the last place.
#include <algorithm>
#include <cmath>

#include "../abi/shell.h"
#include "api_rig.h"
#include "checkpoint_rig.h"
#include "decoded_weights.h"
#include "stored_model.h"

namespace perch::test {
namespace {

constexpr StoredSizes kSizes{4, 2, 64, 128};

// Inputs stay as they are: what quantizing them loses would not be the same on every rank.
perch_runtime* exact_runtime() {
  static const perch_host::Runtime runtime = runtime_of(only("reference", "act: none"));
  return runtime.get();
}

perch_model_opts float_opts() {
  perch_model_opts opts = model_opts();
  opts.in_dtype = opts.out_dtype = PERCH_TYPE_F32;
  return opts;
}

perch_host::Model open(const std::string& directory, const perch_model_opts& opts) {
  return open_directory(exact_runtime(), directory, opts);
}

// "" or what is wrong.
std::string check_load(const StoredModel& stored, const StoredLayout& layout,
                       const std::string& directory) {
  const perch_host::Model model = open(directory, float_opts());
  const LayerConfig config(*perch_model_layer_config(model.get(), 0));
  for (size_t e = 0; e < stored.experts.size(); ++e) {
    const TensorMap tensors = canonical(model, static_cast<int32_t>(e));
    if (decoded(tensors, "w13", config, 0, layout.gated) != stored.experts[e].w13) {
      return "w13 of expert " + std::to_string(e) + " differs";
    }
    if (decoded(tensors, "w2", config, 1, false) != stored.experts[e].w2) {
      return "w2 of expert " + std::to_string(e) + " differs";
    }
  }
  return "";
}

// Few entries that are not 0, so that squares of sums stay small.
Call sparse_call(int64_t rows) {
  std::vector<float> x(static_cast<size_t>(rows * kSizes.hidden), 0.0F);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < 3; ++i) {
      x[static_cast<size_t>(t * kSizes.hidden + (t * 7 + i * 19) % kSizes.hidden)] =
          i == 1 ? -1.0F : 1.0F;
    }
  }
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    ids.push_back(static_cast<int32_t>(t % kSizes.experts));
    ids.push_back(static_cast<int32_t>((t + 1 + t / 2 % 2) % kSizes.experts));
  }
  Call call;
  call.x = f32({rows, kSizes.hidden}, x);
  call.ids = i32({rows, 2}, ids);
  call.weights = f32({rows, 2}, std::vector<float>(ids.size(), 0.5F));
  return call;
}

std::vector<float> run_rank(const std::string& directory, const perch_model_opts& opts) {
  const perch_host::Model model = open(directory, opts);
  const perch_host::Layer layer = perch_host::make_layer(model, 0);
  const LayerConfig config(*perch_model_layer_config(model.get(), 0));
  Call call = sparse_call(6);
  if (const int32_t* map = perch_model_expert_map(model.get(), 0)) {
    call.map = i32({kSizes.experts}, {map, map + kSizes.experts});
  }
  return to_floats(run(layer.get(), config, call));
}

// A checkpoint's output on one rank, and how far from it a sum over several may be.
struct Whole {
  std::string directory;
  std::vector<float> output;
  float allowed = 0;
};

// Whether the sum over `ranks` is the whole: "", or the first difference.
template <typename SetRank>
std::string sum_differs(const Whole& given, uint32_t ranks, SetRank&& set_rank) {
  const std::vector<float>& whole = given.output;
  std::vector<float> sum(whole.size(), 0.0F);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    perch_model_opts opts = float_opts();
    set_rank(&opts, rank);
    const std::vector<float> part = run_rank(given.directory, opts);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    if (!(std::fabs(sum[i] - whole[i]) <= given.allowed)) {
      return "[" + std::to_string(i) + "]: sum of " + std::to_string(ranks) + " ranks " +
             std::to_string(sum[i]) + ", whole " + std::to_string(whole[i]);
    }
  }
  return "";
}

// "1 2 3 4 8", or after a refusal the number that it says works, which then must work.
std::string try_tensor_parallel(const Whole& whole) {
  std::string works = "1";
  for (uint32_t ranks : {2U, 3U, 4U, 8U}) {
    const auto set = [&](perch_model_opts* opts, uint32_t rank) {
      opts->tp_rank = rank;
      opts->tp_size = ranks;
    };
    std::string wrong;
    const std::string refused = refusal([&] { wrong = sum_differs(whole, ranks, set); });
    EXPECT_EQ(wrong, "") << "tp " << ranks;
    if (refused.empty()) {
      works += " " + std::to_string(ranks);
      continue;
    }
    const size_t at = refused.find("tp ", refused.find("want"));
    EXPECT_TRUE(says(refused, "or less works"));
    if (at == std::string::npos) return works + ", " + refused;
    works += " (" + std::to_string(ranks) + ": at most " + refused.substr(at + 3, 1) + ")";
    ranks = static_cast<uint32_t>(refused[at + 3] - '0');
    EXPECT_EQ(sum_differs(whole, ranks, set), "") << "tp " << ranks;
  }
  return works;
}

std::string try_expert_parallel(const Whole& whole) {
  for (const uint32_t placement : {PERCH_PLACEMENT_LINEAR, PERCH_PLACEMENT_ROUND_ROBIN}) {
    for (const uint32_t ranks : {2U, 3U, 5U}) {
      const auto set = [&](perch_model_opts* opts, uint32_t rank) {
        opts->ep_rank = rank;
        opts->ep_size = ranks;
        opts->placement = placement;
      };
      std::string wrong;
      const std::string refused = refusal([&] { wrong = sum_differs(whole, ranks, set); });
      EXPECT_EQ(wrong, "") << "ep " << ranks << " placement " << placement;
      if (!refused.empty()) return "no: " + refused;
    }
  }
  return "yes";
}

// What is not stored by any package has no row. gpt-oss has its blocks and bf16, and nobody else
// the blocks.
bool is_stored(const StoredFormat& format, const StoredLayout& layout) {
  const bool blocks = format.name == "mxfp4 blocks";
  if (layout.interleaved) return blocks || format.name == "bf16";
  return !blocks && (format.fusable || !layout.fused);
}

// The other orientation, where the dimensions tell: I 128 and H 64 are those of no square tensor.
void expect_orientation_matters(const StoredFormat& format, const StoredLayout& layout,
                                const std::string& directory) {
  if (!layout.fused || format.name == "mxfp4 blocks") return;  // blocks are always native
  perch_model_opts opts = float_opts();
  opts.orientation = layout.transposed ? PERCH_ORIENTATION_NATIVE : PERCH_ORIENTATION_TRANSPOSED;
  const std::string text = refusal([&] { open(directory, opts); });
  EXPECT_TRUE(says(text, "PERCH_E_INVALID_ARGUMENT"));
  EXPECT_TRUE(says(text, "want ["));
}

std::string table_row(const StoredFormat& format, const StoredLayout& layout) {
  const TempDir scratch;
  const StoredModel stored = store_model(format, layout, kSizes, 7);
  stored.write(scratch.path());
  std::string row = format.name + " | " + layout.name + " | ";
  std::string wrong;
  const std::string refused = refusal([&] { wrong = check_load(stored, layout, scratch.path()); });
  EXPECT_EQ(wrong, "") << row;
  if (!refused.empty()) return row + "no: " + refused;
  row += "loads | ";
  expect_orientation_matters(format, layout, scratch.path());
  Whole whole{scratch.path(), {}};
  const std::string runs = refusal([&] { whole.output = run_rank(scratch.path(), float_opts()); });
  if (!runs.empty()) return row + "no: " + runs;
  float largest = 0;
  for (const float value : whole.output) largest = std::max(largest, std::fabs(value));
  if (layout.rounds) whole.allowed = 1e-6F * largest;
  EXPECT_GT(
      std::count_if(whole.output.begin(), whole.output.end(), [](float v) { return v != 0.0F; }), 6)
      << row;
  return row + "runs | tp " + try_tensor_parallel(whole) + " | ep " + try_expert_parallel(whole);
}

std::vector<std::string> golden_rows() {
  std::ifstream file(std::string(PERCH_SOURCE_DIR) + "/tests/golden/formats_table.txt");
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(line);
  return rows;
}

class FormatsTable : public ::testing::TestWithParam<StoredFormat> {};

TEST_P(FormatsTable, IsAsWritten) {
  const std::vector<std::string> golden = golden_rows();
  for (const StoredLayout& layout : all_layouts()) {
    if (!is_stored(GetParam(), layout)) continue;
    SCOPED_TRACE(layout.name);
    const std::string row = table_row(GetParam(), layout);
    std::printf("row: %s\n", row.c_str());
    EXPECT_NE(std::find(golden.begin(), golden.end(), row), golden.end())
        << "not in tests/golden/formats_table.txt: " << row;
  }
}

std::string test_name(const ::testing::TestParamInfo<StoredFormat>& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, FormatsTable, ::testing::ValuesIn(all_formats()), test_name);

}  // namespace
}  // namespace perch::test
