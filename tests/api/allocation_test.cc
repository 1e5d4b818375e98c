// perch_layer_execute allocates nothing: malloc and its kin are counted, on every thread.
//
// The functions below take the place of libc's in the whole program, libperch and the backends
// included. Sanitizers bring their own, so there is nothing to count there.
#include <atomic>
#include <cerrno>

#include "../abi/shell.h"
#include "api_rig.h"
#include "base/recipe.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PERCH_COUNTS_ALLOCATIONS 1
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef PERCH_COUNTS_ALLOCATIONS
#endif
#endif
#endif

#ifdef PERCH_COUNTS_ALLOCATIONS
namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
void count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
}
}  // namespace

#define PERCH_TAKES_PLACE extern "C" __attribute__((visibility("default")))

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* __libc_calloc(size_t count, size_t bytes);
extern "C" void* __libc_realloc(void* memory, size_t bytes);
extern "C" void* __libc_memalign(size_t align, size_t bytes);

PERCH_TAKES_PLACE void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
PERCH_TAKES_PLACE void* calloc(size_t number, size_t bytes) {
  count();
  return __libc_calloc(number, bytes);
}
PERCH_TAKES_PLACE void* realloc(void* memory, size_t bytes) {
  count();
  return __libc_realloc(memory, bytes);
}
PERCH_TAKES_PLACE void* memalign(size_t align, size_t bytes) {
  count();
  return __libc_memalign(align, bytes);
}
PERCH_TAKES_PLACE void* aligned_alloc(size_t align, size_t bytes) {
  count();
  return __libc_memalign(align, bytes);
}
PERCH_TAKES_PLACE int posix_memalign(void** memory, size_t align, size_t bytes) {
  count();
  *memory = __libc_memalign(align, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
#endif

namespace perch::test {
namespace {

struct Row {
  const char* backend;
  const char* weight;
  const char* name;
};

class AllocationTest : public ::testing::TestWithParam<Row> {};

// Counts what `call` allocates; -1 where nothing can be counted.
template <typename Fn>
int64_t counted(Fn&& call) {
#ifndef PERCH_COUNTS_ALLOCATIONS
  call();
  return -1;
#else
  allocations = 0;
  counting = true;
  call();
  counting = false;
  return allocations;
#endif
}

TEST(Allocation, IsCounted) {
  void* volatile seen = nullptr;  // else the pair may be left out
  const int64_t count = counted([&] {
    seen = ::operator new(3);
    ::operator delete(seen);
  });
  if (count < 0) GTEST_SKIP() << "a sanitizer owns malloc";
  EXPECT_GE(count, 1);
  // In libperch too.
  perch_host::Runtime runtime;
  EXPECT_GT(counted([&] { runtime = runtime_of(only("reference")); }), 10);
}

TEST_P(AllocationTest, NoneInExecute) {
  LayerConfig config =
      moe_layer({6, 2, 64, 48}, PERCH_ACTIVATION_SILU, PERCH_TYPE_BF16, PERCH_TYPE_BF16);
  config.first() = config.second() = *parse_weight(GetParam().weight);
  for (const perch_caps require : {perch_caps{0}, PERCH_CAP_BATCH_INVARIANT}) {
    config.layer().require = require;
    const perch_host::Layer layer =
        build_layer(shared_runtime(GetParam().backend), config, random_experts(config, 1));
    for (const int64_t rows : {1, 64}) {
      const Call call = random_call(config, rows, 1);
      Exec exec(layer.get(), config, call);
      perch_error error = PERCH_ERROR_INIT;
      // The first call too: nothing is put off until then.
      for (int i = 0; i < 3; ++i) {
        perch_status status = PERCH_E_INTERNAL;
        const int64_t count =
            counted([&] { status = perch_layer_execute(layer.get(), &exec.args, &error); });
        EXPECT_EQ(status, PERCH_OK) << error.message;
        EXPECT_LE(count, 0) << rows << " rows, call " << i;
      }
    }
  }
}

const Row kRows[] = {{"reference", "bf16", "reference_bf16"},
                     {"reference", "int4g16:bf16+z", "reference_int4"},
                     {"humming-cpu", "bf16", "humming_cpu_bf16"},
                     {"humming-cpu", "int4g16:bf16+z", "humming_cpu_int4"}};
INSTANTIATE_TEST_SUITE_P(Backends, AllocationTest, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace perch::test
