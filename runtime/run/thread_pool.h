// The CPU thread pool: parallel_for over independent tasks, for hosts that bring no pool of their
// own.
//
// Not a scheduler: no futures, no priorities, no task that waits for another. It does not choose
// how many threads there are (run/cpu_topology.h does) and does not pin them.
//
// One 32-bit word, the gate, holds the whole protocol, and nobody ever waits for a worker that has
// not joined: one that comes too late finds the gate closed. An empty region of 2 threads, each on
// its own core, takes 0.4 of OpenMP's time (gcc 12, either wait policy) and 0.5 of pthreadpool's;
// with 8 threads on 2 busy cores, where those wait for everyone, 1/200 of OpenMP's or less
// (tests/bench/parallel_region_bench.cc).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace perch {

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): what threads write is kept apart
class ThreadPool {
 public:
  // Runs task `index` on worker `tid`. Must not throw, and must leave the floating-point state as
  // it found it.
  using Task = void (*)(void* arg, int64_t index, int32_t tid);

  static constexpr int kThreadsMax = (1 << 14) - 1;  // the width of a count in the gate

  // The pool is the caller plus num_threads - 1 workers, 1 <= num_threads <= kThreadsMax. Should
  // the system refuse a thread, the pool has fewer: num_threads() tells.
  explicit ThreadPool(int num_threads);
  // No parallel_for may be running.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Fixed for the pool's life.
  int num_threads() const { return num_threads_; }

  // Calls task(arg, i, tid) once for each i in [0, n), in any order, and returns when all are done;
  // what they wrote is visible to the caller. The caller works as tid 0; tid is in
  // [0, num_threads) and no two tasks running at the same time share one. Allocates nothing.
  // [any thread] Calls from several threads take turns. A call from inside a task of this pool runs
  // its tasks in order, on that task's tid. With two pools, a task of one may call the other, but
  // never back.
  // Workers run in the default floating-point state, the caller in its own: whoever lets a host in
  // resets it, once, so that results do not depend on which thread took a task.
  void parallel_for(int64_t n, Task task, void* arg);

 private:
  struct Job {
    Task task = nullptr;
    void* arg = nullptr;
    int64_t n = 0;
    int64_t chunk = 1;  // indices a thread takes at a time
  };

  void start_workers(int count);
  void worker_main(int32_t tid);
  bool join_region();  // false: the pool is going away
  void leave_region();
  void open_region();
  void close_region();
  void run_chunks(int32_t tid);
  void sleep_until_woken();
  bool spin_until(uint32_t mask, bool set) const;

  int num_threads_ = 1;
  std::mutex callers_;  // held by the caller whose region it is
  std::vector<std::thread> workers_;

  // Apart, because waiting workers read the gate all the time while the others are written.
  alignas(64) std::atomic<uint32_t> gate_{0};
  alignas(64) std::atomic<int64_t> next_{0};  // first index that nobody has taken
  Job job_;  // written by the caller while the gate is closed and empty, read by those who joined
};

}  // namespace perch
