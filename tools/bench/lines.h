// What a run measures, as text: a suite's line is a case and, where one is asked for, the share of
// the machine's limit that it must reach.
//
//   moe t1 e128 top8 h2048 i768 w=bf16 act=silu >= 0.95
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/case_line.h"
#include "base/status.h"

namespace perch_bench {

struct BenchLine {
  perch::Case problem;
  std::optional<double> required;  // share, 0 to 1
};

// INVALID_ARGUMENT says which column of a case, or which share, is wrong.
perch::Result<BenchLine> parse_bench_line(const std::string& text);

// Those that differ in T, seed and load alone, together: one set of layers serves them all.
std::vector<std::vector<BenchLine>> group_lines(const std::vector<BenchLine>& lines);

}  // namespace perch_bench
