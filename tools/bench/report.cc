#include "bench/report.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <iostream>

namespace perch_bench {
namespace {

std::string print_ms(double ms) {
  return ms < 100 ? fmt::format("{:.3f}", ms) : fmt::format("{:.1f}", ms);
}

// What stands behind a row's numbers: "SHORT, 95 % required".
std::string remark(const Row& row) {
  std::vector<std::string> parts;
  if (row.standing == Standing::kVoid) parts.emplace_back("VOID");
  if (row.standing == Standing::kShort) parts.emplace_back("SHORT");
  if (row.name.required) {
    parts.push_back(fmt::format("{:.0f} % required", 100 * *row.name.required));
  }
  if (row.disturbed) parts.emplace_back("disturbed");
  if (row.calls < kLeastCalls) {
    parts.push_back(fmt::format("{} call{}", row.calls, row.calls == 1 ? "" : "s"));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// What MachineLimits::dot would say, from loops that were measured already.
DotLimit peak_of(const std::vector<MachineLimits::Loop>& loops, DotClass dot) {
  DotLimit own, as_f32;
  for (const MachineLimits::Loop& loop : loops) {
    if (loop.dot == dot) own = loop.limit;
    if (loop.dot == DotClass::kF32) as_f32 = loop.limit;
  }
  return dot == DotClass::kBf16 && as_f32.gflops > own.gflops ? as_f32 : own;
}

}  // namespace

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname system{};
  return uname(&system) == 0 ? system.machine : "unknown";
}

void Report::machine(MachineLimits* limits) {
  cpu_ = cpu_name();
  threads_ = limits->threads();
  buffer_bytes_ = limits->buffer_bytes();
  read_ = limits->read();
  loops_ = limits->measure_all();
  peaks_.clear();
  for (const DotClass dot : kDotClasses) peaks_.push_back(peak_of(loops_, dot));
  if (!people_) return;
  std::cout << fmt::format("{}, {} thread{}\n", cpu_, threads_, threads_ == 1 ? "" : "s");
  std::cout << fmt::format("  reads {:.1f} GB/s from {}, {} streams a thread\n", read_.gbps,
                           perch_command::print_bytes(static_cast<double>(buffer_bytes_)),
                           read_.streams);
  for (const DotClass dot : kDotClasses) {
    const DotLimit& peak = peaks_[static_cast<size_t>(dot)];
    std::cout << fmt::format("  {:<5} {:.0f} GFLOP/s, {}\n", dot_class_name(dot), peak.gflops,
                             peak.instructions);
  }
  std::cout << std::flush;
}

void Report::row(const Row& row) {
  if (people_) group_.push_back(row);
}

void Report::end_group() {
  if (group_.empty()) return;
  perch_command::Table table(
      {"BACKEND", "KERNEL", "T", "MS", "FLOOR", "SHARE", "GB/S", "GFLOP/S", "BOUND", "", "CASE"});
  for (const Row& row : group_) {
    const std::string t = std::to_string(row.name.t);
    if (!row.skipped.empty()) {
      table.add({row.name.backend, "-", t, "-", "-", "-", "-", "-", "-", "skipped", row.name.line});
      continue;
    }
    table.add({fmt::format("{}/{}", row.name.backend, row.variant), row.kernel, t,
               print_ms(row.median_ms), print_ms(row.floor.ms),
               fmt::format("{:.1f} %", 100 * row.share), fmt::format("{:.1f}", row.gbps()),
               fmt::format("{:.1f}", row.gflops()), row.floor.of_memory ? "memory" : "compute",
               remark(row), row.name.line});
  }
  std::cout << "\n";
  table.print(std::cout);
  std::cout << std::flush;
  group_.clear();
}

void Report::summary(const std::vector<Row>& rows) const {
  std::vector<std::string> said;
  for (const Row& row : rows) {
    std::string text;
    if (!row.skipped.empty()) text = row.skipped;
    if (row.standing == Standing::kVoid) {
      text = fmt::format(
          "{}: a share above {:.0f} % cannot be: this machine's limits moved too much to measure",
          row.name.line, 100 * kShareMax);
    }
    if (row.disturbed && text.empty()) {
      text = "disturbed: others used this machine while its limits were measured";
    }
    if (text.empty() || std::find(said.begin(), said.end(), text) != said.end()) continue;
    std::cout << (said.empty() ? "\n" : "") << text << "\n";
    said.push_back(text);
  }
}

nlohmann::ordered_json Report::machine_json() const {
  nlohmann::ordered_json json = {{"cpu", cpu_},
                                 {"threads", threads_},
                                 {"read_gbps", read_.gbps},
                                 {"read_gbps_best", read_.best_gbps},
                                 {"read_bytes", buffer_bytes_},
                                 {"read_streams", read_.streams}};
  for (size_t i = 0; i < peaks_.size(); ++i) {
    json["peak_gflops"][dot_class_name(kDotClasses[i])] = peaks_[i].gflops;
  }
  json["loops"] = nlohmann::ordered_json::array();
  for (const MachineLimits::Loop& loop : loops_) {
    json["loops"].push_back({{"isa", loop.limit.isa},
                             {"class", dot_class_name(loop.dot)},
                             {"instructions", loop.limit.instructions},
                             {"gflops", loop.limit.gflops},
                             {"gflops_best", loop.limit.best_gflops}});
  }
  return json;
}

PlotMachine Report::plot_machine(const std::vector<Row>& rows) const {
  PlotMachine machine;
  machine.title = fmt::format("{}, {} thread{}", cpu_, threads_, threads_ == 1 ? "" : "s");
  std::vector<double> reads;
  for (const Row& row : rows) {
    if (row.skipped.empty()) reads.push_back(row.limits.read_gbps);
  }
  std::sort(reads.begin(), reads.end());
  machine.read_gbps = reads.empty() ? read_.gbps : reads[reads.size() / 2];
  for (const DotClass dot : kDotClasses) {
    const DotLimit& peak = peaks_[static_cast<size_t>(dot)];
    const bool used = std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
      return row.skipped.empty() && row.dot == dot;
    });
    if (used) machine.peaks.emplace_back(dot_class_name(dot), peak.gflops);
  }
  return machine;
}

}  // namespace perch_bench
