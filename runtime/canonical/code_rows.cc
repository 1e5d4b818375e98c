#include "canonical/code_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "numeric/packed_codes.h"

namespace perch {
namespace {

// A turned tensor is read in blocks of so many rows: where its rows lie side by side, a cache line
// of bytes holds them all, so each line of the file is read once.
constexpr int64_t kBlockRows = 64;
// Rows whose lengths are powers of two would share one set of the cache and push each other out.
constexpr int64_t kRowPadding = 64;

struct Block {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t column = 0;
  int64_t columns = 0;
};

template <int width>
void gather_elements(const RawView& view, const Block& block, std::byte* to, int64_t row_bytes) {
  const int64_t step = view.row_stride * width;
  for (int64_t c = 0; c < block.columns; ++c) {
    const std::byte* from = view.at(block.row, block.column + c);
    std::byte* element = to + c * width;
    for (int64_t r = 0; r < block.rows; ++r) {
      std::memcpy(element, from, width);
      from += step;
      element += row_bytes;
    }
  }
}

void gather(const RawView& view, const Block& block, std::byte* to, int64_t row_bytes) {
  switch (raw_dtype_bits(view.tensor->dtype)) {
    case 8:
      return gather_elements<1>(view, block, to, row_bytes);
    case 16:
      return gather_elements<2>(view, block, to, row_bytes);
    case 32:
      return gather_elements<4>(view, block, to, row_bytes);
    default:
      return gather_elements<8>(view, block, to, row_bytes);
  }
}

void copy_turned_rows(const RawView& view, int bits, const MatrixSlice& slice, std::byte* codes,
                      int64_t row_bytes) {
  const int64_t element_bits = raw_dtype_bits(view.tensor->dtype);
  const int64_t first = slice.k0 * bits / element_bits;
  const int64_t last = ceil_div(slice.k1 * bits, element_bits);
  const int64_t stride = (last - first) * element_bits / 8 + kRowPadding;
  std::vector<std::byte> rows(static_cast<size_t>(kBlockRows * stride));
  for (int64_t n = slice.n0; n < slice.n1; n += kBlockRows) {
    const int64_t count = std::min(kBlockRows, slice.n1 - n);
    gather(view, {n, count, first, last - first}, rows.data(), stride);
    for (int64_t r = 0; r < count; ++r) {
      copy_bits(rows.data() + r * stride, slice.k0 * bits - first * element_bits,
                (slice.k1 - slice.k0) * bits, codes + (n - slice.n0 + r) * row_bytes);
    }
  }
}

// Elements of less than a byte have no address of their own.
void copy_sub_byte_rows(const RawView& view, int bits, const MatrixSlice& slice, std::byte* codes,
                        int64_t row_bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(view.tensor->data);
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    const int64_t row = view.offset + n * view.row_stride;
    std::byte* to = codes + (n - slice.n0) * row_bytes;
    if (view.column_stride == 1) {
      copy_bits(view.tensor->data, (row + slice.k0) * bits, (slice.k1 - slice.k0) * bits, to);
      continue;
    }
    for (int64_t k = slice.k0; k < slice.k1; ++k) {
      const uint32_t code = numeric::get_code(data, row + k * view.column_stride, bits);
      numeric::put_code(reinterpret_cast<uint8_t*>(to), k - slice.k0, bits, code);
    }
  }
}

}  // namespace

void copy_bits(const std::byte* from, int64_t first, int64_t count, std::byte* to) {
  if (count <= 0) return;
  const std::byte* in = from + first / 8;
  const int shift = static_cast<int>(first % 8);
  const int64_t in_bytes = ceil_div(shift + count, 8);
  const int64_t out_bytes = ceil_div(count, 8);
  if (shift == 0) {
    std::memcpy(to, in, static_cast<size_t>(out_bytes));
  } else {
    int64_t i = 0;
    for (; i + 9 <= in_bytes; i += 8) {
      uint64_t window = 0;
      std::memcpy(&window, in + i, sizeof(window));
      window = window >> shift | std::to_integer<uint64_t>(in[i + 8]) << (64 - shift);
      std::memcpy(to + i, &window, sizeof(window));
    }
    for (; i < out_bytes; ++i) {
      to[i] = in[i] >> shift;
      if (i + 1 < in_bytes) to[i] |= in[i + 1] << (8 - shift);
    }
  }
  if (count % 8 != 0) to[out_bytes - 1] &= static_cast<std::byte>((1 << (count % 8)) - 1);
}

void copy_code_rows(const RawView& view, int bits, const MatrixSlice& slice, std::byte* codes,
                    int64_t row_bytes) {
  if (slice.k0 >= slice.k1) return;
  if (raw_dtype_bits(view.tensor->dtype) < 8) {
    return copy_sub_byte_rows(view, bits, slice, codes, row_bytes);
  }
  if (view.column_stride != 1) return copy_turned_rows(view, bits, slice, codes, row_bytes);
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    copy_bits(view.at(n, 0), slice.k0 * bits, (slice.k1 - slice.k0) * bits,
              codes + (n - slice.n0) * row_bytes);
  }
}

RawView turned(const RawView& view) {
  RawView result = view;
  std::swap(result.rows, result.columns);
  std::swap(result.row_stride, result.column_stride);
  return result;
}

uint32_t word_at(const RawView& view, int64_t row, int64_t column) {
  uint32_t word = 0;
  std::memcpy(&word, view.at(row, column), sizeof(word));
  return word;
}

}  // namespace perch
