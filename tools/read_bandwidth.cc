#include "read_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace perch_command {
namespace {

constexpr int64_t kBytesPerThread = int64_t{384} << 20;
constexpr int kPasses = 7;

// Four streams, because a single one does not keep enough lines in flight.
uint64_t sum_streams(const uint64_t* data, int64_t count) {
  const int64_t quarter = count / 4;
  uint64_t sums[4][8] = {};
  for (int64_t i = 0; i + 8 <= quarter; i += 8) {
    for (int64_t stream = 0; stream < 4; ++stream) {
      const uint64_t* line = data + stream * quarter + i;
      __builtin_prefetch(line + 64);
      for (int lane = 0; lane < 8; ++lane) sums[stream][lane] += line[lane];
    }
  }
  uint64_t sum = 0;
  for (const auto& stream : sums) {
    for (const uint64_t lane : stream) sum += lane;
  }
  return sum;
}

}  // namespace

double read_bandwidth_gbps(int threads) {
  const auto bytes = static_cast<size_t>(kBytesPerThread) * static_cast<size_t>(threads);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  madvise(memory, bytes, MADV_HUGEPAGE);
  auto* words = static_cast<uint64_t*>(memory);
  std::fill(words, words + bytes / sizeof(uint64_t), 1);
  std::vector<uint64_t> sink(static_cast<size_t>(threads));
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        sink[static_cast<size_t>(t)] += sum_streams(words + t * (kBytesPerThread / 8),
                                                    kBytesPerThread / int64_t{sizeof(uint64_t)});
      });
    }
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(bytes) / taken.count());
  }
  munmap(memory, bytes);
  return sink[0] == 0 ? 0 : best;
}

}  // namespace perch_command
