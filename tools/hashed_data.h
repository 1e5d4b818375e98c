// Pseudo-random data by coordinate: a value depends on (seed, tensor, row, column) and on nothing
// else, so a smaller batch or layer holds the same numbers where it overlaps with a larger one.
#pragma once

#include <cmath>
#include <cstdint>

namespace perch_command {

// A well-mixed 64-bit hash of the coordinate (the finalizer of splitmix64).
inline uint64_t hash_coordinate(uint64_t seed, uint64_t tensor, uint64_t row, uint64_t column) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ULL + tensor;
  for (const uint64_t part : {row, column}) {
    x += 0x9E3779B97F4A7C15ULL * (part + 1);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    x ^= x >> 31;
  }
  return x;
}

// Uniform in [-1, 1), with 24 bits.
inline float hashed_unit(uint64_t seed, uint64_t tensor, uint64_t row, uint64_t column) {
  const uint64_t bits = hash_coordinate(seed, tensor, row, column) >> 40;
  return static_cast<float>(bits) * 0x1p-23F - 1.0F;
}

}  // namespace perch_command
