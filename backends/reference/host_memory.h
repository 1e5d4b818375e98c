// Buffer<T>: a vector in the host's memory, so that the host sees and bounds what a layer takes.
#pragma once

#include <perch/backend.h>

#include <cstddef>
#include <limits>
#include <new>
#include <vector>

namespace reference {

template <typename T>
class HostAllocator {
 public:
  using value_type = T;

  explicit HostAllocator(const perch_host_api* host) : host_(host) {}
  template <typename U>
  explicit HostAllocator(const HostAllocator<U>& other) : host_(other.host()) {}

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) throw std::bad_alloc();
    void* memory = host_->alloc != nullptr
                       ? host_->alloc(host_->ctx, count * sizeof(T), alignof(std::max_align_t))
                       : ::operator new(count * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) noexcept {
    if (host_->alloc != nullptr) {
      host_->free_memory(host_->ctx, memory);
    } else {
      ::operator delete(memory);
    }
  }

  const perch_host_api* host() const { return host_; }
  bool operator==(const HostAllocator& other) const { return host_ == other.host_; }

 private:
  const perch_host_api* host_;
};

template <typename T>
using Buffer = std::vector<T, HostAllocator<T>>;

}  // namespace reference
