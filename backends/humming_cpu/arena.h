// arena.h - the packed weights of a layer: one block of memory on 2 MiB pages.
#pragma once

#include <cstdint>

#include "perch/backend.h"

namespace humming_cpu {

// Owns its memory: from the host's allocator where it has one, else from the system.
class Arena {
 public:
  Arena() = default;
  // What an arena of so many bytes takes from the host: whole lines, whole huge pages where large.
  static uint64_t taken(int64_t bytes);
  // Throws std::bad_alloc. Pages are touched only when they are written.
  Arena(const perch_host_api* host, int64_t bytes);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  uint8_t* data() const { return data_; }

 private:
  const perch_host_api* host_ = nullptr;
  uint8_t* data_ = nullptr;
};

}  // namespace humming_cpu
