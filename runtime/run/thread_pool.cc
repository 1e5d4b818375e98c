// The gate: how threads enter and leave a region, and how they wait. The order below is that of a
// call; what the pool promises is in the header.
#include "run/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <limits>
#include <system_error>

#include "base/check.h"

namespace perch {
namespace {

// The gate: who may enter, and who is inside.
//   open          the region has tasks that nobody took; a worker may join
//   stop          the pool is being destroyed
//   caller asleep the last worker to leave must wake the caller
//   sleepers      workers that only a futex wake brings back
//   joined        workers between join_region and leave_region: job_ stays as it is until they left
constexpr uint32_t kOpen = 1u << 31;
constexpr uint32_t kStop = 1u << 30;
constexpr uint32_t kCallerAsleep = 1u << 29;
constexpr uint32_t kSleeperOne = 1u << 14;
constexpr uint32_t kSleepers = 0x3fffu << 14;
constexpr uint32_t kJoinedOne = 1u;
constexpr uint32_t kJoined = 0x3fffu;
static_assert(ThreadPool::kThreadsMax == kJoined);
static_assert(((kOpen | kStop | kCallerAsleep) & (kSleepers | kJoined)) == 0);

// Futex channels on the gate, so that a wake for the caller cannot be eaten by a worker.
constexpr uint32_t kWorkers = 1;
constexpr uint32_t kCaller = 2;

// How long to wait before sleeping: pauses, then rounds of pauses and a yield, which gives way at
// once to whoever else wants the core. With 13 to 60 ns a pause and 250 ns a yield that is 13 to 60
// us and then 0.5 to 1.2 ms. The layers of a model follow each other faster; and a sleep is dear:
// in parallel_region_bench, regions of 2 x 30 us take 32 us after a pause of 0.2 ms, 60 us with 300
// rounds (the worker sleeps: no better than alone), 80 us after 5 ms.
constexpr int kPauses = 1000;
constexpr int kYieldRounds = 1000;
constexpr int kPausesPerRound = 16;

// A region is cut into about this many chunks a thread: a thread that comes late, or gets the dear
// tasks, leaves the others waiting for at most one of them, 3 % of its share.
constexpr int64_t kChunksPerThread = 32;

// The regions this thread is inside of, innermost first; how a nested call is recognised.
struct Frame {
  const ThreadPool* pool;
  int32_t tid;
  const Frame* outer;
};
thread_local const Frame* current_frame = nullptr;

const Frame* find_frame(const ThreadPool* pool) {
  const Frame* frame = current_frame;
  while (frame != nullptr && frame->pool != pool) frame = frame->outer;
  return frame;
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain 32-bit word");

// Returns true if it slept and was woken.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, uint32_t channel) {
  return syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, nullptr, nullptr,
                 channel) == 0;
}

void futex_wake(const std::atomic<uint32_t>& word, int count, uint32_t channel) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET_PRIVATE, count, nullptr, nullptr, channel);
}

void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// The signals a worker leaves to the host's threads: all but those that a thread raises itself.
sigset_t signals_of_the_host() {
  sigset_t set;
  sigfillset(&set);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) {
    sigdelset(&set, signal);
  }
  return set;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  PERCH_CHECK(num_threads >= 1);
  PERCH_CHECK(num_threads <= kThreadsMax);
  start_workers(num_threads - 1);
  num_threads_ = static_cast<int>(workers_.size()) + 1;
}

