// Moving codes: from a view, whatever its strides, to canonical rows.
//
// A row of a view is read as one little-endian stream of bits over its elements, which is what
// every packing along K is, plain bytes and floats included. Nothing here knows a format, and
// nothing checks: the plan has found that the slice lies inside the view.
#pragma once

#include <cstddef>
#include <cstdint>

#include "canonical/format.h"

namespace perch {

// Bits [first, first + count) of a stream to bit 0 of `to`; bits of its last byte beyond them are
// 0. Reads only the bytes that hold them.
void copy_bits(const std::byte* from, int64_t first, int64_t count, std::byte* to);

// Codes [k0,k1) of rows [n0,n1), `bits` each, to rows of `row_bytes` bytes at `codes`.
void copy_code_rows(const RawView& view, int bits, const MatrixSlice& slice, std::byte* codes,
                    int64_t row_bytes);

// Rows as columns: a tensor that is stored [K,N], seen as [N,K].
RawView turned(const RawView& view);

// Element (row, column) of a view of 32-bit words.
uint32_t word_at(const RawView& view, int64_t row, int64_t column);

}  // namespace perch
