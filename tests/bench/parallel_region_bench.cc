// What a parallel region costs: the pool beside OpenMP and pthreadpool.
//
// Not a test: it passes whatever the numbers are. OpenMP is measured when built with -fopenmp, and
// pthreadpool when PERCH_BENCH_PTHREADPOOL is defined and the library linked. OMP_WAIT_POLICY is
// read by the OpenMP runtime at start, so each policy is a run of its own. Every benchmark is
// <region>/<library>/<threads>.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#ifdef PERCH_BENCH_PTHREADPOOL
#include <pthreadpool.h>
#endif

#include "run/thread_pool.h"

namespace perch {
namespace {

using Loop = void (*)(void* pool, int threads, int64_t n, ThreadPool::Task task, void* arg);

struct Library {
  const char* name;
  std::shared_ptr<void> (*make)(int threads);
  Loop loop;
};

void own_loop(void* pool, int, int64_t n, ThreadPool::Task task, void* arg) {
  static_cast<ThreadPool*>(pool)->parallel_for(n, task, arg);
}

#ifdef _OPENMP
void openmp_loop(void*, int threads, int64_t n, ThreadPool::Task task, void* arg) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < n; ++i) task(arg, i, 0);
}
#endif

#ifdef PERCH_BENCH_PTHREADPOOL
struct Call {
  ThreadPool::Task task;
  void* arg;
};
void pthreadpool_loop(void* pool, int, int64_t n, ThreadPool::Task task, void* arg) {
  Call call{task, arg};
  pthreadpool_parallelize_1d(
      static_cast<pthreadpool_t>(pool),
      [](void* c, size_t i) {
        static_cast<Call*>(c)->task(static_cast<Call*>(c)->arg, static_cast<int64_t>(i), 0);
      },
      &call, static_cast<size_t>(n), 0);
}
#endif

const Library kLibraries[] = {
    {"own",
     [](int threads) -> std::shared_ptr<void> { return std::make_shared<ThreadPool>(threads); },
     own_loop},
#ifdef _OPENMP
    {"openmp", [](int) { return std::shared_ptr<void>(); }, openmp_loop},
#endif
#ifdef PERCH_BENCH_PTHREADPOOL
    {"pthreadpool",
     [](int threads) {
       return std::shared_ptr<void>(
           pthreadpool_create(static_cast<size_t>(threads)),
           [](void* pool) { pthreadpool_destroy(static_cast<pthreadpool_t>(pool)); });
     },
     pthreadpool_loop},
#endif
};

void empty_task(void*, int64_t, int32_t) {}

// A chain of dependent multiplications, so that its time is a property of the core: 1000 steps are
// about 1 us. No memory is shared between tasks.
void busy_task(void* arg, int64_t, int32_t) {
  double x = 1.0;
  for (int64_t i = 0; i < *static_cast<int64_t*>(arg); ++i) x *= 1.0000001;
  benchmark::DoNotOptimize(x);
}

struct Region {
  const char* name;
  int64_t tasks_per_thread;
  int64_t steps;    // of busy_task; 0: the empty task
  int64_t idle_us;  // between regions, not timed
};
// `empty` is the cost of asking, `split` of having the other threads take their share, `many` of
// handing out small tasks, `pause` and `asleep` of the first region after 0.2 and 5 ms.
constexpr Region kRegions[] = {
    {"empty", 1, 0, 0},          {"split_2us", 1, 2000, 0},     {"split_20us", 1, 20000, 0},
    {"many_100ns", 500, 100, 0}, {"pause_20us", 1, 20000, 200}, {"asleep_20us", 1, 20000, 5000},
};

void run_region(benchmark::State& state, const Library& library, const Region& region,
                int threads) {
  const std::shared_ptr<void> pool = library.make(threads);
  int64_t steps = region.steps;
  const ThreadPool::Task task = steps == 0 ? empty_task : busy_task;
  for (auto _ : state) {
    if (region.idle_us == 0) {
      library.loop(pool.get(), threads, region.tasks_per_thread * threads, task, &steps);
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(region.idle_us));
    const auto start = std::chrono::steady_clock::now();
    library.loop(pool.get(), threads, region.tasks_per_thread * threads, task, &steps);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(spent.count());
  }
}

void register_all() {
  for (const Region& region : kRegions) {
    for (const Library& library : kLibraries) {
      for (int threads : {1, 2, 8}) {
        const std::string name =
            std::string(region.name) + "/" + library.name + "/" + std::to_string(threads);
        auto* bench = benchmark::RegisterBenchmark(
            name.c_str(), [&library, &region, threads](benchmark::State& state) {
              run_region(state, library, region, threads);
            });
        if (region.idle_us == 0) {
          bench->UseRealTime();
        } else {
          bench->UseManualTime()->Iterations(100);
        }
      }
    }
  }
}

}  // namespace
}  // namespace perch

int main(int argc, char** argv) {
  perch::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
