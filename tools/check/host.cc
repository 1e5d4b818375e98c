#include "check/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <utility>

#include "hashed_data.h"

namespace perch_check {
namespace {

// Set while this thread runs a task: a parallel_for from there breaks a rule.
thread_local bool in_task = false;

void run_task(perch_task_fn task, void* arg, int64_t index, int32_t tid) {
  const bool outer = std::exchange(in_task, true);
  task(arg, index, tid);
  in_task = outer;
}

CheckHost* self_of(void* ctx) { return static_cast<CheckHost*>(ctx); }

}  // namespace

CheckHost::CheckHost(const HostOptions& options)
    : options_(options), tid_taken_(static_cast<size_t>(std::max(1, options.threads)), false) {
  api_.struct_size = sizeof(api_);
  api_.magic = PERCH_ABI_MAGIC;
  api_.abi_major = PERCH_ABI_MAJOR;
  api_.abi_minor = PERCH_ABI_MINOR;
  api_.ctx = this;
  api_.log = [](void*, int32_t, const char*, const char*) {};
  api_.alloc = [](void* ctx, uint64_t bytes, uint64_t align) {
    return self_of(ctx)->allocate(bytes, align);
  };
  api_.free_memory = [](void* ctx, void* memory) { self_of(ctx)->release(memory); };
  api_.num_threads = [](void* ctx) { return self_of(ctx)->options_.threads; };
  api_.parallel_for = [](void* ctx, int64_t count, perch_task_fn task, void* arg) {
    self_of(ctx)->parallel_for(count, task, arg);
  };
}

void* CheckHost::allocate(uint64_t bytes, uint64_t align) {
  if (align == 0 || (align & (align - 1)) != 0) {
    complain(fmt::format("alloc: got alignment {}; want a power of two", align));
    return nullptr;
  }
  ++allocations_;
  live_bytes_ += bytes;
  const std::lock_guard lock(mutex_);
  if (options_.guarded) {
    GuardedBuffer buffer(fmt::format("allocation {} of the backend", allocations_.load()), bytes,
                         align, options_.side);
    buffer.fill(std::byte{0xFF});
    void* memory = buffer.data();
    guarded_.emplace(memory, std::move(buffer));
    return memory;
  }
  const uint64_t least = std::max<uint64_t>(align, sizeof(void*));
  void* memory = std::aligned_alloc(least, (bytes + least - 1) / least * least + least);
  if (memory != nullptr) {
    std::fill_n(static_cast<std::byte*>(memory), bytes, std::byte{0xFF});
    plain_.emplace(memory, bytes);
  }
  return memory;
}

void CheckHost::release(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (const auto found = guarded_.find(memory); found != guarded_.end()) {
    live_bytes_ -= found->second.size();
    guarded_.erase(found);
    return;
  }
  const auto found = plain_.find(memory);
  if (found == plain_.end()) {
    complaint_ = "free_memory: got an address that alloc did not give";
    return;
  }
  live_bytes_ -= found->second;
  std::free(memory);
  plain_.erase(found);
}

std::set<const void*> CheckHost::addresses() const {
  const std::lock_guard lock(mutex_);
  std::set<const void*> all;
  for (const auto& [address, buffer] : guarded_) all.insert(address);
  for (const auto& [address, bytes] : plain_) all.insert(address);
  return all;
}

void CheckHost::set_read_only(bool read_only) {
  const std::lock_guard lock(mutex_);
  for (auto& [address, buffer] : guarded_) {
    if (read_only) {
      buffer.make_read_only();
    } else {
      buffer.make_writable();
    }
  }
}

std::string CheckHost::broken_canary() const {
  const std::lock_guard lock(mutex_);
  int64_t number = 0;
  for (const auto& [address, buffer] : guarded_) {
    ++number;
    const int64_t offset = buffer.broken_canary();
    if (offset != 0) {
      return fmt::format("an allocation of {} bytes was written at offset {}", buffer.size(),
                         offset);
    }
  }
  return "";
}

void CheckHost::complain(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (complaint_.empty()) complaint_ = text;
}

int32_t CheckHost::take_tid(int32_t preferred) {
  std::unique_lock lock(mutex_);
  for (;;) {
    for (int32_t i = 0; i < options_.threads; ++i) {
      const int32_t tid = (preferred + i) % options_.threads;
      if (tid_taken_[static_cast<size_t>(tid)]) continue;
      tid_taken_[static_cast<size_t>(tid)] = true;
      return tid;
    }
    tid_free_.wait(lock);
  }
}

void CheckHost::give_tid(int32_t tid) {
  {
    const std::lock_guard lock(mutex_);
    tid_taken_[static_cast<size_t>(tid)] = false;
  }
  tid_free_.notify_one();
}

void CheckHost::parallel_for(int64_t count, perch_task_fn task, void* arg) {
  ++loops_;
  if (in_task) {
    complain("parallel_for: got a call from inside a task; want no nesting");
    // With no lease of a tid: there may be none left, and what counts has been said.
    for (int64_t i = 0; i < count; ++i) task(arg, i, 0);
    return;
  }
  if (count <= 0) return;
  if (options_.schedule == Schedule::kThreads && options_.threads > 1) {
    run_threads(count, task, arg);
  } else {
    run_serial(count, task, arg);
  }
  if (at_end_) at_end_();
}

void CheckHost::run_serial(int64_t count, perch_task_fn task, void* arg) {
  const bool shuffled = options_.schedule == Schedule::kShuffled;
  std::vector<int64_t> order;
  if (shuffled) {
    order.resize(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), int64_t{0});
    for (int64_t i = count - 1; i > 0; --i) {
      const uint64_t bits = perch_command::hash_coordinate(
          options_.seed, 5, static_cast<uint64_t>(loops_.load()), static_cast<uint64_t>(i));
      std::swap(order[static_cast<size_t>(i)],
                order[static_cast<size_t>(bits % static_cast<uint64_t>(i + 1))]);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (i == (count + 1) / 2 && inside_) {
      const auto work = std::exchange(inside_, nullptr);
      std::thread(work).join();
    }
    const int64_t index = shuffled ? order[static_cast<size_t>(i)] : i;
    // Any tid is legal for a task that runs alone.
    const int32_t tid = take_tid(shuffled ? static_cast<int32_t>(index % options_.threads) : 0);
    run_task(task, arg, index, tid);
    give_tid(tid);
  }
}

void CheckHost::run_threads(int64_t count, perch_task_fn task, void* arg) {
  std::atomic<int64_t> next{0};
  std::atomic<int32_t> waiting{options_.threads};
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(options_.threads));
  for (int32_t tid = 0; tid < options_.threads; ++tid) {
    threads.emplace_back([&, tid] {
      --waiting;
      while (waiting.load() > 0) std::this_thread::yield();
      const int32_t own = take_tid(tid);
      for (int64_t i = next++; i < count; i = next++) run_task(task, arg, i, own);
      give_tid(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace perch_check
