// What a call cannot be faster than on this machine, and what a time is worth beside it.
#pragma once

#include <optional>

#include "base/case_line.h"
#include "bench/limits/limit_loops.h"

namespace perch_bench {

// What one call has to do.
struct Work {
  double bytes = 0;       // of the weights it must read
  double operations = 0;  // 2 N K for each row of each matrix
};

// The machine beside the call.
struct Limits {
  double read_gbps = 0;
  double peak_gflops = 0;
};

struct Floor {
  double ms = 0;
  bool of_memory = false;  // else of arithmetic
};
Floor floor_of(const Work& work, const Limits& limits);

// Above this share a time and its limits contradict each other.
inline constexpr double kShareMax = 1.05;

enum class Standing {
  kFine,
  kShort,  // of what was required
  kVoid,   // the share is impossible: the limits were measured too low
};
Standing judge(double share, std::optional<double> required);

// int8 where the layer quantizes its activations to it, bf16 where x is bf16, else f32.
DotClass dot_class_of(const perch_layer_config& config);

// 2 N K summed over the matrices: of one row through one expert, or through a linear layer.
double operations_per_visit(const perch_layer_config& config);

}  // namespace perch_bench
