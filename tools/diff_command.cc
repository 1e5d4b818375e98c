// perch diff: do two backends agree, with each other and with what is right, and if not, which of
// them is wrong?
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <thread>

#include "check/select_cases.h"
#include "check/shrink.h"
#include "command.h"
#include "diff_model.h"

namespace perch_command {
namespace {

using perch_check::CandidateInfo;
using perch_check::CaseOutcome;
using perch_check::CheckResult;
using perch_check::Job;
using perch_check::Status;
using perch_check::SuiteLine;
using Clock = std::chrono::steady_clock;

// At most this many failures are made small; the others keep their case.
constexpr size_t kShrunkMost = 10;

struct DiffOptions {
  std::string a, b, suite;
  std::vector<std::string> what;  // cases, or one model
  ModelOptions model;
  InputOptions input;
  std::vector<std::string> model_only;  // options that were given and mean nothing to a case
  bool no_isolate = false, no_shrink = false;
  double timeout_s = 60;
  double shrink_s = 20;
  int jobs = 0;
};

constexpr const char* kFooter = R"(
A and B: ids of installed backends, or files of plugins (what has a / or ends in .so).
A case is run by each kernel of A that takes it beside each of B, both with the same data; a kernel
that it names is looked for on both sides, and binds those that have it. Without CASE and MODEL: the
smoke suite.

What a row says
  BYTES                 same: the two outputs hold the same bytes
  A:B                   the largest distance of two elements, as a share of what is allowed between
                        two backends: twice the bound, since each may be off by one bound
  A:ORACLE, B:ORACLE    the largest distance from the exact answer, as a share of the bound; for a
                        MODEL (A:REFERENCE) from the reference backend's output in f32
A row passes when none of the three is above 1 and, for a case, both give the exact result on data
that has one. A failure says which of the two is wrong; one of a case comes with the smallest case
that shows it.

JSON: {"pairs":[{"a","b","device","suite","passed","failed","untrusted","skipped":{"REASON":n},
"identical","failures":[{"check","case","reproducer","where","got","want","wrong":["a"]}]}],
"rows":[{"case"|"layer","kernel_a","kernel_b","status","identical_bytes","worst_ratio":{"a_b",
"a_oracle","b_oracle"}}]}. One pair, which counts rows; all pairs of kernels are rows of it.
Exit code: 0 they agree; 1 they differ, or one crashed or hung; 2 bad usage or input; 3 nothing was
compared: a backend refuses every case or layer.)";

bool is_model(const std::string& text) {
  std::error_code none;
  if (perch_check::is_case(text)) return false;
  return std::filesystem::is_directory(text, none) ||
         (text.find('/') != std::string::npos && text.find(' ') == std::string::npos);
}

DiffSide locate_side(const CommonOptions& common, const std::string& given, const char* letter) {
  const bool ends_in_so = given.size() > 3 && given.rfind(".so") == given.size() - 3;
  DiffSide side{given, {}, common};
  if (given.find('/') == std::string::npos && !ends_in_so) {
    side.library = perch_check::locate_backend(common, given, letter);
  } else {
    side.library = perch_check::locate_plugin(common, given, letter);
    side.common.backend_path = side.library.path;
  }
  return side;
}

class DiffRun {
 public:
  DiffRun(const CommonOptions& common, const DiffOptions& options)
      : common_(common), options_(options) {
    job_options_.isolate = !options.no_isolate;
    job_options_.timeout_s = options.timeout_s;
    job_options_.jobs = options.jobs > 0
                            ? options.jobs
                            : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }

  int run() {
    const auto begin = Clock::now();
    const bool of_model = std::any_of(options_.what.begin(), options_.what.end(), is_model);
    check_usage(of_model);
    report_.of_model = of_model;
    std::vector<SuiteLine> lines;
    if (!of_model) {
      lines = perch_check::select_cases(options_.what, options_.suite, &report_.rows.suite);
    }
    report_.a = locate_side(common_, options_.a, "A");
    report_.b = locate_side(common_, options_.b, "B");
    if (of_model) {
      run_model();
    } else {
      run_cases(lines);
    }
    progress_.reset();
    report_.rows.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (common_.json) {
      std::cout << diff_json(report_).dump(2) << "\n";
    } else {
      print_diff(report_, std::cout);
    }
    return exit_code();
  }

