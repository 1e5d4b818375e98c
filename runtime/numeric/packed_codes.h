// Codes of 1 to 8 bits in a row of bytes: a little-endian bit stream along K, so code k occupies
// the bits [k*bits, (k+1)*bits) and the low nibble is the even element of a 4-bit row. Each row
// starts at a whole byte (backend.h, "What a backend does").
#pragma once

#include <cstdint>

namespace perch::numeric {

// Bytes of one row of `columns` codes. The caller has checked that columns * bits does not
// overflow.
constexpr int64_t packed_row_bytes(int64_t columns, int bits) { return (columns * bits + 7) / 8; }

// The code at column k. Reads only the bytes that hold it, so the end of a row is never overrun.
constexpr uint32_t get_code(const uint8_t* row, int64_t k, int bits) {
  const int64_t first_bit = k * bits;
  const int shift = static_cast<int>(first_bit & 7);
  const uint8_t* byte = row + (first_bit >> 3);
  uint32_t window = byte[0];
  if (shift + bits > 8) window |= static_cast<uint32_t>(byte[1]) << 8;
  return (window >> shift) & ((1u << bits) - 1);
}

// Stores `code` (its low `bits` bits) at column k and leaves all other bits as they are.
constexpr void put_code(uint8_t* row, int64_t k, int bits, uint32_t code) {
  const int64_t first_bit = k * bits;
  const int shift = static_cast<int>(first_bit & 7);
  const uint32_t mask = ((1u << bits) - 1) << shift;
  const uint32_t placed = (code << shift) & mask;
  uint8_t* byte = row + (first_bit >> 3);
  byte[0] = static_cast<uint8_t>((byte[0] & ~mask) | placed);
  if (shift + bits > 8) {
    byte[1] = static_cast<uint8_t>((byte[1] & ~(mask >> 8)) | (placed >> 8));
  }
}

// Reads a row's codes in order, each byte once.
class CodeReader {
 public:
  CodeReader(const uint8_t* row, int bits) : byte_(row), bits_(bits) {}

  uint32_t next() {
    if (held_ < bits_) {
      window_ |= static_cast<uint32_t>(*byte_++) << held_;
      held_ += 8;
    }
    const uint32_t code = window_ & ((1u << bits_) - 1);
    window_ >>= bits_;
    held_ -= bits_;
    return code;
  }

 private:
  const uint8_t* byte_;
  int bits_;
  uint32_t window_ = 0;  // the low held_ bits are read and not yet given out
  int held_ = 0;
};

}  // namespace perch::numeric
