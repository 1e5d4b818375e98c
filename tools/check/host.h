// CheckHost: the perch_host_api that a checked backend is given. It plays every host that the ABI
// allows: any number of threads, tasks in any order, memory that notices.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "check/memory.h"
#include "perch/backend.h"

namespace perch_check {

enum class Schedule {
  kInOrder,   // one task after the other, on the caller's thread
  kShuffled,  // likewise, in a seeded random order and with changing tids
  kThreads,   // on real threads that start together
};

struct HostOptions {
  int32_t threads = 1;  // what num_threads says
  Schedule schedule = Schedule::kInOrder;
  uint64_t seed = 0;
  bool guarded = false;  // allocations are GuardedBuffers
  Side side = Side::kTail;
};

// Messages of the backend are dropped: the checks print what matters.
class CheckHost {
 public:
  explicit CheckHost(const HostOptions& options);
  CheckHost(const CheckHost&) = delete;
  CheckHost& operator=(const CheckHost&) = delete;

  const perch_host_api* api() const { return &api_; }
  HostOptions& options() { return options_; }

  // Bytes that the backend holds now, and how often it asked.
  uint64_t live_bytes() const { return live_bytes_; }
  int64_t allocations() const { return allocations_; }

  // Of the allocations that live now.
  std::set<const void*> addresses() const;

  // Guarded allocations that live now become read-only, or writable again.
  void set_read_only(bool read_only);
  // A gap around a guarded allocation that was written, in words; "" when none was.
  std::string broken_canary() const;

  // Runs once, between two tasks of the next parallel_for that has more than one, on a thread of
  // its own: the caller's call is then half done.
  void run_inside(std::function<void()> work) { inside_ = std::move(work); }
  // Called after the tasks of a parallel_for, before it returns.
  void at_end_of_loop(std::function<void()> work) { at_end_ = std::move(work); }

  int64_t loops() const { return loops_; }
  // A rule that the backend broke in a callback, in words; "" when none.
  std::string complaint() const { return complaint_; }

 private:
  void* allocate(uint64_t bytes, uint64_t align);
  void release(void* memory);
  void parallel_for(int64_t count, perch_task_fn task, void* arg);
  void run_serial(int64_t count, perch_task_fn task, void* arg);
  void run_threads(int64_t count, perch_task_fn task, void* arg);
  void complain(const std::string& text);
  // A tid that no running task has: the preferred one, or the next that is free.
  int32_t take_tid(int32_t preferred);
  void give_tid(int32_t tid);

  HostOptions options_;
  perch_host_api api_{};
  mutable std::mutex mutex_;  // of what follows
  std::map<void*, GuardedBuffer> guarded_;
  std::map<void*, uint64_t> plain_;
  std::vector<bool> tid_taken_;
  std::condition_variable tid_free_;
  std::atomic<uint64_t> live_bytes_{0};
  std::atomic<int64_t> allocations_{0};
  std::atomic<int64_t> loops_{0};
  std::function<void()> inside_, at_end_;
  std::string complaint_;
};

}  // namespace perch_check