 private:
  void check_usage(bool of_model) const;
  void run_model();
  void run_cases(const std::vector<SuiteLine>& lines);

  std::optional<std::vector<CandidateInfo>> ask(const DiffSide& side, const perch::Case& problem,
                                                const SuiteLine& line);
  void make_jobs(const SuiteLine& line);
  void skip(const SuiteLine& line, bool a_refuses, bool b_refuses, const std::string& text);
  void take(CaseOutcome outcome, const std::string& reproducer);
  void explain(const CaseOutcome& outcome, const std::string& reproducer,
               const CheckResult& smallest);
  void take_case(size_t i, const CheckResult& result);
  void show_progress(const std::string& text);
  void name_kernel(const Job& job, perch::Case* problem) const;

  std::string reproducer(const std::string& what) const;
  std::string model_reproducer(const std::string& layer) const;
  int exit_code() const;

  const CommonOptions& common_;
  const DiffOptions& options_;
  perch_check::JobOptions job_options_;
  DiffReport report_;
  std::vector<Job> jobs_;
  std::vector<size_t> job_rows_;  // where the job's row stands in report_.rows.cases
  size_t ended_ = 0;              // jobs
  std::unique_ptr<Progress> progress_;
};

void DiffRun::check_usage(bool of_model) const {
  if (of_model && (options_.what.size() > 1 || !options_.suite.empty())) {
    throw Failure(kExitBadInput, "diff: got a MODEL among other things; want cases, or one MODEL");
  }
  if (!of_model && !options_.model_only.empty()) {
    throw Failure(kExitBadInput, options_.model_only.front() +
                                     ": is for a MODEL; a CASE says in its line what it is");
  }
}

void DiffRun::run_model() {
  DiffModel diff{report_.a,         report_.b,      common_,
                 options_.model,    options_.input, !options_.no_isolate,
                 options_.timeout_s};
  diff.model.model = options_.what.front();
  diff.model.max_tokens = std::max<long long>(4096, options_.input.tokens);
  diff_model(diff, [&](CaseOutcome outcome) {
    const std::string again = model_reproducer(outcome.problem);
    take(std::move(outcome), again);
    show_progress(fmt::format("{} layers", report_.rows.cases.size()));
  });
}

void DiffRun::run_cases(const std::vector<SuiteLine>& lines) {
  for (const SuiteLine& line : lines) make_jobs(line);
  const auto take = [&](size_t i, const auto& results) { take_case(i, results.front()); };
  perch_check::run_jobs(jobs_, job_options_, take);
}

// The side's answer. A query_support that fails or crashes is the row's failure: nullopt then.
std::optional<std::vector<CandidateInfo>> DiffRun::ask(const DiffSide& side,
                                                       const perch::Case& problem,
                                                       const SuiteLine& line) {
  try {
    return perch_check::ask_candidates(side.library.path, problem, job_options_);
  } catch (const std::exception& error) {
    CheckResult result;
    result.check = "diff";
    result.status = Status::kCrashed;
    result.where =
        fmt::format("{} {}: query_support", &side == &report_.a ? "A" : "B", side.print());
    result.got = error.what();
    CaseOutcome outcome{line.line, line.name, 0, "", {}, "", {result}};
    perch_check::settle(&outcome);
    take(std::move(outcome), reproducer("'" + line.line + "'"));
    return std::nullopt;
  }
}

bool has_kernel(const std::vector<CandidateInfo>& candidates, const std::string& kernel) {
  return std::any_of(candidates.begin(), candidates.end(),
                     [&](const CandidateInfo& info) { return info.kernel == kernel; });
}

// A job per pair of kernels.
void DiffRun::make_jobs(const SuiteLine& line) {
  perch::Case problem = perch::parse_case(line.line).value();
  problem.config.layer().require |= parse_caps(options_.model.require, "--require");
  const bool same = report_.a.library.path == report_.b.library.path;
  const auto asked_a = ask(report_.a, problem, line);
  if (!asked_a) return;
  const auto asked_b = same ? asked_a : ask(report_.b, problem, line);
  if (!asked_b) return;
  const std::vector<CandidateInfo>& of_a = *asked_a;
  const std::vector<CandidateInfo>& of_b = *asked_b;
  perch::Case on_a = problem;
  perch::Case on_b = problem;
  const bool a_knows = has_kernel(of_a, problem.kernel);
  const bool b_knows = has_kernel(of_b, problem.kernel);
  if (b_knows && !a_knows) on_a.kernel.clear();
  if (a_knows && !b_knows) on_b.kernel.clear();
  const auto as = perch_check::fitting_candidates(on_a, of_a);
  const auto bs = perch_check::fitting_candidates(on_b, of_b);
  if (as.empty() || bs.empty()) {
    std::string text;
    if (as.empty()) text += "A: " + perch_check::print_refusals(on_a, of_a);
    if (as.empty() && bs.empty()) text += "; ";
    if (bs.empty()) text += "B: " + perch_check::print_refusals(on_b, of_b);
    return skip(line, as.empty(), bs.empty(), text);
  }
  for (const CandidateInfo& a : as) {
    for (const CandidateInfo& b : bs) {
      if (same && b.variant < a.variant) continue;  // the same two, the other way round
      jobs_.push_back({report_.a.library.path,
                       problem,
                       a.variant,
                       {"diff"},
                       perch_check::Opponent{report_.b.library.path, b.variant}});
      job_rows_.push_back(report_.rows.cases.size());
      report_.rows.cases.push_back(
          {perch::print_case(problem), line.name, a.variant, a.kernel, {}, "", {}, b.kernel});
    }
  }
}

void DiffRun::skip(const SuiteLine& line, bool a_refuses, bool b_refuses, const std::string& text) {
  CheckResult result;
  result.check = "diff";
  result.status = Status::kSkipped;
  result.reason = refusal_name(a_refuses, b_refuses);
  result.got = text;
  CaseOutcome outcome{line.line, line.name, 0, "", {}, "", {result}};
  perch_check::settle(&outcome);
  take(std::move(outcome), "");
}

void DiffRun::take_case(size_t i, const CheckResult& result) {
  CaseOutcome& outcome = report_.rows.cases[job_rows_[i]];
  outcome.checks = {result};
  perch_check::settle(&outcome);
  ++ended_;
  if (perch_check::is_failure(result.status)) {
    perch_check::Shrunk small{jobs_[i].problem, result, 0};
    if (!options_.no_shrink && report_.rows.failures.size() < kShrunkMost) {
      small = perch_check::shrink(jobs_[i], result, job_options_, options_.shrink_s);
    }
    name_kernel(jobs_[i], &small.problem);
    explain(outcome, reproducer("'" + perch::print_case(small.problem) + "'"), small.result);
  }
  show_progress(fmt::format("{} of {} rows", ended_, jobs_.size()));
}

// So that the smallest case runs this pair of kernels and, where one name can say so, no other.
void DiffRun::name_kernel(const Job& job, perch::Case* problem) const {
  problem->kernel.clear();
  const auto kernels = [&](const std::string& library) {
    return perch_check::fitting_candidates(
        *problem, perch_check::ask_candidates(library, *problem, job_options_));
  };
  const auto kernel_of = [](const std::vector<CandidateInfo>& candidates, uint32_t variant) {
    for (const CandidateInfo& info : candidates) {
      if (info.variant == variant) return info.kernel;
    }
    return std::string();
  };
  try {
    const auto as = kernels(job.library);
    const auto bs = kernels(job.other->library);
    const std::string a = kernel_of(as, job.variant);
    const std::string b = kernel_of(bs, job.other->variant);
    if (as.size() > 1 && (bs.size() == 1 || a == b)) {
      problem->kernel = a;
    } else if (as.size() == 1 && bs.size() > 1) {
      problem->kernel = b;
    }
  } catch (const std::exception&) {
    problem->kernel.clear();  // it cannot even be asked any more: the case says all
  }
}

void DiffRun::take(CaseOutcome outcome, const std::string& reproducer) {
  if (perch_check::is_failure(outcome.status)) {
    explain(outcome, reproducer, outcome.checks.front());
  }
  report_.rows.cases.push_back(std::move(outcome));
}

// smallest: how the reproducer fails.
void DiffRun::explain(const CaseOutcome& outcome, const std::string& reproducer,
                      const CheckResult& smallest) {
  perch_check::Failure failure{"diff", outcome.problem, reproducer, smallest};
  if (!common_.json) {
    progress_.reset();
    perch_check::print_failure(failure, report_.rows.failures, std::cout);
  }
  report_.rows.failures.push_back(std::move(failure));
}

void DiffRun::show_progress(const std::string& text) {
  if (progress_ == nullptr) progress_ = std::make_unique<Progress>(!common_.quiet);
  progress_->show(fmt::format("{}, {} failures", text, report_.rows.failures.size()));
}

std::string DiffRun::reproducer(const std::string& what) const {
  std::string text = fmt::format("perch diff {} {} {}", perch_check::shell_quoted(options_.a),
                                 perch_check::shell_quoted(options_.b), what);
  if (!common_.backend_path.empty()) text += " --backend-path " + common_.backend_path;
  return text;
}

std::string DiffRun::model_reproducer(const std::string& layer) const {
  std::string text = reproducer(options_.what.front()) + fmt::format(" --layer '{}'", layer);
  const ModelOptions& model = options_.model;
  const std::pair<const char*, std::string> given[] = {
      {"--tp", model.tp},
      {"--ep", model.ep},
      {"--placement", model.placement == "linear" ? "" : model.placement},
      {"--requant", model.requant},
      {"--orientation", model.orientation == "auto" ? "" : model.orientation},
      {"--dtype", model.dtype},
      {"--out-dtype", model.out_dtype},
      {"--require", fmt::format("{}", fmt::join(model.require, ","))},
      {"--prefer", fmt::format("{}", fmt::join(model.prefer, ","))},
      {"--config", common_.config},
      {"--input", options_.input.file}};
  for (const auto& [option, value] : given) {
    if (!value.empty()) text += fmt::format(" {} {}", option, value);
  }
  if (model.allow_unexpected) text += " --allow-unexpected";
  if (!options_.input.file.empty()) return text;
  return text + fmt::format(" --tokens {} --seed {}", options_.input.tokens, options_.input.seed);
}

int DiffRun::exit_code() const {
  if (report_.rows.failed() > 0) return kExitFailed;
  const bool none =
      report_.rows.count(Status::kPassed) == 0 && report_.rows.count(Status::kUntrusted) == 0;
  return none ? kExitNoBackend : kExitFine;
}

}  // namespace

