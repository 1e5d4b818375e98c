// objects.h - what is behind the ABI's opaque pointers, and how work reaches the host's threads.
#pragma once

#include <atomic>
#include <memory>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "arena.h"
#include "perch/backend.h"
#include "plan.h"

struct perch_backend {
  const perch_host_api* host;
  humming_cpu::Isa isa;
};

// Weights on their way in. Experts may be put from several threads: each has its own flag and its
// own part of the arena.
struct perch_builder {
  const perch_host_api* host;
  humming_cpu::LayerPlan plan;
  humming_cpu::Arena arena;
  std::unique_ptr<std::atomic<bool>[]> present;
};

// Only update() changes one after it was made, so any number of calls may run at once.
struct perch_prepared {
  const perch_host_api* host;
  humming_cpu::LayerPlan plan;
  humming_cpu::Arena arena;
};

namespace humming_cpu {

// Round to nearest, no flushing, all exceptions masked: a host's threads may come in any state, and
// the result must not depend on which of them took a task.
class DefaultFloatState {
 public:
#if defined(__SSE__)
  DefaultFloatState() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatState() { _mm_setcsr(saved_); }
#else
  DefaultFloatState() {}
  ~DefaultFloatState() {}
#endif
  DefaultFloatState(const DefaultFloatState&) = delete;
  DefaultFloatState& operator=(const DefaultFloatState&) = delete;

 private:
#if defined(__SSE__)
  unsigned saved_;
#endif
};

// Runs task(index) for 0..count-1, on the host's threads where there is more than one task. `task`
// must not throw.
template <class Task>
void for_each(const perch_host_api& host, int64_t count, const Task& task) {
  if (count == 1) {
    const DefaultFloatState state;
    task(int64_t{0});
    return;
  }
  const auto run = [](void* arg, int64_t index, int32_t) {
    const DefaultFloatState state;
    (*static_cast<const Task*>(arg))(index);
  };
  if (count > 0) host.parallel_for(host.ctx, count, run, const_cast<Task*>(&task));
}

// Cuts `items` into blocks of at least `block`; task(begin, end).
template <class Task>
void for_blocks(const perch_host_api& host, int64_t items, int64_t block, const Task& task) {
  for_each(host, (items + block - 1) / block, [&](int64_t index) {
    const int64_t begin = index * block;
    task(begin, begin + block < items ? begin + block : items);
  });
}

}  // namespace humming_cpu
