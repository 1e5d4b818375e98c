// Jobs: the checks of one candidate on one case, in a child process each, several at once.
//
// A crash or a hang is a status of the check that ran, and the others go on in a new child. The
// parent opens no backend.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/check.h"

namespace perch_check {

enum class Status { kPassed, kFailed, kUntrusted, kSkipped, kCrashed, kTimeout };
const char* status_name(Status status);  // "passed" "CRASHED"
inline bool is_failure(Status status) {
  return status == Status::kFailed || status == Status::kCrashed || status == Status::kTimeout;
}

struct CheckResult {
  std::string check;
  Status status = Status::kPassed;
  std::string reason;            // of a skip: "NOT_PROMISED"
  std::string where, got, want;  // of what is not passed; a skip's and an untrusted's text is got
  std::map<std::string, double> figures;
  double seconds = 0;
};

// A candidate that another is compared with.
struct Opponent {
  std::string library;
  uint32_t variant = 0;
};

struct Job {
  std::string library;
  perch::Case problem;
  uint32_t variant = 0;
  std::vector<std::string> checks;
  std::optional<Opponent> other = std::nullopt;  // of the check "diff"
};

// What a candidate is, as asked in a child.
struct CandidateInfo {
  uint32_t variant = 0;
  bool yes = false;
  std::string kernel;
  perch_caps caps = 0;
  std::string refusal;
};

struct JobOptions {
  bool isolate = true;
  double timeout_s = 60;  // of one check
  int jobs = 1;
};

// Calls done(i, results) for each job as it ends; results are in the order of job.checks.
void run_jobs(const std::vector<Job>& jobs, const JobOptions& options,
              const std::function<void(size_t, std::vector<CheckResult>)>& done);

// The variants of a library for one case. Throws std::runtime_error with what went wrong, a crash
// included.
std::vector<CandidateInfo> ask_candidates(const std::string& library, const perch::Case& problem,
                                          const JobOptions& options);

}  // namespace perch_check
