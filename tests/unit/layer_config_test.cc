// LayerConfig as an owned copy of what a caller lent, and hostile structs that its rules must get
// through. The rules one by one: config_rules_test.cc.
#include "base/layer_config.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/config_rules.h"

namespace perch {
namespace {

LayerConfig small_moe() {
  LayerConfig config =
      LayerConfig::make_moe("moe", make_quant(PERCH_TYPE_BF16), make_quant(PERCH_TYPE_BF16));
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = 2;
  moe.topk = 1;
  moe.hidden = moe.intermediate = 8;
  moe.activation = PERCH_ACTIVATION_SILU;
  return config;
}

// What a host of later headers sends: the known fields, and eight bytes of a new one.
template <typename T>
struct Newer {
  explicit Newer(const T& value) : known(value) { known.struct_size = sizeof(*this); }
  T known;
  uint64_t field = 0;
};

TEST(LayerConfig, CopyIsOfTheseHeadersAndKeepsNoExtension) {
  const perch_ext skippable = {sizeof(perch_ext), 10000, 0, 0, nullptr};
  LayerConfig given = small_moe();
  Newer<perch_quant> quant(given.first());
  quant.known.next = &skippable;
  Newer<perch_act_quant> act(given.act_first());
  act.known.next = &skippable;
  Newer<perch_moe_config> moe(given.moe());
  moe.known.w13 = moe.known.w2 = &quant.known;
  moe.known.act13 = moe.known.act2 = &act.known;
  moe.known.next = &skippable;
  Newer<perch_layer_config> layer(given.abi());
  layer.known.moe = &moe.known;
  layer.known.next = &skippable;
  ASSERT_EQ(breach_status(check_layer_config(layer.known)).message(), "");

  const LayerConfig copy(layer.known);
  const perch_layer_config& abi = copy.abi();
  EXPECT_EQ(abi.struct_size, sizeof(perch_layer_config));
  EXPECT_EQ(abi.next, nullptr);
  EXPECT_EQ(abi.moe->struct_size, sizeof(perch_moe_config));
  EXPECT_EQ(abi.moe->next, nullptr);
  EXPECT_EQ(abi.moe->hidden, 8);
  for (const perch_quant* own : {abi.moe->w13, abi.moe->w2}) {
    EXPECT_EQ(own->struct_size, sizeof(perch_quant));
    EXPECT_EQ(own->next, nullptr);
    EXPECT_EQ(own->weight, PERCH_TYPE_BF16);
  }
  for (const perch_act_quant* own : {abi.moe->act13, abi.moe->act2}) {
    EXPECT_EQ(own->struct_size, sizeof(perch_act_quant));
    EXPECT_EQ(own->next, nullptr);
  }
}

TEST(LayerConfig, RulesReadNothingOfAStructOfGarbageSize) {
  // Nothing behind the number: the address sanitizer sees a read of more.
  const auto size = std::make_unique<uint32_t>(0xFFFFFFFF);
  LayerConfig config = small_moe();
  perch_moe_config moe = config.moe();
  moe.w13 = reinterpret_cast<const perch_quant*>(size.get());
  perch_layer_config layer = config.abi();
  layer.moe = &moe;
  const std::vector<RuleBreach> breaches = check_layer_config(layer);
  ASSERT_EQ(breaches.size(), 1u);
  EXPECT_EQ(breaches[0].field, "moe.w13.struct_size");
  EXPECT_EQ(breaches[0].code, PERCH_E_ABI_MISMATCH);
}

TEST(LayerConfig, RulesTakeAnyIntermediate) {
  LayerConfig config = small_moe();
  for (const int64_t intermediate :
       {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), int64_t{0}}) {
    config.moe().intermediate = intermediate;
    const std::vector<RuleBreach> breaches = check_layer_config(config.abi());
    ASSERT_FALSE(breaches.empty()) << intermediate;
    EXPECT_EQ(breaches[0].field, "moe.intermediate");
  }
}

}  // namespace
}  // namespace perch
