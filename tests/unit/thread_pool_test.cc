// ThreadPool: each index once, tids, nesting, several callers, sleeping and waking, the state
// workers run in. What it costs is in tests/bench/parallel_region_bench.cc.
#include "run/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace perch {
namespace {

// parallel_for with a callable, for tests only.
template <typename F>
void run(ThreadPool& pool, int64_t n, F task) {
  pool.parallel_for(
      n, [](void* f, int64_t index, int32_t tid) { (*static_cast<F*>(f))(index, tid); }, &task);
}

// Returns when `count` tasks are inside at the same time. Tasks of the product never wait for each
// other; here it is how a test makes sure that every thread takes part.
void wait_for_all(std::atomic<int>& arrived, int count) {
  arrived.fetch_add(1);
  while (arrived.load() < count) std::this_thread::yield();
}

struct Shape {
  int threads;
  int64_t n;
};

class EachIndexOnce : public testing::TestWithParam<Shape> {};

TEST_P(EachIndexOnce, AndResultsVisible) {
  const auto [threads, n] = GetParam();
  ThreadPool pool(threads);
  ASSERT_EQ(pool.num_threads(), threads);
  std::vector<int> runs(static_cast<size_t>(n), 0);  // not atomic: one task writes one element
  for (int repeat = 1; repeat <= 20; ++repeat) {
    run(pool, n, [&](int64_t index, int32_t) { ++runs[static_cast<size_t>(index)]; });
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(runs[static_cast<size_t>(i)], repeat) << i;
  }
}

std::vector<Shape> shapes() {
  std::vector<Shape> result;
  for (int threads : {1, 2, 3, 5, 8}) {
    for (int64_t n : {0, 1, 2, 3, 7, 64, 1000}) result.push_back({threads, n});
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(ThreadPool, EachIndexOnce, testing::ValuesIn(shapes()),
                         [](const testing::TestParamInfo<Shape>& shape) {
                           return "t" + std::to_string(shape.param.threads) + "_n" +
                                  std::to_string(shape.param.n);
                         });

// Fails the test if two tasks with one tid are ever inside at once.
class TidGuard {
 public:
  explicit TidGuard(int threads)
      : threads_(threads), busy_(new std::atomic<bool>[static_cast<size_t>(threads)]()) {}
  void enter(int32_t tid) {
    if (tid < 0 || tid >= threads_ || busy_[static_cast<size_t>(tid)].exchange(true)) {
      failures_.fetch_add(1);
    }
  }
  void leave(int32_t tid) { busy_[static_cast<size_t>(tid)].store(false); }
  int failures() const { return failures_.load(); }

 private:
  int threads_;
  std::unique_ptr<std::atomic<bool>[]> busy_;
  std::atomic<int> failures_{0};
};

TEST(ThreadPool, TidsAreUniqueAmongRunningTasks) {
  for (int threads : {1, 2, 3, 5, 8}) {
    ThreadPool pool(threads);
    TidGuard guard(threads);
    for (int repeat = 0; repeat < 50; ++repeat) {
      run(pool, 200, [&](int64_t, int32_t tid) {
        guard.enter(tid);
        guard.leave(tid);
      });
    }
    EXPECT_EQ(guard.failures(), 0) << threads;
  }
}

TEST(ThreadPool, AllThreadsWorkAtOnce) {
  for (int threads : {1, 2, 3, 5, 8}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::atomic<int> arrived{0};
      std::vector<int> runs(static_cast<size_t>(threads), 0);
      run(pool, threads, [&](int64_t, int32_t tid) {
        wait_for_all(arrived, threads);
        ++runs[static_cast<size_t>(tid)];
      });
      EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(threads), 1));
    }
  }
}

TEST(ThreadPool, CallerIsTidZero) {
  ThreadPool pool(3);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> arrived{0};
  std::atomic<int> wrong{0};
  run(pool, 3, [&](int64_t, int32_t tid) {
    wait_for_all(arrived, 3);
    if ((std::this_thread::get_id() == caller) != (tid == 0)) wrong.fetch_add(1);
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPool, NestedCallRunsInOrderOnItsTid) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::atomic<int> wrong{0};
    std::atomic<int> inner_runs{0};
    run(pool, 16, [&](int64_t, int32_t outer_tid) {
      const std::thread::id self = std::this_thread::get_id();
      int64_t expected = 0;
      run(pool, 10, [&](int64_t index, int32_t tid) {
        if (tid != outer_tid || index != expected++ || std::this_thread::get_id() != self) {
          wrong.fetch_add(1);
        }
        inner_runs.fetch_add(1);
      });
    });
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(inner_runs.load(), 160);
    run(pool, 16, [&](int64_t, int32_t) { inner_runs.fetch_add(1); });
    EXPECT_EQ(inner_runs.load(), 176) << "the pool must be whole after nesting";
  }
}