void register_diff(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command =
      app->add_subcommand("diff", "two backends against each other and against the reference");
  auto options = std::make_shared<DiffOptions>();
  command->add_option("A", options->a, "a backend: an id or a file")->required();
  command->add_option("B", options->b, "another, or the same")->required();
  command->add_option("CASE|MODEL", options->what,
                      "case lines, each in quotes; or one checkpoint directory");
  command->add_option("--suite", options->suite, "smoke, ci, nightly or a file [smoke]");
  command->add_option("--jobs", options->jobs, "cases at once [one per core]")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--timeout", options->timeout_s,
                   "seconds that one case, or one step of a layer, may take [60]")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--shrink-seconds", options->shrink_s,
                   "seconds to spend on making a failure small [20]")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--no-isolate", options->no_isolate,
                    "run in this process: for a debugger; a crash ends the command");
  command->add_flag("--no-shrink", options->no_shrink, "report failures with their own case");
  add_common_options(command, common);
  add_model_options(command, &options->model);
  command->remove_option(command->get_option("--backend"));
  add_input_options(command, &options->input);
  command->footer(kFooter);
  command->callback([=] {
    for (const char* option :
         {"--layer", "--prefer", "--tp", "--ep", "--placement", "--requant", "--orientation",
          "--dtype", "--out-dtype", "--allow-unexpected", "--tokens", "--seed", "--input"}) {
      if (command->count(option) > 0) options->model_only.emplace_back(option);
    }
    *handler = [=] { return DiffRun(*common, *options).run(); };
  });
}

}  // namespace perch_command
