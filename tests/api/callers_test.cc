// Field report G6 and the promises about calls: several callers at once, a host's own pool, the
// caller's floating-point state.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "api_rig.h"
#include "base/recipe.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace perch::test {
namespace {

struct Row {
  const char* backend;
  const char* weight;
  perch_caps require;
  const char* name;
};

class CallersTest : public ::testing::TestWithParam<Row> {
 protected:
  LayerConfig config() const {
    const perch_quant quant = *parse_weight(GetParam().weight);
    LayerConfig made =
        moe_layer({6, 2, 48, 40}, PERCH_ACTIVATION_SILU, PERCH_TYPE_BF16, PERCH_TYPE_BF16);
    made.first() = made.second() = quant;
    made.layer().require = GetParam().require;
    return made;
  }
};

TEST_P(CallersTest, FourThreadsOnTwoLayersAndOnASharedOneEqualSerial) {
  const LayerConfig layer_config = config();
  perch_runtime* runtime = shared_runtime(GetParam().backend);
  std::vector<perch_host::Layer> layers;
  for (uint32_t i = 0; i < 2; ++i) {
    layers.push_back(build_layer(runtime, layer_config, random_experts(layer_config, 50 * i)));
  }
  constexpr size_t kCalls = 5;
  std::vector<Call> calls;
  std::vector<Tensor> want[2];
  for (size_t c = 0; c < kCalls; ++c) {
    calls.push_back(
        random_call(layer_config, static_cast<int64_t>(c * c + 1), static_cast<uint32_t>(c)));
    for (size_t i = 0; i < 2; ++i) {
      want[i].push_back(run(layers[i].get(), layer_config, calls[c]));
    }
  }
  for (const bool shared : {false, true}) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const size_t which = shared ? 0 : t % 2;
        std::vector<Call> own = calls;  // views are made by dl(): each thread has its own
        for (size_t i = 0; i < 200; ++i) {
          const size_t c = (i + t) % kCalls;
          const Tensor y = run(layers[which].get(), layer_config, own[c]);
          if (y.bytes != want[which][c].bytes) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << (shared ? "one shared layer" : "two layers");
  }
}

// A pool that runs everything on the caller's thread, in another order each time.
struct ShuffledPool {
  std::atomic<int64_t> calls{0};
  static void parallel_for(void* self, int64_t count, void (*task)(void*, int64_t, int32_t),
                           void* arg) {
    const int64_t call = static_cast<ShuffledPool*>(self)->calls++;
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(call)));
    for (const int64_t i : order) task(arg, i, static_cast<int32_t>(i % 3));
  }
};

TEST_P(CallersTest, HostPoolGivesTheSameBytes) {
  const LayerConfig layer_config = config();
  const std::vector<TensorMap> experts = random_experts(layer_config, 9);
  ShuffledPool pool;
  const std::string yaml = only(GetParam().backend);
  perch_runtime_opts opts{};
  opts.struct_size = sizeof(opts);
  opts.num_threads = 3;
  opts.config_text = yaml.c_str();
  opts.parallel_for = ShuffledPool::parallel_for;
  opts.parallel_for_ctx = &pool;
  const perch_host::Runtime own = perch_host::make_runtime(&opts);
  EXPECT_EQ(perch_runtime_num_threads(own.get()), 3);
  const perch_host::Layer theirs = build_layer(own.get(), layer_config, experts);
  const perch_host::Layer ours =
      build_layer(shared_runtime(GetParam().backend), layer_config, experts);
  for (const int64_t rows : {1, 7, 64}) {
    const Call call = random_call(layer_config, rows, 3);
    EXPECT_EQ(run(theirs.get(), layer_config, call).bytes,
              run(ours.get(), layer_config, call).bytes)
        << rows;
  }
  const std::string backend = GetParam().backend;
  if (backend == "humming-cpu") {
    EXPECT_GT(pool.calls, 0);
  }
}

class InvariantTest : public CallersTest {};

