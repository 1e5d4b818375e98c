#include "check/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "command.h"

namespace perch_check {
namespace {

using nlohmann::ordered_json;

struct Tally {
  int64_t passed = 0, failed = 0, untrusted = 0;
  std::map<std::string, int64_t> skipped;
  double worst_ratio = 0, seconds = 0;
};

std::map<std::string, Tally> tally_checks(const Report& report) {
  std::map<std::string, Tally> tallies;
  for (const CaseOutcome& outcome : report.cases) {
    for (const CheckResult& result : outcome.checks) {
      Tally& tally = tallies[result.check];
      if (result.status == Status::kPassed) ++tally.passed;
      if (is_failure(result.status)) ++tally.failed;
      if (result.status == Status::kUntrusted) ++tally.untrusted;
      if (result.status == Status::kSkipped) ++tally.skipped[result.reason];
      tally.seconds += result.seconds;
      const auto ratio = result.figures.find("worst_ratio");
      if (ratio != result.figures.end()) {
        tally.worst_ratio = std::max(tally.worst_ratio, ratio->second);
      }
    }
  }
  return tallies;
}

ordered_json checks_json(const Report& report) {
  ordered_json checks = ordered_json::object();
  for (const auto& [name, tally] : tally_checks(report)) {
    checks[name] = {{"passed", tally.passed},
                    {"failed", tally.failed},
                    {"untrusted", tally.untrusted},
                    {"skipped", tally.skipped},
                    {"seconds", tally.seconds}};
    if (tally.worst_ratio > 0) checks[name]["worst_ratio"] = number_json(tally.worst_ratio);
  }
  return checks;
}

}  // namespace

std::string print_counts(const std::map<std::string, int64_t>& counts) {
  std::string text;
  for (const auto& [reason, count] : counts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, reason);
  }
  return text;
}

ordered_json number_json(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json failure_json(const Failure& failure) {
  return {{"check", failure.check},           {"case", failure.problem},
          {"reproducer", failure.reproducer}, {"status", status_name(failure.result.status)},
          {"where", failure.result.where},    {"got", failure.result.got},
          {"want", failure.result.want}};
}

int64_t Report::count(Status status) const {
  return std::count_if(cases.begin(), cases.end(),
                       [&](const CaseOutcome& outcome) { return outcome.status == status; });
}

int64_t Report::failed() const {
  return std::count_if(cases.begin(), cases.end(),
                       [](const CaseOutcome& outcome) { return is_failure(outcome.status); });
}

std::map<std::string, int64_t> Report::skipped() const {
  std::map<std::string, int64_t> counts;
  for (const CaseOutcome& outcome : cases) {
    if (outcome.status == Status::kSkipped) ++counts[outcome.reason];
  }
  return counts;
}

void settle(CaseOutcome* outcome) {
  bool passed = false;
  bool untrusted = false;
  bool refused = false;
  const std::string unsupported = skip_name(Skipped::Reason::kUnsupported);
  for (const CheckResult& result : outcome->checks) {
    if (is_failure(result.status)) {
      outcome->status = result.status;
      return;
    }
    refused = refused || result.reason == unsupported;
    passed = passed || result.status == Status::kPassed;
    untrusted = untrusted || result.status == Status::kUntrusted;
    if (result.status == Status::kSkipped && outcome->reason.empty()) {
      outcome->reason = result.reason;
    }
  }
  if (refused) {
    // That the refusal itself was in order makes it no pass.
    outcome->status = Status::kSkipped;
    outcome->reason = unsupported;
    return;
  }
  outcome->status = untrusted ? Status::kUntrusted : passed ? Status::kPassed : Status::kSkipped;
  if (outcome->status != Status::kSkipped) outcome->reason.clear();
}

ordered_json report_json(const Report& report) {
  ordered_json failures = ordered_json::array();
  for (const Failure& failure : report.failures) failures.push_back(failure_json(failure));
  ordered_json cases = ordered_json::array();
  for (const CaseOutcome& outcome : report.cases) {
    ordered_json one = {{"case", outcome.problem},
                        {"variant", outcome.variant},
                        {"kernel", outcome.kernel},
                        {"status", status_name(outcome.status)}};
    if (!outcome.name.empty()) one["name"] = outcome.name;
    if (!outcome.reason.empty()) one["reason"] = outcome.reason;
    ordered_json untrusted = ordered_json::array();
    for (const CheckResult& result : outcome.checks) {
      const auto ratio = result.figures.find("worst_ratio");
      if (ratio != result.figures.end()) one["worst_ratio"] = number_json(ratio->second);
      if (result.status == Status::kUntrusted) {
        untrusted.push_back({{"check", result.check}, {"text", result.got}});
      }
    }
    if (!untrusted.empty()) one["untrusted"] = untrusted;
    cases.push_back(one);
  }
  return {{"backend", report.backend},     {"device", report.device},
          {"suite", report.suite},         {"passed", report.count(Status::kPassed)},
          {"failed", report.failed()},     {"untrusted", report.count(Status::kUntrusted)},
          {"skipped", report.skipped()},   {"failures", failures},
          {"checks", checks_json(report)}, {"cases", cases},
          {"seconds", report.seconds}};
}

void print_failure(const Failure& failure, const std::vector<Failure>& earlier, std::ostream& out) {
  const bool known = std::any_of(earlier.begin(), earlier.end(), [&](const Failure& other) {
    return other.reproducer == failure.reproducer;
  });
  if (known) {
    out << fmt::format("{} {}  {}: as above\n", status_name(failure.result.status), failure.check,
                       failure.problem);
    return;
  }
  out << fmt::format(
      "{} {}  {}\n  {}: got {}{}{}\n  repro: {}\n", status_name(failure.result.status),
      failure.check, failure.problem, failure.result.where, failure.result.got,
      failure.result.want.empty() ? "" : "; want ", failure.result.want, failure.reproducer);
}

void print_report(const Report& report, std::ostream& out) {
  perch_command::Table table({"CHECK", "PASSED", "FAILED", "UNTRUSTED", "SKIPPED", "SECONDS"});
  const auto tallies = tally_checks(report);
  for (const Check& check : all_checks()) {
    const auto found = tallies.find(check.name);
    if (found == tallies.end()) continue;
    const Tally& tally = found->second;
    table.add({check.name, std::to_string(tally.passed), std::to_string(tally.failed),
               std::to_string(tally.untrusted), print_counts(tally.skipped),
               fmt::format("{:.1f}", tally.seconds)});
  }
  table.print(out);
  std::set<std::string> kernels;
  for (const CaseOutcome& outcome : report.cases) {
    if (outcome.status == Status::kPassed) kernels.insert(outcome.kernel);
  }
  out << "kernels that passed a case:";
  for (const std::string& kernel : kernels) out << " " << kernel;
  for (const CaseOutcome& outcome : report.cases) {
    for (const CheckResult& result : outcome.checks) {
      if (result.status != Status::kUntrusted) continue;
      out << fmt::format("\nUNTRUSTED {}  {}: {}", result.check, outcome.problem, result.got);
    }
  }
  const auto numbers = tallies.find("numbers");
  if (numbers != tallies.end()) {
    out << fmt::format("\nworst element: {:.3f} of what is allowed", numbers->second.worst_ratio);
  }
  const std::string skips = print_counts(report.skipped());
  out << fmt::format("\n{} {}: {} cases passed, {} failed, {} untrusted, skipped: {}; {:.1f} s\n",
                     report.backend, report.suite, report.count(Status::kPassed), report.failed(),
                     report.count(Status::kUntrusted), skips.empty() ? "none" : skips,
                     report.seconds);
}

}  // namespace perch_check
