#include "bench/limits/limits.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <thread>

namespace perch_bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr double kReadNs = 90e6;  // of passes, for one measurement
constexpr double kDotNs = 40e6;
constexpr double kDotPassNs = 4e6;
constexpr size_t kLeastPasses = 7;

// Runs work(thread) on so many threads that start together. ns from the first start to the last
// end, so that making threads is not counted.
template <typename Work>
double time_together(int threads, const Work& work) {
  std::atomic<int> waiting{threads};
  std::vector<Clock::time_point> begins(static_cast<size_t>(threads)), ends(begins.size());
  std::vector<std::thread> team;
  team.reserve(static_cast<size_t>(threads));
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      --waiting;
      while (waiting.load() > 0) std::this_thread::yield();
      begins[static_cast<size_t>(t)] = Clock::now();
      work(t);
      ends[static_cast<size_t>(t)] = Clock::now();
    });
  }
  for (std::thread& thread : team) thread.join();
  const auto begin = *std::min_element(begins.begin(), begins.end());
  const auto end = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double, std::nano>(end - begin).count();
}

struct Rates {
  double median = 0;
  double best = 0;
  bool disturbed() const { return best > 1.25 * median; }
};

// Repeats pass(), which returns {amount, ns}, until so much time is spent.
template <typename Pass>
Rates repeat(double budget_ns, const Pass& pass) {
  std::vector<double> rates;
  double spent = 0;
  while (rates.size() < kLeastPasses || spent < budget_ns) {
    const std::pair<double, double> done = pass();
    rates.push_back(done.first / done.second);
    spent += done.second;
  }
  std::sort(rates.begin(), rates.end());
  return {rates[rates.size() / 2], rates.back()};
}

// The highest of up to three medians: the first that nobody disturbed.
template <typename Pass>
Rates settle(double budget_ns, const Pass& pass) {
  Rates best;
  for (int i = 0; i < 3; ++i) {
    const Rates rates = repeat(budget_ns, pass);
    if (rates.median > best.median) best = rates;
    if (!best.disturbed()) break;
  }
  return best;
}

std::string known_levels() {
  std::string names;
  for (const LoopSet* set : loop_sets()) names += std::string(names.empty() ? "" : " ") + set->isa;
  return names;
}

}  // namespace

int64_t last_cache_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return int64_t{32} << 20;
}

perch::Result<std::unique_ptr<MachineLimits>> MachineLimits::open(int threads,
                                                                  const std::string& isa) {
  size_t count = 0;
  bool found = false;
  for (const LoopSet* set : loop_sets()) {
    if (!set->runs()) {
      if (!isa.empty() && !found && isa == set->isa) {
        return perch::unsupported(fmt::format("isa: got {}, which this CPU lacks", isa));
      }
      continue;
    }
    if (found) break;
    ++count;
    found = isa == set->isa;
  }
  if (!isa.empty() && !found) {
    return perch::invalid_argument(
        fmt::format("isa: got \"{}\"; want one of: {}", isa, known_levels()));
  }
  return std::unique_ptr<MachineLimits>(new MachineLimits(threads, count));
}

MachineLimits::MachineLimits(int threads, size_t num_sets)
    : threads_(threads), num_sets_(num_sets) {
  for (size_t i = 0; i < num_sets_; ++i) {
    if (loop_sets()[i]->read[0] != nullptr) read_set_ = loop_sets()[i];
  }
}

MachineLimits::~MachineLimits() {
  if (buffer_ != nullptr) munmap(buffer_, static_cast<size_t>(buffer_bytes_));
}

