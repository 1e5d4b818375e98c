// `perch run --expect` on every fixture: what the models' own modules computed, on both backends;
// and the proof that the comparison can fail: one flipped bit, gate and up swapped, a routing
// weight dropped.
#include <cmath>

#include "cli_rig.h"

namespace perch::test {
namespace {

std::string run_line(const std::string& model, const std::string& expect,
                     const std::string& options) {
  return "run " + model + " --json --repeat 1 --expect " + expect + " " + options;
}

// The comparisons of a run, for a failure's text.
std::string summary(const CommandResult& result) {
  std::string text;
  const json document = json::parse(result.out, nullptr, false);
  if (document.is_discarded() || !document.contains("layers")) return result.out;
  for (const json& layer : document["layers"]) text += layer["error"].dump() + "\n";
  return text;
}

struct ExpectRow {
  FixtureRow fixture;
  const char* backend;
  const char* dtype;  // "" is the checkpoint's
};

class ExpectTest : public ::testing::TestWithParam<ExpectRow> {};

TEST_P(ExpectTest, Agrees) {
  const ExpectRow& row = GetParam();
  const std::string name = row.fixture.name;
  std::string options = std::string("--backend ") + row.backend;
  if (*row.dtype != '\0') options += std::string(" --dtype ") + row.dtype;
  // Attention there is int8, which humming-cpu does not offer.
  const bool experts_only = name == "ct_int4_asym" && std::string(row.backend) == "humming-cpu";
  if (experts_only) options += " --layer '*experts'";
  const CommandResult result = perch_command(run_line(fixture(name), expectation(name), options));
  ASSERT_EQ(result.code, 0) << result.err << summary(result);
  EXPECT_EQ(result.err, "");
  const json document = result.document();
  EXPECT_EQ(document["ok"], true);
  EXPECT_FALSE(document["layers"].empty());
  const TensorFile expect(expectation(name));
  const size_t all = expect.names_ending(".output").size();
  EXPECT_EQ(document["layers"].size(), experts_only ? expect.names_ending(".ids").size() : all);
  for (const json& layer : document["layers"]) {
    EXPECT_EQ(layer["backend"], row.backend);
    EXPECT_EQ(layer["tokens"], 9);
    EXPECT_EQ(layer["error"]["against"], expectation(name));
    EXPECT_EQ(layer["error"]["ok"], true);
    EXPECT_LE(layer["error"]["worst_ratio"].get<double>(), 1.0);
    EXPECT_GT(layer["error"]["allowed"].get<double>(), 0.0);
  }
}

std::vector<ExpectRow> expect_rows() {
  std::vector<ExpectRow> rows;
  for (const FixtureRow& fixture : all_fixtures()) {
    for (const char* backend : {"reference", "humming-cpu"}) {
      for (const char* dtype : {"", "f32"}) rows.push_back({fixture, backend, dtype});
    }
  }
  return rows;
}
INSTANTIATE_TEST_SUITE_P(Fixtures, ExpectTest, ::testing::ValuesIn(expect_rows()),
                         [](const auto& row) {
                           std::string name = std::string(row.param.fixture.name) + "_" +
                                              row.param.backend + "_" + row.param.dtype;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- Damage ------------------------------------------------------------------------------------

float bf16(const uint8_t* bytes) {
  uint32_t bits = 0;
  std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, bytes, 2);
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The first layer with routing in the fixture's expectations, and the expert that row 0 uses most.
struct Target {
  explicit Target(const std::string& expect_path) {
    TensorFile expect(expect_path);
    const std::string ids = expect.names_ending(".ids").front();
    layer = ids.substr(0, ids.size() - 4);
    const int64_t topk = expect.shape(ids)[1];
    std::vector<int32_t> row(static_cast<size_t>(topk));
    std::vector<float> weights(row.size());
    std::memcpy(row.data(), expect.data(ids), row.size() * 4);
    std::memcpy(weights.data(), expect.data(layer + ".weights"), row.size() * 4);
    slot = static_cast<size_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
    expert = row[slot];
  }
  std::string layer;
  int64_t expert = 0;
  size_t slot = 0;
};

// A span of bytes inside a tensor: the whole of a per-expert one, one expert of a fused one.
struct Slab {
  TensorFile* file = nullptr;
  uint8_t* begin = nullptr;
  size_t bytes = 0;
  std::vector<int64_t> shape;  // of one expert
};

Slab find_slab(FixtureCopy& copy, const Target& target, const std::vector<std::string>& per_expert,
               const std::vector<std::string>& fused) {
  Slab slab;
  for (const std::string& part : per_expert) {
    const std::string name = target.layer + "." + std::to_string(target.expert) + "." + part;
    if (!copy.has(name)) continue;
    slab.file = &copy.file_of(name);
    slab.begin = slab.file->data(name);
    slab.bytes = slab.file->bytes(name);
    slab.shape = slab.file->shape(name);
    return slab;
  }
  for (const std::string& part : fused) {
    const std::string name = target.layer + "." + part;
    if (!copy.has(name)) continue;
    slab.file = &copy.file_of(name);
    const std::vector<int64_t> shape = slab.file->shape(name);
    slab.bytes = slab.file->bytes(name) / static_cast<size_t>(shape[0]);
    slab.begin = slab.file->data(name) + static_cast<size_t>(target.expert) * slab.bytes;
    slab.shape = {shape[1], shape[2]};
    return slab;
  }
  throw std::runtime_error("no such part of " + target.layer);
}

Slab down_slab(FixtureCopy& copy, const Target& target) {
  return find_slab(copy, target, {"down_proj.weight", "w2.weight", "down_proj.weight_packed"},
                   {"down_proj", "output_linear.weight", "down_proj.weight"});
}

void expect_difference(const FixtureCopy& copy, const Target& target, const std::string& options) {
  for (const char* backend : {"reference", "humming-cpu"}) {
    SCOPED_TRACE(std::string(backend) + " " + options);
    const std::string line =
        run_line(copy.path(), copy.expect_path(),
                 "--layer '" + target.layer + "' --backend " + backend + " " + options);
    const CommandResult result = perch_command(line);
    ASSERT_EQ(result.code, 1) << result.err << summary(result);
    const json document = result.document();
    EXPECT_EQ(document["ok"], false);
    const json& error = document["layers"][0]["error"];
    EXPECT_EQ(error["ok"], false);
    EXPECT_EQ(error["against"], copy.expect_path());
    EXPECT_NE(error["got"], error["want"]);
  }
}

class DamageTest : public ::testing::TestWithParam<FixtureRow> {};

// Byte offsets in w2 of the weights most likely to matter: the largest of each column, or for
// packed codes one byte of each row, another in each.
std::vector<size_t> candidates(const Slab& slab, char layout) {
  std::vector<size_t> offsets;
  const auto rows = static_cast<size_t>(slab.shape[0]);
  const auto columns = static_cast<size_t>(slab.shape[1]);
  if (layout == 'Q') {
    for (size_t row = 0; row < rows; ++row) {
      for (size_t byte = 0; byte < columns * 4; ++byte) {
        if (byte % rows == row) offsets.push_back(row * columns * 4 + byte);
      }
    }
    return offsets;
  }
  const auto magnitude = [&](size_t offset) { return std::fabs(bf16(slab.begin + offset)); };
  for (size_t column = 0; column < columns; ++column) {
    size_t largest = column * 2;
    for (size_t row = 1; row < rows; ++row) {
      const size_t offset = (row * columns + column) * 2;
      if (magnitude(offset) > magnitude(largest)) largest = offset;
    }
    offsets.push_back(largest);
  }
  return offsets;
}

// Flips one bit of one weight of an expert that row 0 uses. A weight whose input is nearly zero
// changes nothing, so weights are tried in turn until one matters.
void expect_flip_matters(const FixtureRow& row, int bit, const std::string& options) {
  FixtureCopy copy(row.name);
  const Target target(copy.expect_path());
  const Slab slab = down_slab(copy, target);
  std::vector<size_t> offsets = candidates(slab, row.layout);
  offsets.resize(std::min<size_t>(offsets.size(), 32));
  for (const size_t offset : offsets) {
    uint8_t& byte = slab.begin[offset + static_cast<size_t>(bit / 8)];
    byte ^= static_cast<uint8_t>(1 << (bit % 8));
    copy.save();
    const CommandResult result =
        perch_command(run_line(copy.path(), copy.expect_path(),
                               "--layer '" + target.layer + "' --backend reference " + options));
    if (result.code == 1) {
      expect_difference(copy, target, options);
      return;
    }
    byte ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  FAIL() << "none of " << offsets.size() << " flipped weights made a difference";
}

TEST_P(DamageTest, LowestBitOfOneWeightInF32) { expect_flip_matters(GetParam(), 0, "--dtype f32"); }

// The sign of a bf16 weight; of a packed code, its highest bit.
TEST_P(DamageTest, SignOfOneWeightInTheCheckpointsOwnType) {
  expect_flip_matters(GetParam(), GetParam().layout == 'Q' ? 3 : 15, "");
}

// Swaps gate and up of one expert, in whatever way the layout stores them.
void swap_gate_and_up(FixtureCopy& copy, const Target& target, char layout) {
  const auto swap_parts = [&](const char* a, const char* b, const char* mixtral_a,
                              const char* mixtral_b) {
    const Slab gate = find_slab(copy, target, {a, mixtral_a}, {});
    const Slab up = find_slab(copy, target, {b, mixtral_b}, {});
    std::swap_ranges(gate.begin, gate.begin + gate.bytes, up.begin);
  };
  if (layout == 'P') swap_parts("gate_proj.weight", "up_proj.weight", "w1.weight", "w3.weight");
  if (layout == 'S') {
    const Slab gate = find_slab(copy, target, {}, {"gate_proj.weight"});
    const Slab up = find_slab(copy, target, {}, {"up_proj.weight"});
    std::swap_ranges(gate.begin, gate.begin + gate.bytes, up.begin);
  }
  if (layout == 'Q') {
    for (const char* suffix : {"weight_packed", "weight_scale", "weight_zero_point"}) {
      const std::string gate = std::string("gate_proj.") + suffix;
      const std::string up = std::string("up_proj.") + suffix;
      const std::string prefix = target.layer + "." + std::to_string(target.expert) + ".";
      if (copy.has(prefix + gate)) swap_parts(gate.c_str(), up.c_str(), "", "");
    }
  }
  if (layout == 'F' || layout == 'T' || layout == 'I') {
    const Slab both = find_slab(copy, target, {}, {"gate_up_proj", "input_linear.weight"});
    const auto rows = static_cast<size_t>(both.shape[0]);
    const auto columns = static_cast<size_t>(both.shape[1]);
    auto* cells = reinterpret_cast<uint16_t*>(both.begin);
    for (size_t row = 0; row < (layout == 'F' ? rows / 2 : rows); ++row) {
      for (size_t c = 0; c < columns; ++c) {
        const size_t at = row * columns + c;
        if (layout == 'F') std::swap(cells[at], cells[at + rows / 2 * columns]);
        if (layout == 'T' && c < columns / 2) std::swap(cells[at], cells[at + columns / 2]);
        if (layout == 'I' && c % 2 == 0) std::swap(cells[at], cells[at + 1]);
      }
    }
  }
  copy.save();
}

TEST_P(DamageTest, DroppedRoutingWeight) {
  FixtureCopy copy(GetParam().name);
  const Target target(copy.expect_path());
  TensorFile expect(copy.expect_path());
  std::memset(expect.data(target.layer + ".weights") + 4 * target.slot, 0, 4);
  expect.save();
  expect_difference(copy, target, "");
}

INSTANTIATE_TEST_SUITE_P(Fixtures, DamageTest, ::testing::ValuesIn(fixtures()), name_of_fixture);

class ExponentTest : public ::testing::TestWithParam<FixtureRow> {};

// The highest exponent bit: 2^128 times as large.
TEST_P(ExponentTest, OfOneWeightInTheCheckpointsOwnType) {
  FixtureCopy copy(GetParam().name);
  const Target target(copy.expect_path());
  const Slab slab = down_slab(copy, target);
  slab.begin[candidates(slab, GetParam().layout)[0] + 1] ^= 0x40;
  copy.save();
  expect_difference(copy, target, "");
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ExponentTest, ::testing::ValuesIn(fixtures_but('Q')),
                         name_of_fixture);

class SwapTest : public ::testing::TestWithParam<FixtureRow> {};

TEST_P(SwapTest, GateAndUpOfOneExpert) {
  FixtureCopy copy(GetParam().name);
  const Target target(copy.expect_path());
  swap_gate_and_up(copy, target, GetParam().layout);
  expect_difference(copy, target, "");
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SwapTest, ::testing::ValuesIn(fixtures_but('G')),
                         name_of_fixture);

// The copy itself is sound: undamaged it agrees.
TEST(Damage, NoneAgrees) {
  const FixtureCopy copy("qwen3_moe");
  EXPECT_EQ(perch_command(run_line(copy.path(), copy.expect_path(), "")).code, 0);
}

// ---- Routing -----------------------------------------------------------------------------------

class RouteTest : public ::testing::TestWithParam<FixtureRow> {};

TEST_P(RouteTest, EqualsTheModelsRouter) {
  const std::string name = GetParam().name;
  const CommandResult result = perch_command("route " + fixture(name) + " --dtype f32 --json" +
                                             " --expect " + expectation(name));
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  const json document = result.document();
  for (const json& layer : document["layers"]) {
    EXPECT_EQ(layer["error"]["ok"], true) << layer["error"];
    EXPECT_EQ(layer["ids"].size(), 9U);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RouteTest, ::testing::ValuesIn(all_fixtures()), name_of_fixture);

}  // namespace
}  // namespace perch::test
