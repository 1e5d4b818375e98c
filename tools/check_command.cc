// perch check: is a backend right, are its promises true, is its memory clean?
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "base/recipe.h"
#include "check/locate.h"
#include "check/report.h"
#include "check/select_cases.h"
#include "command.h"

namespace perch_command {
namespace {

using perch_check::CandidateInfo;
using perch_check::CaseOutcome;
using perch_check::CheckResult;
using perch_check::Failure;
using perch_check::Job;
using perch_check::Report;
using perch_check::SuiteLine;
using Clock = std::chrono::steady_clock;

// At most this many failures are made small; the others keep their case.
constexpr size_t kShrunkMost = 10;

struct CheckOptions {
  std::string backend, plugin, suite, device = "cpu";
  std::vector<std::string> cases;
  std::string checks;  // separated by commas: a list option would swallow the cases behind it
  bool checks_given = false;
  std::vector<std::string> layer_options;
  std::string regressions;
  bool no_isolate = false, no_shrink = false, list = false;
  double timeout_s = 60;
  double shrink_s = 20;
  int jobs = 0;
};

std::vector<std::string> chosen_checks(const CheckOptions& options) {
  std::vector<std::string> names;
  std::istringstream words(options.checks);
  for (std::string name; std::getline(words, name, ',');) names.push_back(name);
  if (names.empty() && options.checks_given) names.emplace_back();
  for (const std::string& name : names) {
    if (perch_check::find_check(name) != nullptr) continue;
    std::string all;
    for (const auto& check : perch_check::all_checks()) all += fmt::format(" {}", check.name);
    throw perch_command::Failure(kExitBadInput,
                                 fmt::format("--check: got \"{}\"; want of:{}", name, all));
  }
  if (!names.empty()) return names;
  for (const auto& check : perch_check::all_checks()) names.emplace_back(check.name);
  return names;
}

class CheckRun {
 public:
  CheckRun(const CommonOptions& common, const CheckOptions& options)
      : common_(common),
        options_(options),
        layer_options_(parse_layer_options(options.layer_options)),
        begin_(Clock::now()) {
    job_options_.isolate = !options.no_isolate;
    job_options_.timeout_s = options.timeout_s;
    job_options_.jobs = options.jobs > 0
                            ? options.jobs
                            : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }

  int run() {
    const std::vector<std::string> checks = chosen_checks(options_);
    const std::vector<SuiteLine> lines =
        perch_check::select_cases(options_.cases, options_.suite, &report_.suite);
    if (options_.list) return list(lines);
    if (options_.backend.empty() == options_.plugin.empty()) {
      throw perch_command::Failure(kExitBadInput, "want --backend ID or --plugin FILE");
    }
    if (options_.device != "cpu" && options_.device != "cpu:0") {
      throw perch_command::Failure(kExitBadInput,
                                   fmt::format("--device: got \"{}\"; want cpu", options_.device));
    }
    library_ = options_.plugin.empty() ? perch_check::locate_backend(common_, options_.backend)
                                       : perch_check::locate_plugin(common_, options_.plugin);
    report_.backend = library_.id;
    make_jobs(lines, checks);
    perch_check::run_jobs(jobs_, job_options_, [&](size_t i, std::vector<CheckResult> results) {
      take(i, std::move(results));
    });
    report_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    progress_.reset();
    if (common_.json) {
      std::cout << perch_check::report_json(report_).dump(2) << "\n";
    } else {
      perch_check::print_report(report_, std::cout);
    }
    return exit_code();
  }

 private:
  int list(const std::vector<SuiteLine>& lines) const {
    for (const SuiteLine& line : lines) {
      std::cout << (line.name.empty() ? "" : line.name + ": ") << line.line << "\n";
    }
    return kExitFine;
  }

  // A job per case and candidate. A case that no variant takes is one job: its refusal is checked.
  void make_jobs(const std::vector<SuiteLine>& lines, const std::vector<std::string>& checks) {
    for (const SuiteLine& line : lines) {
      perch::Case problem = perch::parse_case(line.line).value();
      for (const auto& [key, value] : layer_options_) problem.config.set_option(key, value);
      std::vector<CandidateInfo> candidates;
      try {
        candidates = perch_check::ask_candidates(library_.path, problem, job_options_);
      } catch (const std::exception& error) {
        lose(line, error.what());
        continue;
      }
      std::vector<CandidateInfo> fitting = perch_check::fitting_candidates(problem, candidates);
      if (fitting.empty()) {
        fitting.push_back({0, false, "", 0, perch_check::print_refusals(problem, candidates)});
      }
      for (const CandidateInfo& info : fitting) {
        jobs_.push_back({library_.path, problem, info.variant, checks});
        outcomes_.push_back({line.line, line.name, info.variant, info.kernel, {}, "", {}});
      }
    }
  }

  // query_support itself failed or crashed.
  void lose(const SuiteLine& line, const std::string& why) {
    CheckResult result;
    result.check = "claims";
    result.status = perch_check::Status::kCrashed;
    result.where = "query_support";
    result.got = why;
    CaseOutcome outcome{line.line, line.name, 0, "", result.status, "", {result}};
    report_.cases.push_back(outcome);
    add_failure({"claims", line.line, command_of("claims", line.line), result});
  }

  std::string command_of(const std::string& check, const std::string& problem) const {
    const std::string which = options_.plugin.empty()
                                  ? "--backend " + library_.id
                                  : "--plugin " + perch_check::shell_quoted(library_.path);
    std::string options;
    for (const std::string& option : options_.layer_options) {
      options += " --option " + perch_check::shell_quoted(option);
    }
    return fmt::format("perch check {} --check {}{} '{}'", which, check, options, problem);
  }