void MachineLimits::map_buffer() {
  const int64_t want = std::max(int64_t{512} << 20, 4 * last_cache_bytes());
  // Eight passes go once around each thread's part.
  constexpr int64_t kRound = 8 * kHugePage;
  const int64_t part = (want / threads_ + kRound - 1) / kRound * kRound;
  pass_bytes_ = part / 8;
  buffer_bytes_ = part * threads_;
  // A mapping with room to cut it at 2 MiB, so that every byte can lie on a large page.
  const auto mapped = static_cast<size_t>(buffer_bytes_ + kHugePage);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const size_t before = (kHugePage - address % kHugePage) % kHugePage;
  buffer_ = static_cast<std::byte*>(memory) + before;
  if (before > 0) munmap(memory, before);
  munmap(buffer_ + buffer_bytes_, static_cast<size_t>(kHugePage) - before);
  madvise(buffer_, static_cast<size_t>(buffer_bytes_), MADV_HUGEPAGE);
  // Each thread fills what it will read, which puts it on that thread's memory node.
  time_together(threads_,
                [&](int t) { std::memset(buffer_ + t * part, 1, static_cast<size_t>(part)); });
}

double MachineLimits::read_pass(size_t stream_index) {
  const int64_t part = 8 * pass_bytes_;
  const int64_t at = next_pass_++ % 8 * pass_bytes_;
  std::atomic<uint64_t> sum{0};
  const double ns = time_together(threads_, [&](int t) {
    sum += read_set_->read[stream_index](buffer_ + t * part + at, pass_bytes_);
  });
  return sum.load() == 0 ? 0 : ns;
}

void MachineLimits::choose_streams() {
  double best = 0;
  for (size_t i = 0; i < kStreamCounts.size(); ++i) {
    const auto bytes = static_cast<double>(pass_bytes_ * threads_);
    const Rates rates = repeat(0, [&] { return std::pair(bytes, read_pass(i)); });
    if (rates.median <= best) continue;
    best = rates.median;
    stream_index_ = i;
  }
}

ReadLimit MachineLimits::read() {
  if (buffer_ == nullptr) {
    map_buffer();
    if (buffer_ == nullptr) return {};
    choose_streams();
  }
  const auto bytes = static_cast<double>(pass_bytes_ * threads_);
  const Rates rates = settle(kReadNs, [&] { return std::pair(bytes, read_pass(stream_index_)); });
  return {rates.median, rates.best, rates.disturbed(), kStreamCounts[stream_index_]};
}

DotLimit MachineLimits::measure(const LoopSet& set, DotClass dot) {
  const DotLoop& loop = set.dots[static_cast<size_t>(dot)];
  std::atomic<double> sum{0};
  const auto pass = [&](int64_t rounds) {
    const double ns = time_together(threads_, [&](int) { sum.store(loop.run(rounds)); });
    return std::pair(static_cast<double>(rounds * loop.operations_per_round * threads_), ns);
  };
  int64_t rounds = 1 << 10;
  while (pass(rounds).second < kDotPassNs / 2) rounds *= 2;
  const Rates rates = settle(kDotNs, [&] { return pass(rounds); });
  return {rates.median, rates.best, rates.disturbed(), set.isa, loop.instructions};
}

const LoopSet* MachineLimits::level_of(DotClass dot) const {
  const LoopSet* highest = nullptr;
  for (size_t i = 0; i < num_sets_; ++i) {
    const LoopSet* set = loop_sets()[i];
    if (set->dots[static_cast<size_t>(dot)].run != nullptr) highest = set;
  }
  return highest;
}

DotLimit MachineLimits::dot(DotClass dot) {
  const LoopSet* own = level_of(dot);
  DotLimit best;
  if (own != nullptr) best = measure(*own, dot);
  if (dot != DotClass::kBf16) return best;
  const DotLimit as_f32 = measure(*level_of(DotClass::kF32), DotClass::kF32);
  return as_f32.gflops > best.gflops ? as_f32 : best;
}

std::vector<MachineLimits::Loop> MachineLimits::measure_all() {
  std::vector<Loop> all;
  for (size_t i = 0; i < num_sets_; ++i) {
    for (const DotClass dot : kDotClasses) {
      const LoopSet* set = loop_sets()[i];
      if (set->dots[static_cast<size_t>(dot)].run == nullptr) continue;
      all.push_back({set, dot, measure(*set, dot)});
    }
  }
  return all;
}

}  // namespace perch_bench