TEST(ThreadPool, TaskMayUseAnotherPoolAndNestInBoth) {
  ThreadPool outer(2);
  ThreadPool inner(3);
  std::atomic<int> runs{0};
  run(outer, 8, [&](int64_t, int32_t) {
    run(inner, 5,
        [&](int64_t, int32_t) { run(inner, 3, [&](int64_t, int32_t) { runs.fetch_add(1); }); });
  });
  EXPECT_EQ(runs.load(), 8 * 5 * 3);
}

TEST(ThreadPool, FourCallersAtOnce) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    TidGuard guard(threads);
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&, caller] {
        for (int repeat = 0; repeat < 200; ++repeat) {
          const int n = caller * 7 + repeat % 5;
          std::vector<int> runs(static_cast<size_t>(n), 0);
          run(pool, n, [&](int64_t index, int32_t tid) {
            guard.enter(tid);
            ++runs[static_cast<size_t>(index)];
            std::this_thread::yield();  // lets another caller in, were there a way
            guard.leave(tid);
          });
          if (runs != std::vector<int>(static_cast<size_t>(n), 1)) wrong.fetch_add(1);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(guard.failures(), 0);
  }
}

// Asks the kernel, so that the test need not guess how long to wait.
int sleeping_workers() {
  int sleeping = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t name = stat.find("(perch-");
    const size_t state = stat.rfind(") ");
    if (name != std::string::npos && stat.compare(state, 3, ") S") == 0) ++sleeping;
  }
  return sleeping;
}

TEST(ThreadPool, SleepsWhenIdleAndWakesForWork) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  for (int repeat = 0; repeat < 5; ++repeat) {
    while (sleeping_workers() < kThreads - 1) std::this_thread::yield();
    std::atomic<int> arrived{0};
    run(pool, kThreads, [&](int64_t, int32_t) { wait_for_all(arrived, kThreads); });
    EXPECT_EQ(arrived.load(), kThreads);
  }
}

TEST(ThreadPool, CallerSleepsUntilALongTaskOfAWorkerIsDone) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  std::atomic<bool> done{false};
  run(pool, 2, [&](int64_t, int32_t tid) {
    wait_for_all(arrived, 2);
    if (tid == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done.store(true);
  });
  EXPECT_TRUE(done.load());
}

TEST(ThreadPool, CreatedAndDestroyedAtAnyMoment) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    ThreadPool pool(1 + repeat % 8);
    std::atomic<int> runs{0};
    if (repeat % 3 != 0) run(pool, 9, [&](int64_t, int32_t) { runs.fetch_add(1); });
    EXPECT_EQ(runs.load(), repeat % 3 != 0 ? 9 : 0);
  }
}

TEST(ThreadPool, WorkersRunInTheDefaultFloatingPointState) {
  constexpr int kThreads = 3;
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);  // flush to zero, denormals are zero
#endif
  std::fesetround(FE_UPWARD);
  ThreadPool pool(kThreads);
  std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
  _mm_setcsr(before);
#endif
  std::atomic<int> arrived{0};
  std::atomic<int> wrong{0};
  run(pool, kThreads, [&](int64_t, int32_t tid) {
    wait_for_all(arrived, kThreads);
    if (tid == 0) return;
    if (std::fegetround() != FE_TONEAREST) wrong.fetch_add(1);
#if defined(__x86_64__)
    if ((_mm_getcsr() & ~0x3fu) != 0x1f80u) wrong.fetch_add(1);  // 0x3f: the sticky flags
#endif
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPool, SignalsOfTheHostAreNotTakenByWorkers) {
  constexpr int kThreads = 2;
  ThreadPool pool(kThreads);
  std::atomic<int> arrived{0};
  std::atomic<int> wrong{0};
  run(pool, kThreads, [&](int64_t, int32_t tid) {
    wait_for_all(arrived, kThreads);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    const int blocked = tid == 0 ? 0 : 1;
    if (sigismember(&mask, SIGINT) != blocked) wrong.fetch_add(1);
    if (sigismember(&mask, SIGSEGV) != 0) wrong.fetch_add(1);
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPoolDeathTest, WrongProgramStops) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(ThreadPool(0), "num_threads >= 1");
  EXPECT_DEATH(ThreadPool(1).parallel_for(1, nullptr, nullptr), "task != nullptr");
  EXPECT_DEATH(ThreadPool(1).parallel_for(-1, nullptr, nullptr), "n >= 0");
}

}  // namespace
}  // namespace perch
