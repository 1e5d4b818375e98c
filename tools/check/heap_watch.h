// Counts what a backend takes from the C library's heap or maps, on every thread of the process.
#pragma once

#include <cstdint>

namespace perch_check {

// Threads that anybody in the process started since it began; -1 where that cannot be known.
int64_t threads_started();

struct HeapWatch {
  // False where a sanitizer's own allocator stands in the way: there is nothing to count then.
  static bool available();
  static void start();
  // Calls since start().
  static int64_t stop();
};

}  // namespace perch_check
