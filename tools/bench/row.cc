#include "bench/row.h"

#include <algorithm>

namespace perch_bench {
namespace {

constexpr int kLimitTries = 3;

// The limits now, kept where they are larger than what is known.
void raise_limits(MachineLimits* machine, Row* row) {
  const ReadLimit read = machine->read();
  row->limits.read_gbps = std::max(row->limits.read_gbps, read.gbps);
  const DotLimit dot = machine->dot(row->dot);
  row->disturbed = row->disturbed || read.disturbed || dot.disturbed;
  if (dot.gflops < row->limits.peak_gflops) return;
  row->limits.peak_gflops = dot.gflops;
  row->peak_isa = dot.isa;
  row->peak_instructions = dot.instructions;
}

}  // namespace

void weigh(Row* row) {
  row->floor = floor_of(row->work, row->limits);
  row->share = row->floor.ms / row->median_ms;
  row->standing = judge(row->share, row->name.required);
}

Row measure_row(LayerCycle* cycle, const CallMaker& calls, const RowName& name,
                const TimingOptions& options, MachineLimits* machine) {
  Row row;
  row.name = name;
  row.name.backend = cycle->info().backend;
  row.kernel = cycle->info().kernel;
  row.variant = cycle->info().variant;
  row.dot = dot_class_of(cycle->config());
  raise_limits(machine, &row);
  const Timing timing = time_calls(cycle, calls, options, row.limits.read_gbps);
  raise_limits(machine, &row);
  row.work = timing.work;
  row.median_ms = timing.median();
  row.min_ms = timing.ms.front();
  row.calls = timing.ms.size();
  row.touched = timing.touched;
  row.cold_bytes = cycle->cold_bytes();
  weigh(&row);
  for (int i = 0; i < kLimitTries && row.standing == Standing::kVoid; ++i) {
    raise_limits(machine, &row);
    weigh(&row);
  }
  return row;
}

nlohmann::ordered_json row_json(const Row& row) {
  nlohmann::ordered_json json = {{"case", row.name.line},
                                 {"backend", row.name.backend},
                                 {"kernel", nullptr},
                                 {"t", row.name.t}};
  const nlohmann::ordered_json required =
      row.name.required ? nlohmann::ordered_json(*row.name.required) : nullptr;
  if (!row.skipped.empty()) {
    for (const char* key : {"median_ms", "floor_ms", "share", "gbps", "gflops"}) {
      json[key] = nullptr;
    }
    json["required"] = required;
    json["ok"] = row.ok();
    json["skipped"] = row.skipped;
    return json;
  }
  json["kernel"] = row.kernel;
  json["variant"] = row.variant;
  json["median_ms"] = row.median_ms;
  json["min_ms"] = row.min_ms;
  json["calls"] = row.calls;
  json["floor_ms"] = row.floor.ms;
  json["bound"] = row.floor.of_memory ? "memory" : "compute";
  json["share"] = row.share;
  json["gbps"] = row.gbps();
  json["gflops"] = row.gflops();
  json["required"] = required;
  json["ok"] = row.ok();
  json["void"] = row.standing == Standing::kVoid;
  json["disturbed"] = row.disturbed;
  json["bytes"] = row.work.bytes;
  json["operations"] = row.work.operations;
  json["experts_touched"] = row.touched;
  json["cold_bytes"] = row.cold_bytes;
  json["class"] = dot_class_name(row.dot);
  json["read_gbps"] = row.limits.read_gbps;
  json["peak_gflops"] = row.limits.peak_gflops;
  json["peak_isa"] = row.peak_isa;
  json["peak_instructions"] = row.peak_instructions;
  return json;
}

}  // namespace perch_bench
