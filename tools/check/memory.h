// Buffers that notice: no-access pages right before and right behind, canaries in what is left of
// the last page, and a name by which a fault can be told.
//
// A buffer is flush with one of its two borders, so a check runs twice. The contract's alignment is
// kept and no more: an address is a multiple of `align`, and of nothing larger where it can be
// avoided. Memory that a buffer has left is used again by the next one of its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace perch_check {

enum class Side { kHead, kTail };  // which border the data is flush with

class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  // Throws std::bad_alloc. bytes 0 gives an address that must not be touched.
  GuardedBuffer(const std::string& name, size_t bytes, size_t align, Side side);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  void fill(std::byte value);

  void make_read_only();
  void make_writable();
  // From now on every access is a fault: the memory has been given back to its owner.
  void make_inaccessible();

  // The offset of the first byte of the gap that was written, relative to the data: negative before
  // it, at least size() behind it. 0 when none was (the data's own byte is none of the gap).
  int64_t broken_canary() const;

 private:
  void release();
  void set_access(int protection) const;

  std::byte* mapping_ = nullptr;  // with both borders
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;
};

// What a faulting address belongs to. Safe in a signal handler.
struct FaultPlace {
  const char* name = nullptr;  // null: no buffer of ours
  int64_t offset = 0;          // from the data's begin; may be negative or beyond its size
  int64_t size = 0;
};
FaultPlace find_fault(const void* address);

}  // namespace perch_check
