#include "check/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace perch_check {
namespace {

constexpr std::byte kCanary{0xC9};

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The live buffers, for the signal handler: fixed memory, and a slot's begin is written last.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  uintptr_t end = 0;
  uintptr_t data = 0;
  size_t size = 0;
  char name[64] = {};
};
constexpr int kSlots = 1 << 15;
Slot slots[kSlots];
std::atomic<int> next_slot{0};

int take_slot() {
  for (int tries = 0; tries < kSlots; ++tries) {
    const int at = static_cast<int>(static_cast<unsigned>(next_slot.fetch_add(1)) % kSlots);
    uintptr_t free = 0;
    // 1 reserves the slot: no mapping begins there.
    if (slots[at].begin.compare_exchange_strong(free, 1)) return at;
  }
  return -1;  // too many: a fault in it has no name
}

// Mappings that buffers have left, by size. Hosts use their memory again: a backend that remembers
// things by address must be seen. While they wait here, every access is a fault.
std::mutex pool_mutex;
std::map<size_t, std::vector<void*>> pool;
size_t pooled = 0;
constexpr size_t kPoolMost = 512;

void* take_mapping(size_t bytes) {
  {
    const std::lock_guard lock(pool_mutex);
    const auto found = pool.find(bytes);
    if (found != pool.end() && !found->second.empty()) {
      void* memory = found->second.back();
      found->second.pop_back();
      --pooled;
      return memory;
    }
  }
  void* memory =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

void leave_mapping(void* memory, size_t bytes) {
  const std::lock_guard lock(pool_mutex);
  if (pooled >= kPoolMost || mprotect(memory, bytes, PROT_NONE) != 0) {
    munmap(memory, bytes);
    return;
  }
  pool[bytes].push_back(memory);
  ++pooled;
}

}  // namespace

GuardedBuffer::GuardedBuffer(const std::string& name, size_t bytes, size_t align, Side side)
    : size_(bytes) {
  const size_t page = page_size();
  align = std::max<size_t>(align, 1);
  // An alignment above a page needs room to move in.
  const size_t inner = round_up(std::max<size_t>(bytes, 1), page) + (align > page ? align : 0);
  mapped_ = inner + 2 * page;
  mapping_ = static_cast<std::byte*>(take_mapping(mapped_));
  const auto first = reinterpret_cast<uintptr_t>(mapping_) + page;
  uintptr_t at =
      side == Side::kHead ? round_up(first, align) : (first + inner - bytes) / align * align;
  if (bytes == 0) at = (first + inner) / align * align;
  data_ = mapping_ + (at - reinterpret_cast<uintptr_t>(mapping_));
  if (bytes > 0) {
    if (mprotect(mapping_ + page, inner, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memset(mapping_ + page, static_cast<int>(kCanary), inner);
  }
  slot_ = take_slot();
  if (slot_ < 0) return;
  Slot& slot = slots[slot_];
  const size_t length = std::min(name.size(), sizeof(slot.name) - 1);
  std::memcpy(slot.name, name.data(), length);
  slot.name[length] = '\0';
  slot.end = reinterpret_cast<uintptr_t>(mapping_) + mapped_;
  slot.data = at;
  slot.size = bytes;
  slot.begin.store(reinterpret_cast<uintptr_t>(mapping_));
}

GuardedBuffer::~GuardedBuffer() { release(); }

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept { *this = std::move(other); }

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  mapping_ = std::exchange(other.mapping_, nullptr);
  mapped_ = std::exchange(other.mapped_, 0);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  slot_ = std::exchange(other.slot_, -1);
  return *this;
}

void GuardedBuffer::release() {
  if (slot_ >= 0) slots[slot_].begin.store(0);
  if (mapping_ != nullptr) leave_mapping(mapping_, mapped_);
  mapping_ = nullptr;
  slot_ = -1;
}

void GuardedBuffer::fill(std::byte value) {
  if (size_ > 0) std::memset(data_, static_cast<int>(value), size_);
}

void GuardedBuffer::set_access(int protection) const {
  if (size_ == 0) return;
  const size_t page = page_size();
  mprotect(mapping_ + page, mapped_ - 2 * page, protection);
}

void GuardedBuffer::make_read_only() { set_access(PROT_READ); }
void GuardedBuffer::make_writable() { set_access(PROT_READ | PROT_WRITE); }
void GuardedBuffer::make_inaccessible() { set_access(PROT_NONE); }

int64_t GuardedBuffer::broken_canary() const {
  if (size_ == 0) return 0;
  const size_t page = page_size();
  const std::byte* first = mapping_ + page;
  const std::byte* last = mapping_ + mapped_ - page;
  for (const std::byte* at = data_ - 1; at >= first; --at) {
    if (*at != kCanary) return at - data_;
  }
  for (const std::byte* at = data_ + size_; at < last; ++at) {
    if (*at != kCanary) return at - data_;
  }
  return 0;
}

FaultPlace find_fault(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load();
    if (begin <= 1 || at < begin || at >= slot.end) continue;
    return {slot.name, static_cast<int64_t>(at - slot.data), static_cast<int64_t>(slot.size)};
  }
  return {};
}

}  // namespace perch_check
