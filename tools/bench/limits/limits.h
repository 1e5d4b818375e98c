// The machine's limits: how fast all threads together read memory and multiply. Measured beside
// what is compared with them, since other users of a machine move them from minute to minute.
//
// Not a property of the hardware alone: of this process's threads, now.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/limits/limit_loops.h"

namespace perch_bench {

// Medians over the passes of one measurement are what counts: a median of calls is compared with
// them, and a pass that was disturbed should move neither. Where the best pass is far above the
// median, others used the machine: it is measured again, twice at most, and then said.
struct ReadLimit {
  double gbps = 0;       // median
  double best_gbps = 0;  // of one pass
  bool disturbed = false;
  int streams = 0;  // per thread
};

struct DotLimit {
  double gflops = 0;  // operations per ns; integer ones for int8
  double best_gflops = 0;
  bool disturbed = false;
  const char* isa = "";           // level of the loop: "avx512_vnni"
  const char* instructions = "";  // "vpdpbusd zmm"
};

// The first read maps and fills memory (2 MiB pages where the system gives them, four times the
// last level of cache and at least 512 MiB), so keep it. A measurement takes about 0.1 s of all
// threads.
class MachineLimits {
 public:
  // isa: no level above this one; "" is all that the machine has. INVALID_ARGUMENT names the levels
  // where it is none of them, UNSUPPORTED where this CPU lacks it.
  static perch::Result<std::unique_ptr<MachineLimits>> open(int threads, const std::string& isa);
  ~MachineLimits();
  MachineLimits(const MachineLimits&) = delete;
  MachineLimits& operator=(const MachineLimits&) = delete;

  int threads() const { return threads_; }
  int64_t buffer_bytes() const { return buffer_bytes_; }
  // Zeros where there is no memory for it.
  ReadLimit read();
  // bf16 has the better of its own instruction and f32's: after a conversion that costs little per
  // product, bf16 can be multiplied as f32, and on some CPUs (Sapphire Rapids) that is faster.
  DotLimit dot(DotClass dot);

  // Each loop that this CPU has, up to the level: for the table of limits.
  struct Loop {
    const LoopSet* set;
    DotClass dot;
    DotLimit limit;
  };
  std::vector<Loop> measure_all();

 private:
  MachineLimits(int threads, size_t num_sets);
  void map_buffer();
  void choose_streams();
  double read_pass(size_t stream_index);
  DotLimit measure(const LoopSet& set, DotClass dot);
  const LoopSet* level_of(DotClass dot) const;

  int threads_;
  size_t num_sets_;  // of loop_sets(), from the first
  const LoopSet* read_set_ = nullptr;
  size_t stream_index_ = 0;
  std::byte* buffer_ = nullptr;
  int64_t buffer_bytes_ = 0;
  int64_t pass_bytes_ = 0;  // of one thread
  int64_t next_pass_ = 0;
};

// Bytes of the last level of cache, as the system says; 32 MiB where it does not.
int64_t last_cache_bytes();

}  // namespace perch_bench
