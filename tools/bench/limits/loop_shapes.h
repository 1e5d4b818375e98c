// The shapes that the loops of every level share. In an unnamed namespace on purpose: each
// loops_<isa>.cc is built for another CPU, and a linker that kept one copy of a shared function
// would take it for all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/limits/limit_loops.h"

namespace perch_bench {
namespace {

// Step::kNumAccumulators independent sums of type Step::Sum. Step::add adds one product (a pair's,
// a quad's) per lane, every factor being 1, so that the result counts what was multiplied and
// added. Steps are written as the instruction itself: what a compiler makes of intrinsics here
// (products computed once for all sums, copies of registers, sums in memory) costs up to half.
template <typename Step>
double run_dots(int64_t rounds) {
  constexpr int kCount = Step::kNumAccumulators;
  typename Step::Sum sums[kCount];
#pragma GCC unroll 32
  for (int i = 0; i < kCount; ++i) sums[i] = typename Step::Sum{};
  const auto ones = Step::ones();
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
    for (int i = 0; i < kCount; ++i) Step::add(sums[i], ones);
  }
  // Unrolled like the others: an index known only at run time would keep the sums in memory.
  double total = 0;
#pragma GCC unroll 32
  for (int i = 0; i < kCount; ++i) {
    const typename Step::Sum sum = sums[i];
    for (size_t lane = 0; lane < sizeof(sum) / sizeof(sum[0]); ++lane) {
      total += static_cast<double>(sum[lane]);
    }
  }
  return total;
}

// Two operations, a multiplication and an addition, for each factor of 1 that a lane counts.
template <typename Step>
constexpr DotLoop dot_loop(const char* instructions) {
  using Lane = decltype(typename Step::Sum{}[0]);
  constexpr auto kLanes = static_cast<int64_t>(sizeof(typename Step::Sum) / sizeof(Lane));
  return {instructions, 2 * Step::kNumAccumulators * kLanes * Step::kProductsPerLane,
          run_dots<Step>};
}

// How far ahead of the loads each stream prefetches: what the hardware's own prefetchers leave on
// the table when a stream crosses a 4 KiB boundary.
inline constexpr int64_t kPrefetchBytes = 512;

// Vector: a GCC vector of uint64_t, as wide as the level's loads.
template <typename Vector, int kStreams>
uint64_t read_streams(const std::byte* data, int64_t bytes) {
  constexpr int64_t kLine = 64;
  constexpr int kLoads = static_cast<int>(kLine / int64_t{sizeof(Vector)});
  const int64_t part = bytes / kStreams;
  Vector sums[kStreams] = {};
  for (int64_t at = 0; at + kLine <= part; at += kLine) {
#pragma GCC unroll 8
    for (int stream = 0; stream < kStreams; ++stream) {
      const std::byte* line = data + stream * part + at;
      __builtin_prefetch(line + kPrefetchBytes);
#pragma GCC unroll 4
      for (int load = 0; load < kLoads; ++load) {
        sums[stream] += reinterpret_cast<const Vector*>(line)[load];
      }
    }
  }
  Vector sum = {};
#pragma GCC unroll 8
  for (int stream = 0; stream < kStreams; ++stream) sum += sums[stream];
  uint64_t total = 0;
  for (size_t lane = 0; lane < sizeof(Vector) / sizeof(uint64_t); ++lane) total += sum[lane];
  return total;
}

}  // namespace
}  // namespace perch_bench
