// What a run of checks found: counts, failures with their smallest case, JSON and text.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <set>

#include "check/shrink.h"

namespace perch_check {

struct Failure {
  std::string check;
  std::string problem;     // the case it was found with
  std::string reproducer;  // one command
  CheckResult result;      // of the smallest case
};

// One candidate on one case.
struct CaseOutcome {
  std::string problem;
  std::string name;  // of the suite's line
  uint32_t variant = 0;
  std::string kernel;
  Status status = Status::kPassed;
  std::string reason;  // of a skip
  std::vector<CheckResult> checks;
  std::string other_kernel = "";  // of the candidate that `perch diff` compares with
};

struct Report {
  std::string backend, device = "cpu:0", suite;
  std::vector<CaseOutcome> cases;
  std::vector<Failure> failures;
  double seconds = 0;

  int64_t count(Status status) const;
  int64_t failed() const;
  std::map<std::string, int64_t> skipped() const;  // cases by reason
};

// The outcome of a case from those of its checks.
void settle(CaseOutcome* outcome);

nlohmann::ordered_json report_json(const Report& report);
nlohmann::ordered_json failure_json(const Failure& failure);
// A number or, for what JSON has no number for, null.
nlohmann::ordered_json number_json(double value);
// In one line where one of `earlier` has the same reproducer.
void print_failure(const Failure& failure, const std::vector<Failure>& earlier, std::ostream& out);
std::string print_counts(const std::map<std::string, int64_t>& counts);  // "3 NOT_PROMISED, ..."
void print_report(const Report& report, std::ostream& out);

}  // namespace perch_check