  void take(size_t i, std::vector<CheckResult> results) {
    CaseOutcome outcome = outcomes_[i];
    outcome.checks = std::move(results);
    perch_check::settle(&outcome);
    for (const CheckResult& result : outcome.checks) {
      if (perch_check::is_failure(result.status)) explain(i, result);
    }
    report_.cases.push_back(std::move(outcome));
    if (progress_ == nullptr) progress_ = std::make_unique<Progress>(!common_.quiet);
    progress_->show(fmt::format("{} of {} cases, {} failures", report_.cases.size(), jobs_.size(),
                                report_.failures.size()));
  }

  // Makes the failure small, and says how to see it again.
  void explain(size_t i, const CheckResult& result) {
    Job job = jobs_[i];
    job.checks = {result.check};
    perch_check::Shrunk small{job.problem, result, 0};
    if (!options_.no_shrink && report_.failures.size() < kShrunkMost) {
      small = perch_check::shrink(job, result, job_options_, options_.shrink_s);
    }
    name_kernel(job.variant, &small.problem);
    const std::string line = perch::print_case(small.problem);
    add_failure({result.check, outcomes_[i].problem, command_of(result.check, line), small.result});
    write_regression(result.check, line, small.result);
  }

  // The smallest case for this variant alone.
  void name_kernel(uint32_t variant, perch::Case* problem) const {
    try {
      const auto candidates = perch_check::ask_candidates(library_.path, *problem, job_options_);
      const auto yes = std::count_if(candidates.begin(), candidates.end(),
                                     [](const CandidateInfo& info) { return info.yes; });
      for (const CandidateInfo& info : candidates) {
        if (info.variant == variant && info.yes && yes > 1) problem->kernel = info.kernel;
      }
    } catch (const std::exception&) {
      problem->kernel.clear();  // it cannot even be asked any more: the case says all
    }
  }

  void add_failure(Failure failure) {
    if (!common_.json) {
      progress_.reset();
      perch_check::print_failure(failure, report_.failures, std::cout);
    }
    report_.failures.push_back(std::move(failure));
  }

  void write_regression(const std::string& check, const std::string& line,
                        const CheckResult& result) const {
    if (options_.regressions.empty()) return;
    std::error_code failed;
    std::filesystem::create_directories(options_.regressions, failed);
    const std::string path = fmt::format("{}/{:016x}.cases", options_.regressions,
                                         std::hash<std::string>()(check + line));
    std::ofstream file(path);
    file << "# " << check << ": " << result.where << ": got " << result.got << "\n" << line << "\n";
    file.close();
    if (!file) throw perch_command::Failure(kExitBadInput, path + ": cannot be written");
  }

  int exit_code() const {
    if (report_.failed() > 0) return kExitFailed;
    const bool strict = report_.suite == "ci" || report_.suite == "nightly";
    if (strict && report_.count(perch_check::Status::kUntrusted) > 0) return kExitFailed;
    const bool none = report_.count(perch_check::Status::kPassed) == 0 &&
                      report_.count(perch_check::Status::kUntrusted) == 0;
    // Cases that somebody named must run; a suite holds what some backends refuse.
    return none && report_.suite.empty() ? kExitNoBackend : kExitFine;
  }

  const CommonOptions& common_;
  const CheckOptions& options_;
  std::vector<std::pair<std::string, std::string>> layer_options_;
  Clock::time_point begin_;
  perch_check::JobOptions job_options_;
  perch_check::Located library_;
  std::vector<Job> jobs_;
  std::vector<CaseOutcome> outcomes_;
  Report report_;
  std::unique_ptr<Progress> progress_;
};

std::string describe_checks() {
  std::string text = "\nChecks:\n";
  for (const auto& check : perch_check::all_checks()) {
    text += fmt::format("  {:18} {}{}\n", check.name, check.about,
                        check.needs == 0 ? "" : " (where " + perch::print_caps(check.needs) + ")");
  }
  return text + "\nA failure of any of them, a crash or a timeout: exit code 1.\n";
}

}  // namespace

void register_check(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command = app->add_subcommand(
      "check", "is a backend right, are its promises true, is its memory clean");
  auto options = std::make_shared<CheckOptions>();
  command->add_option("CASE", options->cases, "case lines; without any, the suite");
  command->add_option("--backend", options->backend, "an installed backend's id");
  command->add_option("--plugin", options->plugin, "a backend library's file");
  command->add_option("--suite", options->suite, "smoke, ci, nightly or a file [smoke]");
  command->add_option("--check", options->checks, "only these checks, separated by commas");
  command
      ->add_option("--option", options->layer_options,
                   "KEY=VALUE: a compute option of each case's layer, such as isa=avx2")
      ->allow_extra_args(false);
  command->add_option("--device", options->device, "cpu");
  command->add_option("--jobs", options->jobs, "cases at once [one per core]")
      ->check(CLI::PositiveNumber);
  command->add_option("--timeout", options->timeout_s, "seconds that one check may take [60]")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--shrink-seconds", options->shrink_s,
                   "seconds to spend on making a failure small [20]")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--regressions", options->regressions,
                      "directory for a file per failure, which --suite reads");
  command->add_flag("--no-isolate", options->no_isolate,
                    "run in this process: for a debugger; a crash ends the command");
  command->add_flag("--no-shrink", options->no_shrink, "report failures with their own case");
  command->add_flag("--list", options->list, "print the cases and stop");
  add_common_options(command, common);
  command->footer(describe_checks());
  command->callback([=] {
    options->checks_given = command->count("--check") > 0;
    *handler = [=] { return CheckRun(*common, *options).run(); };
  });
}

}  // namespace perch_command
