// Checked 64-bit size arithmetic. A product that would overflow is a Status of the caller, never a
// wrapped number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace perch {

inline std::optional<int64_t> checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<int64_t> checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The number of elements of `shape`; 1 for a scalar. nullopt on a negative dimension, and where the
// product overflows with its zeros left out: some order or part of the dimensions then does.
inline std::optional<int64_t> checked_numel(std::span<const int64_t> shape) {
  int64_t product = 1;
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    empty |= dim == 0;
    if (dim > 0 && __builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return empty ? 0 : product;
}

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace perch