// One row alone and among 257 gives the same bytes where that is promised, at any thread count.
TEST_P(InvariantTest, OneRowAmong257) {
  const LayerConfig layer_config = config();
  const std::vector<TensorMap> experts = random_experts(layer_config, 9);
  const Call many = random_call(layer_config, 257, 8);
  std::vector<uint8_t> first;
  for (const int32_t threads : {1, 2, 3}) {
    const perch_host::Runtime runtime = runtime_of(only(GetParam().backend), threads);
    const perch_host::Layer layer = build_layer(runtime.get(), layer_config, experts);
    const Tensor all = run(layer.get(), layer_config, many);
    if (first.empty()) first = all.bytes;
    EXPECT_EQ(all.bytes, first) << threads << " threads";
    for (const size_t row : {size_t{0}, size_t{100}, size_t{256}}) {
      Call one;
      one.x = empty_tensor(many.x.dtype, {1, 48});
      one.ids = empty_tensor(many.ids.dtype, {1, 2});
      one.weights = empty_tensor(many.weights.dtype, {1, 2});
      std::memcpy(one.x.bytes.data(), &many.x.bytes[row * 96], 96);
      std::memcpy(one.ids.bytes.data(), &many.ids.bytes[row * 8], 8);
      std::memcpy(one.weights.bytes.data(), &many.weights.bytes[row * 8], 8);
      const Tensor alone = run(layer.get(), layer_config, one);
      EXPECT_EQ(std::memcmp(alone.bytes.data(), &all.bytes[row * 96], 96), 0) << row;
    }
  }
}

// A row with a NaN or an infinity gives NaN there and touches no other row.
TEST_P(CallersTest, NanInARowStaysInIt) {
  const LayerConfig layer_config = config();
  const perch_host::Layer layer = build_layer(shared_runtime(GetParam().backend), layer_config,
                                              random_experts(layer_config, 9));
  for (const int64_t rows : {3, 40}) {
    const Call call = random_call(layer_config, rows, 3);
    const Tensor want = run(layer.get(), layer_config, call);
    for (const uint16_t odd : {uint16_t{0x7FC0}, uint16_t{0x7F80}}) {
      Call spoiled = call;
      std::memcpy(&spoiled.x.bytes[96 + 10], &odd, sizeof(odd));
      const Tensor y = run(layer.get(), layer_config, spoiled);
      const std::vector<float> values = to_floats(y);
      for (size_t c = 48; c < 96; ++c) EXPECT_FALSE(std::isfinite(values[c])) << c;
      EXPECT_EQ(std::memcmp(y.bytes.data(), want.bytes.data(), 96), 0);
      EXPECT_EQ(std::memcmp(&y.bytes[192], &want.bytes[192], y.bytes.size() - 192), 0);
    }
  }
}

#if defined(__SSE__)
// Flush-to-zero and rounding up of the caller: without effect on results, and still there after.
TEST_P(CallersTest, FloatStateOfTheCaller) {
  const LayerConfig layer_config = config();
  const perch_host::Layer layer = build_layer(shared_runtime(GetParam().backend), layer_config,
                                              random_experts(layer_config, 9));
  const Call call = random_call(layer_config, 5, 3);
  const Tensor want = run(layer.get(), layer_config, call);
  Exec exec(layer.get(), layer_config, call);
  const unsigned saved = _mm_getcsr();
  const unsigned odd = 0x1f80U | 0x8000U | 0x0040U | 0x4000U;  // FTZ, DAZ, round up
  _mm_setcsr(odd);
  const perch_status status = perch_layer_execute(layer.get(), &exec.args, nullptr);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(status, PERCH_OK);
  EXPECT_EQ(after & ~0x3FU, odd) << "without the exception flags";
  EXPECT_EQ(exec.y.bytes, want.bytes);
}
#endif

const Row kRows[] = {
    {"reference", "bf16", PERCH_CAP_BATCH_INVARIANT, "reference_bf16"},
    {"humming-cpu", "bf16", PERCH_CAP_BATCH_INVARIANT, "humming_cpu_bf16_ordered"},
    {"humming-cpu", "int4g8:bf16+z", PERCH_CAP_BATCH_INVARIANT, "humming_cpu_int4_ordered"},
};
const Row kSplitRows[] = {
    {"humming-cpu", "bf16", 0, "humming_cpu_bf16_split"},
    {"humming-cpu", "int4g8:bf16+z", 0, "humming_cpu_int4_split"},
};
std::string name_of(const ::testing::TestParamInfo<Row>& row) { return row.param.name; }
INSTANTIATE_TEST_SUITE_P(Invariant, CallersTest, ::testing::ValuesIn(kRows), name_of);
INSTANTIATE_TEST_SUITE_P(Split, CallersTest, ::testing::ValuesIn(kSplitRows), name_of);
INSTANTIATE_TEST_SUITE_P(Invariant, InvariantTest, ::testing::ValuesIn(kRows), name_of);

}  // namespace
}  // namespace perch::test
