// The perch_host_api that backends are given: their log, memory and threads, as plain functions.
//
// Not a thread pool: HostServices points to one (run/). A table's memory lives as long as the
// process, as backend.h promises; once its runtime is gone it still answers, with one thread and
// without a log.
#pragma once

#include <cstdint>

#include "perch/backend.h"

namespace perch {

// Where messages go. `write` may be called from any thread; null drops them.
struct LogSink {
  void (*write)(void* ctx, int32_t level, const char* component, const char* message) = nullptr;
  void* ctx = nullptr;

  void operator()(int32_t level, const char* component, const char* message) const {
    if (write != nullptr) write(ctx, level, component, message);
  }
};

// What stands behind the table; see perch_host_api for what each must keep. Null members: one
// thread that runs tasks in order, and the C library's memory. alloc and free_memory come in pairs.
struct HostServices {
  void* ctx = nullptr;
  int32_t (*num_threads)(void* ctx) = nullptr;
  void (*parallel_for)(void* ctx, int64_t count, perch_task_fn task, void* arg) = nullptr;
  void* (*alloc)(void* ctx, uint64_t bytes, uint64_t align) = nullptr;
  void (*free_memory)(void* ctx, void* memory) = nullptr;
};

struct HostSlot;

// Holds one table for one runtime. Destroy it after every backend that was created with it.
class HostTable {
 public:
  HostTable(const HostServices& services, const LogSink& log);
  ~HostTable();
  HostTable(const HostTable&) = delete;
  HostTable& operator=(const HostTable&) = delete;

  const perch_host_api* api() const;

 private:
  HostSlot* slot_;
};

}  // namespace perch
