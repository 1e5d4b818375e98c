// One line of the result: a case on a backend at some T, beside the machine's limits.
#pragma once

#include <optional>
#include <string>

#include "bench/limits/limits.h"
#include "bench/timing.h"

namespace perch_bench {

// What was asked for.
struct RowName {
  std::string line;     // the case, or "LAYER t4"
  std::string recipe;   // "w=bf16 act=silu": the colour of the plot
  std::string backend;  // id; "" where the policy chose and nothing fitted
  int64_t t = 0;
  std::optional<double> required;  // share
};

struct Row {
  RowName name;
  std::string kernel;
  uint32_t variant = 0;
  std::string skipped;  // why there are no numbers
  DotClass dot = DotClass::kF32;
  std::string peak_isa, peak_instructions;
  Limits limits;
  bool disturbed = false;  // by other users of the machine, while a limit was measured
  Work work;
  double median_ms = 0, min_ms = 0;
  size_t calls = 0;
  double touched = 1;     // share of the experts
  double cold_bytes = 0;  // of the layers used in turn
  Floor floor;
  double share = 0;
  Standing standing = Standing::kFine;

  double gbps() const { return work.bytes / median_ms / 1e6; }
  double gflops() const { return work.operations / median_ms / 1e6; }
  // False where a time is void or short, or where what was required did not run.
  bool ok() const {
    return skipped.empty() ? standing == Standing::kFine : !name.required.has_value();
  }
  // Whether the command should say so with its exit code.
  bool failed() const { return name.required.has_value() && !ok(); }
};

// Sets floor, share and standing from the times, the work and the limits.
void weigh(Row* row);

// Limits before, calls, limits after; the larger counts. Where the share is impossible the limits
// are measured again, up to three times.
Row measure_row(LayerCycle* cycle, const CallMaker& calls, const RowName& name,
                const TimingOptions& options, MachineLimits* machine);

nlohmann::ordered_json row_json(const Row& row);

}  // namespace perch_bench
