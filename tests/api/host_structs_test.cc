// Field report G2 for hosts: structs of other sizes, unknown numbers and extension chains are
// refused by name, never guessed and never followed for ever.
#include <functional>

#include "api_rig.h"

namespace perch::test {
namespace {

// A struct with room behind it, as a host with newer headers would send it.
template <typename T>
struct Grown {
  T value{};
  uint64_t tail[2] = {};
};

struct SizeRow {
  const char* name;
  uint32_t delta;  // added to the struct's own size
  uint64_t tail;   // the bytes behind it
  const char* message;
};

class OptionSizeTest : public ::testing::TestWithParam<SizeRow> {};

TEST_P(OptionSizeTest, OfRuntimeOptions) {
  Grown<perch_runtime_opts> opts;
  opts.value.struct_size = static_cast<uint32_t>(sizeof(perch_runtime_opts)) + GetParam().delta;
  opts.value.num_threads = 1;
  opts.tail[0] = GetParam().tail;
  const std::string text = refusal([&] { perch_host::make_runtime(&opts.value); });
  EXPECT_TRUE(says(text, GetParam().message));
  EXPECT_EQ(text.empty(), std::string(GetParam().message).empty());
}

TEST_P(OptionSizeTest, OfLayerConfigs) {
  const LayerConfig config = sq_layer(2, 1, PERCH_TYPE_F32);
  Grown<perch_layer_config> grown;
  grown.value = config.abi();
  grown.value.struct_size = static_cast<uint32_t>(sizeof(perch_layer_config)) + GetParam().delta;
  grown.tail[0] = GetParam().tail;
  const std::string text =
      refusal([&] { perch_host::json(perch_select, shared_runtime("reference"), &grown.value); });
  EXPECT_EQ(text.empty(), std::string(GetParam().message).empty()) << text;
  if (!text.empty()) {
    EXPECT_TRUE(says(text, "perch_select: config"));
  }
}

const SizeRow kSizes[] = {
    {"exact", 0, 0, ""},
    {"newer_with_a_zero_tail", 8, 0, ""},
    {"newer_with_a_field_set", 8, 1, "PERCH_E_UNSUPPORTED"},
    {"one_byte_short", static_cast<uint32_t>(-1), 0, "PERCH_E_ABI_MISMATCH"},
    {"absurd", 1U << 20, 0, "PERCH_E_ABI_MISMATCH"},
};
INSTANTIATE_TEST_SUITE_P(Sizes, OptionSizeTest, ::testing::ValuesIn(kSizes),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(OptionSize, ZeroAndFour) {
  for (const uint32_t size : {0U, 4U}) {
    perch_runtime_opts opts{};
    opts.struct_size = size;
    EXPECT_TRUE(says(refusal([&] { perch_host::make_runtime(&opts); }),
                     "perch_runtime_create: opts.struct_size: got " + std::to_string(size)));
  }
}

struct BadConfig {
  const char* name;
  void (*spoil)(LayerConfig& config);
  const char* code;
  const char* message;
};

class BadLayerConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadLayerConfigTest, IsRefusedByField) {
  LayerConfig config = sq_layer(2, 1, PERCH_TYPE_F32);
  GetParam().spoil(config);
  const std::string text =
      refusal([&] { perch_host::json(perch_select, shared_runtime("reference"), &config.abi()); });
  EXPECT_TRUE(says(text, GetParam().code));
  EXPECT_TRUE(says(text, GetParam().message));
}

perch_ext must_understand{sizeof(perch_ext), 4711, PERCH_EXT_MUST_UNDERSTAND, 0, nullptr};
perch_ext loop{sizeof(perch_ext), 12, 0, 0, &loop};

const BadConfig kConfigs[] = {
    {"kind_0", [](LayerConfig& c) { c.layer().kind = 0; }, "INVALID_ARGUMENT", "kind: got 0"},
    {"activation_0", [](LayerConfig& c) { c.moe().activation = 0; }, "INVALID_ARGUMENT",
     "moe.activation: got 0"},
    {"activation_99", [](LayerConfig& c) { c.moe().activation = 99; }, "UNSUPPORTED",
     "moe.activation: got 99"},
    {"weight_0", [](LayerConfig& c) { c.first().weight = 0; }, "INVALID_ARGUMENT",
     "moe.w13.weight"},
    {"flag", [](LayerConfig& c) { c.moe().flags = 1U << 30; }, "UNSUPPORTED", "moe.flags"},
    {"caps", [](LayerConfig& c) { c.layer().require = perch_caps{1} << 40; }, "UNSUPPORTED",
     "require: got bit40"},
    {"limit_where_none_is_used",
     [](LayerConfig& c) {
       c.moe().flags = PERCH_MOE_HAS_LIMIT;
       c.moe().act_limit = 7;
     },
     "INVALID_ARGUMENT", "moe.act_limit"},
    {"topk_above_experts", [](LayerConfig& c) { c.moe().topk = 3; }, "INVALID_ARGUMENT",
     "moe.topk: got 3"},
    {"overflow", [](LayerConfig& c) { c.moe().hidden = int64_t{1} << 60; }, "INVALID_ARGUMENT",
     "moe."},
    {"two_breaches",
     [](LayerConfig& c) {
       c.moe().topk = 0;
       c.moe().hidden = -1;
     },
     "moe.topk: got 0", "moe.hidden: got -1"},
    {"must_understand", [](LayerConfig& c) { c.layer().next = &must_understand; }, "UNSUPPORTED",
     "4711"},
    {"must_understand_in_quant", [](LayerConfig& c) { c.second().next = &must_understand; },
     "UNSUPPORTED", "moe.w2"},
    {"chain_loop", [](LayerConfig& c) { c.moe().next = &loop; }, "PERCH_E_", "moe"},
};
INSTANTIATE_TEST_SUITE_P(Fields, BadLayerConfigTest, ::testing::ValuesIn(kConfigs),
                         [](const auto& row) { return std::string(row.param.name); });

// A reader that may skip it does.
TEST(Extensions, WithoutMustUnderstandAreSkipped) {
  perch_ext ext{sizeof(perch_ext), 4711, 0, 0, nullptr};
  LayerConfig config = sq_layer(2, 1, PERCH_TYPE_F32);
  config.layer().next = &ext;
  EXPECT_TRUE(accepts(config, shared_runtime("reference")));
}

}  // namespace
}  // namespace perch::test
