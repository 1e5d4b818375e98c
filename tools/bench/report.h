// What a run prints for people, and what all of it says of the machine.
#pragma once

#include <string>
#include <vector>

#include "bench/plot.h"
#include "bench/row.h"

namespace perch_bench {

class Report {
 public:
  // people: print as the run goes; else nothing is printed.
  explicit Report(bool people) : people_(people) {}

  // Measures every loop that the machine has, once for each number of threads.
  void machine(MachineLimits* limits);
  void row(const Row& row);
  // Prints the rows since the last call as one table.
  void end_group();
  // What a reader must know of rows that are not fine.
  void summary(const std::vector<Row>& rows) const;

  nlohmann::ordered_json machine_json() const;
  // Medians over the limits beside the rows.
  PlotMachine plot_machine(const std::vector<Row>& rows) const;

 private:
  bool people_;
  std::string cpu_;
  int threads_ = 0;
  int64_t buffer_bytes_ = 0;
  ReadLimit read_;
  std::vector<DotLimit> peaks_;  // by class
  std::vector<MachineLimits::Loop> loops_;
  std::vector<Row> group_;
};

// The processor's name, as the system gives it.
std::string cpu_name();

}  // namespace perch_bench
