// arena.cc - 4 KiB pages cost a stream of weights a quarter of its bandwidth (TLB misses), so small
// layers apart the block starts on a 2 MiB border and asks for huge pages.
#include "arena.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <utility>

namespace humming_cpu {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kLine = 64;

uint64_t alignment_of(int64_t bytes) {
  return bytes >= static_cast<int64_t>(kHugePage) ? kHugePage : kLine;
}

}  // namespace

uint64_t Arena::taken(int64_t bytes) {
  const uint64_t align = alignment_of(bytes);
  return (static_cast<uint64_t>(bytes < 1 ? 1 : bytes) + align - 1) / align * align;
}

Arena::Arena(const perch_host_api* host, int64_t bytes) : host_(host) {
  const uint64_t align = alignment_of(bytes);
  const uint64_t size = taken(bytes);
  void* memory = host->alloc != nullptr ? host->alloc(host->ctx, size, align)
                                        : std::aligned_alloc(align, size);
  if (memory == nullptr) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(memory);
#if defined(MADV_HUGEPAGE)
  // Advice only: a kernel without huge pages says no, and all still works.
  if (align == kHugePage) madvise(data_, size, MADV_HUGEPAGE);
#endif
}

Arena::Arena(Arena&& other) noexcept
    : host_(std::exchange(other.host_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(host_, other.host_);
  std::swap(data_, other.data_);
  return *this;
}

Arena::~Arena() {
  if (data_ == nullptr) return;
  if (host_->alloc != nullptr) {
    host_->free_memory(host_->ctx, data_);
  } else {
    std::free(data_);
  }
}

}  // namespace humming_cpu