void ThreadPool::start_workers(int count) {
  workers_.reserve(static_cast<size_t>(count));
  const sigset_t blocked = signals_of_the_host();
  sigset_t before;
  PERCH_CHECK(pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);  // threads inherit the mask
  try {
    for (int32_t tid = 1; tid <= count; ++tid) {
      workers_.emplace_back([this, tid] { worker_main(tid); });
    }
  } catch (const std::system_error&) {
    // A thread limit: go on with those that started.
  }
  PERCH_CHECK(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

ThreadPool::~ThreadPool() {
  const uint32_t before = gate_.fetch_or(kStop, std::memory_order_acq_rel);
  PERCH_CHECK((before & (kOpen | kJoined)) == 0);
  futex_wake(gate_, std::numeric_limits<int>::max(), kWorkers);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(int64_t n, Task task, void* arg) {
  PERCH_CHECK(n >= 0);
  PERCH_CHECK(n <= std::numeric_limits<int64_t>::max() / 2);  // next_ runs past n
  if (n == 0) return;
  PERCH_CHECK(task != nullptr);
  if (const Frame* frame = find_frame(this); frame != nullptr) {
    for (int64_t index = 0; index < n; ++index) task(arg, index, frame->tid);
    return;
  }
  const std::lock_guard<std::mutex> turn(callers_);  // a pool of one needs it too: tid 0 is one
  const Frame frame{this, 0, current_frame};
  current_frame = &frame;
  if (num_threads_ == 1 || n == 1) {
    for (int64_t index = 0; index < n; ++index) task(arg, index, 0);
  } else {
    job_ = {task, arg, n, std::max<int64_t>(1, n / (num_threads_ * kChunksPerThread))};
    open_region();
    run_chunks(0);
    close_region();
  }
  current_frame = frame.outer;
}

void ThreadPool::worker_main(int32_t tid) {
  std::fesetenv(FE_DFL_ENV);  // a new thread inherits the state of the one that made the pool
  char name[16];
  std::snprintf(name, sizeof(name), "perch-%d", static_cast<int>(tid));
  pthread_setname_np(pthread_self(), name);
  const Frame frame{this, tid, nullptr};
  current_frame = &frame;
  while (join_region()) {
    run_chunks(tid);
    leave_region();
  }
}

void ThreadPool::run_chunks(int32_t tid) {
  const Job job = job_;
  for (;;) {
    const int64_t begin = next_.fetch_add(job.chunk, std::memory_order_relaxed);
    if (begin >= job.n) return;
    const int64_t end = std::min(begin + job.chunk, job.n);
    for (int64_t index = begin; index < end; ++index) job.task(job.arg, index, tid);
  }
}

void ThreadPool::open_region() {
  next_.store(0, std::memory_order_relaxed);
  const uint32_t before = gate_.fetch_or(kOpen, std::memory_order_acq_rel);
  PERCH_CHECK((before & (kOpen | kStop | kJoined)) == 0);
  const int sleepers = static_cast<int>((before & kSleepers) / kSleeperOne);
  if (sleepers == 0) return;
  const int workers = num_threads_ - 1;
  const int64_t helpers = std::min<int64_t>(workers, (job_.n - 1) / job_.chunk);
  const int wake = static_cast<int>(helpers) - (workers - sleepers);
  if (wake > 0) futex_wake(gate_, wake, kWorkers);
}

// Every task has been taken; waits for those that workers still run.
void ThreadPool::close_region() {
  uint32_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  if ((gate & kJoined) == 0 || spin_until(kJoined, false)) return;
  gate = gate_.fetch_or(kCallerAsleep, std::memory_order_acq_rel) | kCallerAsleep;
  while ((gate & kJoined) != 0) {
    futex_wait(gate_, gate, kCaller);
    gate = gate_.load(std::memory_order_acquire);
  }
  gate_.fetch_and(~kCallerAsleep, std::memory_order_relaxed);
}

bool ThreadPool::join_region() {
  for (;;) {
    const bool found = spin_until(kOpen | kStop, true);
    uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0) {
      if (gate_.compare_exchange_weak(gate, gate + kJoinedOne, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        return true;
      }
    }
    if ((gate & kStop) != 0) return false;
    if (!found) sleep_until_woken();
  }
}

// A worker leaves when it finds no task to take, so it closes the gate behind it: nobody else, and
// not itself, need look again.
void ThreadPool::leave_region() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  uint32_t after = 0;
  do {
    after = (gate & ~kOpen) - kJoinedOne;
  } while (!gate_.compare_exchange_weak(gate, after, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  if ((after & kJoined) == 0 && (after & kCallerAsleep) != 0) futex_wake(gate_, 1, kCaller);
}

// Counting oneself and looking at the gate are one step, so whoever opens it next knows to wake.
void ThreadPool::sleep_until_woken() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  do {
    if ((gate & (kOpen | kStop)) != 0) return;
  } while (!gate_.compare_exchange_weak(gate, gate + kSleeperOne, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  gate += kSleeperOne;
  while ((gate & (kOpen | kStop)) == 0 && !futex_wait(gate_, gate, kWorkers)) {
    gate = gate_.load(std::memory_order_relaxed);
  }
  gate_.fetch_sub(kSleeperOne, std::memory_order_acq_rel);
}

// Waits a bounded while for any bit of `mask` to be set, or for all to be clear; says whether it
// came.
bool ThreadPool::spin_until(uint32_t mask, bool set) const {
  for (int i = 0; i < kPauses + kYieldRounds * kPausesPerRound; ++i) {
    if (((gate_.load(std::memory_order_acquire) & mask) != 0) == set) return true;
    cpu_pause();
    if (i >= kPauses && i % kPausesPerRound == 0) sched_yield();
  }
  return false;
}

}  // namespace perch
