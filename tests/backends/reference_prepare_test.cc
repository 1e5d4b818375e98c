// Weights on their way into the reference, and calls of every form.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend_harness.h"
#include "random_layer.h"

namespace perch::test {
namespace {

const char kLibrary[] = PERCH_BUILD_DIR "/lib/perch/backends/libperch_reference.so";

// int4 group 8 with zeros, g_idx, bias, pre_scale; act2 in int8 per token.
LayerConfig rich_moe(uint32_t form = PERCH_FORM_STANDARD) {
  perch_quant quant = make_quant(PERCH_TYPE_INT4);
  quant.scale_kind = PERCH_SCALE_GROUP;
  quant.scale_dtype = PERCH_TYPE_F16;
  quant.group_k = 8;
  quant.zero_kind = PERCH_ZERO_INT;
  quant.k_order = PERCH_K_G_IDX;
  quant.flags = PERCH_QUANT_HAS_BIAS | PERCH_QUANT_HAS_PRE_SCALE;
  LayerConfig config = LayerConfig::make_moe("rich", quant, quant);
  config.layer().max_tokens = 64;
  perch_moe_config& moe = config.moe();
  moe.form = form;
  moe.num_experts = moe.num_experts_global = 4;
  moe.topk = 3;
  moe.hidden = 33;
  moe.intermediate = 21;
  moe.activation = PERCH_ACTIVATION_SILU;
  perch_act_quant act = make_act_none();
  act.dtype = PERCH_TYPE_INT8;
  act.mode = PERCH_ACT_TOKEN;
  act.scale_dtype = PERCH_TYPE_F32;
  config.act_second() = act;
  return config;
}

std::vector<TensorMap> random_experts(const LayerConfig& config, uint32_t seed) {
  std::vector<TensorMap> experts;
  for (uint32_t e = 0; e < config.moe().num_experts; ++e) {
    experts.push_back(random_tensors(config, seed + e));
  }
  return experts;
}

Call random_call(const LayerConfig& config, int64_t tokens, uint32_t seed) {
  std::mt19937 rng(seed);
  Call call;
  call.x = random_floats(config.abi().in_dtype, {tokens, config.columns(0)}, -1, 1, rng);
  const int64_t topk = config.moe().topk;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens * topk; ++i) {
    ids.push_back(static_cast<int32_t>(rng() % config.moe().num_experts));
  }
  call.ids = i32({tokens, topk}, ids);
  call.weights = random_floats(PERCH_TYPE_F32, {tokens, topk}, 0, 1, rng);
  return call;
}

struct Bench {
  explicit Bench(const LayerConfig& config, uint32_t seed = 1)
      : harness(kLibrary), layer(harness, config) {
    harness.prepare(random_experts(config, seed), &layer);
    EXPECT_TRUE(layer.ok()) << layer.message;
  }
  std::vector<uint8_t> run(const Call& call) const {
    const Result result = layer.run(call);
    EXPECT_EQ(result.status, PERCH_OK) << result.message;
    return result.y.bytes;
  }
  BackendHarness harness;
  Layer layer;
};

// Prepares expert 0 .. with `change` made to the last one; returns the message, "" if it worked.
std::string refusal(const LayerConfig& config, const std::function<void(TensorMap&)>& change) {
  BackendHarness harness(kLibrary);
  std::vector<TensorMap> experts = random_experts(config, 1);
  change(experts.back());
  Layer layer(harness, config);
  harness.prepare(experts, &layer);
  EXPECT_EQ(layer.status, layer.ok() ? PERCH_OK : PERCH_E_INVALID_ARGUMENT);
  return layer.message;
}

TEST(ReferencePrepare, NamesTheTensor) {
  const LayerConfig config = rich_moe();
  EXPECT_EQ(refusal(config, [](TensorMap&) {}), "");
  for (const TensorSpec& spec : tensor_specs(config)) {
    const std::string quoted = "'" + spec.name + "'";
    const std::string missing = refusal(config, [&](TensorMap& t) { t.erase(spec.name); });
    EXPECT_NE(missing.find(quoted + " is missing"), std::string::npos) << missing;
    const std::string shape = refusal(config, [&](TensorMap& t) {
      Tensor& tensor = t[spec.name];
      std::vector<int64_t> longer = tensor.shape;
      longer[0] += 1;
      tensor = empty_tensor(tensor.dtype, longer);
    });
    EXPECT_NE(shape.find(quoted + ": want shape"), std::string::npos) << shape;
    const std::string dtype = refusal(config, [&](TensorMap& t) {
      t[spec.name].dtype = {kDLInt, 16, 1};
    });
    EXPECT_NE(dtype.find(quoted + ": want "), std::string::npos) << dtype;
  }
  const std::string extra = refusal(config, [](TensorMap& t) { t["w13.foo"] = f32({1}, {1}); });
  EXPECT_NE(extra.find("'w13.foo'"), std::string::npos) << extra;
  const std::string group = refusal(config, [](TensorMap& t) { t["w2.g_idx"].bytes[0] = 3; });
  EXPECT_NE(group.find("'w2.g_idx': group 3"), std::string::npos) << group;
  const std::string zero = refusal(config, [](TensorMap& t) { t["w2.zero"].bytes[0] = 16; });
  EXPECT_NE(zero.find("w2.zero"), std::string::npos) << zero;
}

TEST(ReferencePrepare, NanCodesNeedPermission) {
  LayerConfig config = LayerConfig::make_linear("l", 2, 3, make_quant(PERCH_TYPE_E4M3FN));
  config.first().scale_kind = PERCH_SCALE_CHANNEL;
  config.first().scale_dtype = PERCH_TYPE_E8M0;
  for (const std::string name : {"w", "w.scale"}) {
    for (const bool allowed : {false, true}) {
      config.layer().flags = allowed ? PERCH_LAYER_ALLOW_NAN : 0;
      TensorMap tensors = random_tensors(config, 3);
      tensors[name].bytes[1] = 0xFF;
      BackendHarness harness(kLibrary);
      Layer layer(harness, config);
      harness.prepare({tensors}, &layer);
      EXPECT_EQ(layer.ok(), allowed);
      EXPECT_EQ(layer.message.find("'" + name + "'") == std::string::npos, allowed);
    }
  }
}

TEST(ReferencePrepare, D3InputScales) {
  LayerConfig config = LayerConfig::make_linear("l", 2, 3, make_quant(PERCH_TYPE_F32));
  config.act_first().dtype = PERCH_TYPE_INT8;
  config.act_first().mode = PERCH_ACT_STATIC;
  config.act_first().scale_dtype = PERCH_TYPE_F32;
  for (const float scale : {0.0f, -1.0f, 1e-40f, std::nanf(""), INFINITY}) {
    TensorMap tensors = random_tensors(config, 3);
    tensors["w.input_scale"] = f32({1}, {scale});
    BackendHarness harness(kLibrary);
    Layer layer(harness, config);
    harness.prepare({tensors}, &layer);
    EXPECT_NE(layer.message.find("'w.input_scale'"), std::string::npos) << scale;
  }
}

TEST(ReferencePrepare, ExpertsAreCounted) {
  const LayerConfig config = rich_moe();
  BackendHarness harness(kLibrary);
  std::vector<TensorMap> experts = random_experts(config, 1);
  experts.pop_back();
  Layer layer(harness, config);
  harness.prepare(experts, &layer);
  EXPECT_EQ(layer.message, "expert 3 of 4 is missing");
  experts.resize(5, experts[0]);
  Layer more(harness, config);
  harness.prepare(experts, &more);
  EXPECT_EQ(more.message, "expert 4, want 0..3");
}

TEST(ReferencePrepare, AFailedAllocationLeavesNothing) {
  const LayerConfig config = rich_moe();
  const std::vector<TensorMap> experts = random_experts(config, 1);
  BackendHarness harness(kLibrary);
  for (int64_t fail = 1;; ++fail) {
    harness.host.fail_allocation = fail;
    Layer layer(harness, config);
    harness.prepare(experts, &layer);
    if (layer.ok()) break;
    EXPECT_EQ(layer.status, PERCH_E_OUT_OF_MEMORY);
    EXPECT_EQ(harness.host.live_bytes, 0);
    ASSERT_LT(fail, 1000);
  }
}

TEST(ReferenceUpdate, ReplacesOneExpertOrNothing) {
  const LayerConfig config = rich_moe();
  Bench bench(config, 1);
  const Call call = random_call(config, 5, 9);
  const std::vector<uint8_t> before = bench.run(call);
  std::vector<TensorMap> other = random_experts(config, 50);

  TensorMap bad = other[2];
  bad["w2.g_idx"].bytes[0] = 0xFF;
  EXPECT_EQ(bench.layer.update(2, bad), PERCH_E_INVALID_ARGUMENT);
  bad = other[2];
  bad["extra"] = f32({1}, {1});
  EXPECT_EQ(bench.layer.update(2, bad), PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(bench.layer.update(4, other[0]), PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(bench.run(call), before);
  bench.harness.host.fail_allocation = 3;
  EXPECT_EQ(bench.layer.update(2, other[2]), PERCH_E_OUT_OF_MEMORY);
  bench.harness.host.fail_allocation = 0;
  EXPECT_EQ(bench.run(call), before);

  const int64_t bytes = bench.harness.host.live_bytes;
  EXPECT_EQ(bench.layer.update(2, other[2]), PERCH_OK);
  EXPECT_EQ(bench.harness.host.live_bytes, bytes);
  EXPECT_NE(bench.run(call), before);
  for (const int32_t e : {0, 1, 3}) {
    EXPECT_EQ(bench.layer.update(e, other[static_cast<size_t>(e)]), PERCH_OK);
  }
  EXPECT_EQ(bench.run(call), Bench(config, 50).run(call));
}

TEST(ReferenceRun, BatchedAndGroupedAreTheRowsOfStandard) {
  const LayerConfig standard = rich_moe();
  const LayerConfig batched = rich_moe(PERCH_FORM_BATCHED);
  const LayerConfig grouped = rich_moe(PERCH_FORM_GROUPED);
  std::mt19937 rng(4);
  const std::vector<int64_t> counts{2, 0, 3, 1};
  Call by_expert;
  by_expert.x = random_floats(PERCH_TYPE_BF16, {4, 3, 33}, -1, 1, rng);
  by_expert.counts = i64({4}, counts);
  const Bench batched_bench(batched);
  const std::vector<uint8_t> y = batched_bench.run(by_expert);
  by_expert.counts = i32({4}, {2, 0, 3, 1});
  EXPECT_EQ(batched_bench.run(by_expert), y);

  const Bench standard_bench(standard);
  const size_t row_bytes = 33 * 2;
  Call sorted;
  sorted.x = empty_tensor({kDLBfloat, 16, 1}, {8, 33});  // two rows more than are routed
  sorted.offsets = i64({5}, {0, 2, 2, 5, 6});
  std::vector<uint8_t> sorted_y;
  for (size_t e = 0; e < 4; ++e) {
    for (size_t t = 0; t < 3; ++t) {
      const auto row = static_cast<int64_t>((3 * e + t) * row_bytes);
      const std::vector<uint8_t> got(y.begin() + row, y.begin() + row + 66);
      if (static_cast<int64_t>(t) >= counts[e]) {
        EXPECT_EQ(got, std::vector<uint8_t>(row_bytes, 0xFF));
        continue;
      }
      Call one;
      one.x = empty_tensor({kDLBfloat, 16, 1}, {1, 33});
      std::copy_n(by_expert.x.bytes.begin() + row, row_bytes, one.x.bytes.begin());
      one.ids = i32({1, 3}, {static_cast<int32_t>(e), -1, -1});
      one.weights = f32({1, 3}, {1, 1, 1});
      EXPECT_EQ(standard_bench.run(one), got);
      std::copy_n(one.x.bytes.begin(), row_bytes,
                  sorted.x.bytes.begin() + static_cast<int64_t>(sorted_y.size()));
      sorted_y.insert(sorted_y.end(), got.begin(), got.end());
    }
  }
  sorted_y.resize(8 * row_bytes, 0xFF);
  EXPECT_EQ(Bench(grouped).run(sorted), sorted_y);
}

TEST(ReferenceRun, RowsMayLieApart) {
  const LayerConfig config = rich_moe();
  const Bench bench(config);
  const Call call = random_call(config, 4, 2);
  const std::vector<uint8_t> dense = bench.run(call);
  Call apart = call;
  apart.x = empty_tensor({kDLBfloat, 16, 1}, {4, 40});
  apart.x.shape[1] = 33;
  apart.y_row_padding = 5;
  for (int64_t t = 0; t < 4; ++t) {
    std::copy_n(call.x.bytes.begin() + t * 66, 66, apart.x.bytes.begin() + t * 80);
  }
  const std::vector<uint8_t> y = bench.run(apart);
  for (int64_t t = 0; t < 4; ++t) {
    const auto row = y.begin() + t * 76;
    EXPECT_TRUE(std::equal(row, row + 66, dense.begin() + t * 66));
    EXPECT_EQ(std::vector<uint8_t>(row + 66, row + 76), std::vector<uint8_t>(10, 0xFF));
  }
}

TEST(ReferenceRun, SameBitsAloneInACrowdAndOnManyThreads) {
  const LayerConfig config = rich_moe();
  Bench bench(config);
  const Call call = random_call(config, 17, 3);
  const std::vector<uint8_t> all = bench.run(call);
  for (int64_t t = 0; t < 17; ++t) {
    Call one = call;
    one.x = empty_tensor({kDLBfloat, 16, 1}, {1, 33});
    std::copy_n(call.x.bytes.begin() + t * 66, 66, one.x.bytes.begin());
    one.ids = empty_tensor(call.ids.dtype, {1, 3});
    std::copy_n(call.ids.bytes.begin() + t * 12, 12, one.ids.bytes.begin());
    one.weights = empty_tensor(call.weights.dtype, {1, 3});
    std::copy_n(call.weights.bytes.begin() + t * 12, 12, one.weights.bytes.begin());
    const auto row = all.begin() + t * 66;
    EXPECT_EQ(bench.run(one), std::vector<uint8_t>(row, row + 66)) << t;
  }
  bench.harness.host.reversed = true;
  EXPECT_EQ(bench.run(call), all);
  bench.harness.host.real_threads = true;
  for (const int32_t threads : {1, 2, 3, 5, 8}) {
    bench.harness.host.threads = threads;
    EXPECT_EQ(bench.run(call), all) << threads;
  }
}

TEST(ReferenceRun, ManyCallersOnOneLayerWithoutAllocation) {
  const LayerConfig config = rich_moe();
  Bench bench(config);
  const Call call = random_call(config, 6, 3);
  const std::vector<uint8_t> want = bench.run(call);
  const int64_t allocations = bench.harness.host.allocations;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      const Call own = call;  // a Tensor makes its view in place
      for (int round = 0; round < 20; ++round) EXPECT_EQ(bench.layer.run(own).y.bytes, want);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(bench.harness.host.allocations, allocations);
}

}  // namespace
}  // namespace perch::test
