#include "diff_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace perch_command {
namespace {

using nlohmann::ordered_json;
using perch_check::CaseOutcome;
using perch_check::CheckResult;
using perch_check::Status;

// The figure of a row, or nullopt where it was not reached.
std::optional<double> figure(const CheckResult& result, const std::string& name) {
  const auto found = result.figures.find(name);
  if (found == result.figures.end()) return std::nullopt;
  return found->second;
}

ordered_json figure_json(const CheckResult& result, const std::string& name) {
  const auto value = figure(result, name);
  return value ? perch_check::number_json(*value) : ordered_json(nullptr);
}

std::string print_figure(const CheckResult& result, const std::string& name) {
  const auto value = figure(result, name);
  return value ? fmt::format("{:.3f}", *value) : "-";
}

ordered_json row_json(const DiffReport& report, const CaseOutcome& row) {
  const CheckResult& result = row.checks.front();
  const auto identical = figure(result, "identical");
  ordered_json json = {{report.of_model ? "layer" : "case", row.problem},
                       {"kernel_a", row.kernel},
                       {"kernel_b", row.other_kernel},
                       {"status", perch_check::status_name(row.status)},
                       {"identical_bytes", identical ? ordered_json(*identical > 0) : nullptr},
                       {"worst_ratio",
                        {{"a_b", figure_json(result, "a_b")},
                         {"a_oracle", figure_json(result, "a_oracle")},
                         {"b_oracle", figure_json(result, "b_oracle")}}}};
  if (!row.name.empty()) json["name"] = row.name;
  if (!row.reason.empty()) json["reason"] = row.reason;
  if (row.status == Status::kSkipped || row.status == Status::kUntrusted) {
    json["text"] = result.got;
  }
  return json;
}

ordered_json failures_json(const DiffReport& report) {
  ordered_json failures = ordered_json::array();
  for (const perch_check::Failure& failure : report.rows.failures) {
    ordered_json json = perch_check::failure_json(failure);
    json["wrong"] = ordered_json::array();
    for (const char* side : {"a", "b"}) {
      if (figure(failure.result, fmt::format("wrong_{}", side)).value_or(0) > 0) {
        json["wrong"].push_back(side);
      }
    }
    failures.push_back(std::move(json));
  }
  return failures;
}

std::string print_status(const CaseOutcome& row) {
  return row.status == Status::kSkipped ? row.reason : perch_check::status_name(row.status);
}

void print_rows(const DiffReport& report, std::ostream& out) {
  const char* right = report.of_model ? "REFERENCE" : "ORACLE";
  Table table({"STATUS", "BYTES", "A:B", fmt::format("A:{}", right), fmt::format("B:{}", right),
               "A KERNEL", "B KERNEL", report.of_model ? "LAYER" : "CASE"});
  for (const CaseOutcome& row : report.rows.cases) {
    const CheckResult& result = row.checks.front();
    const auto identical = figure(result, "identical");
    table.add({print_status(row),
               !identical       ? "-"
               : *identical > 0 ? "same"
                                : "differ",
               print_figure(result, "a_b"), print_figure(result, "a_oracle"),
               print_figure(result, "b_oracle"), row.kernel.empty() ? "-" : row.kernel,
               row.other_kernel.empty() ? "-" : row.other_kernel, row.problem});
  }
  table.print(out);
}

}  // namespace

std::string DiffSide::print() const {
  return given == library.id ? given : fmt::format("{} ({})", library.id, given);
}

const char* refusal_name(bool a_refuses, bool b_refuses) {
  return a_refuses && b_refuses ? "UNSUPPORTED_BOTH"
         : a_refuses            ? "UNSUPPORTED_A"
                                : "UNSUPPORTED_B";
}

int64_t DiffReport::identical() const {
  return std::count_if(rows.cases.begin(), rows.cases.end(), [](const CaseOutcome& row) {
    return figure(row.checks.front(), "identical").value_or(0) > 0;
  });
}

ordered_json diff_json(const DiffReport& report) {
  ordered_json rows = ordered_json::array();
  for (const CaseOutcome& row : report.rows.cases) rows.push_back(row_json(report, row));
  const ordered_json pair = {{"a", report.a.library.id},
                             {"b", report.b.library.id},
                             {"a_path", report.a.library.path},
                             {"b_path", report.b.library.path},
                             {"device", report.rows.device},
                             {"suite", report.rows.suite},
                             {"oracle", report.of_model ? "reference in f32" : "f64"},
                             {"passed", report.rows.count(Status::kPassed)},
                             {"failed", report.rows.failed()},
                             {"untrusted", report.rows.count(Status::kUntrusted)},
                             {"skipped", report.rows.skipped()},
                             {"identical", report.identical()},
                             {"failures", failures_json(report)}};
  return {{"pairs", ordered_json::array({pair})},
          {"rows", std::move(rows)},
          {"seconds", report.rows.seconds}};
}

void print_diff(const DiffReport& report, std::ostream& out) {
  print_rows(report, out);
  for (const CaseOutcome& row : report.rows.cases) {
    // A suite holds what some backends refuse; a case that somebody named was meant to run.
    const bool named = row.status == Status::kSkipped && report.rows.suite.empty();
    if (!named && row.status != Status::kUntrusted) continue;
    out << fmt::format("{}  {}: {}\n", print_status(row), row.problem, row.checks.front().got);
  }
  const std::string skips = perch_check::print_counts(report.rows.skipped());
  out << fmt::format(
      "A {}, B {}{}: {} rows passed, {} failed, {} untrusted, skipped: {}; {} with identical "
      "bytes; {:.1f} s\n",
      report.a.print(), report.b.print(),
      report.rows.suite.empty() ? "" : ", suite " + report.rows.suite,
      report.rows.count(Status::kPassed), report.rows.failed(),
      report.rows.count(Status::kUntrusted), skips.empty() ? "none" : skips, report.identical(),
      report.rows.seconds);
}

}  // namespace perch_command
