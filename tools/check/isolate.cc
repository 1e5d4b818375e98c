#include "check/isolate.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <stdexcept>

#include "check/child.h"
#include "check/run_check.h"

namespace perch_check {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// As `begin` hears, what is under way.
std::unique_ptr<Context> open_context(const Job& job,
                                      const std::function<void(const std::string&)>& begin) {
  if (!job.other) return std::make_unique<Context>(job.problem, job.library, job.variant);
  begin("A: loading");
  auto context = std::make_unique<Context>(job.problem, job.library, job.variant);
  begin("B: loading");
  context->compare_with(
      std::make_unique<Context>(job.problem, job.other->library, job.other->variant));
  context->on_stage(begin);
  return context;
}

// Runs the job's checks from `first` on, here.
void run_here(const Job& job, size_t first, const std::function<void(const std::string&)>& begin,
              const std::function<void(const CheckResult&)>& end) {
  std::unique_ptr<Context> context;
  for (size_t i = first; i < job.checks.size(); ++i) {
    begin(job.checks[i]);
    CheckResult result;
    try {
      if (context == nullptr) context = open_context(job, begin);
      result = run_check(job.checks[i], context.get());
    } catch (const std::exception& error) {
      result.check = job.checks[i];
      result.status = Status::kFailed;
      result.where = "loading";
      result.got = error.what();
    }
    end(result);
  }
}

// A job under way: a child, and what it has said.
struct Running {
  size_t index = 0;
  std::vector<CheckResult> results;
  std::string stage;  // what it said last that it begins
  std::unique_ptr<Child> child;
  Clock::time_point deadline;
  bool timed_out = false;
};

class Pool {
 public:
  Pool(const std::vector<Job>& jobs, const JobOptions& options,
       const std::function<void(size_t, std::vector<CheckResult>)>& done)
      : jobs_(jobs), options_(options), done_(done) {}

  void run() {
    size_t next = 0;
    while (next < jobs_.size() || !running_.empty()) {
      while (next < jobs_.size() && static_cast<int>(running_.size()) < options_.jobs) {
        running_.emplace_back();
        running_.back().index = next++;
        start(&running_.back());
      }
      wait();
      for (auto at = running_.begin(); at != running_.end();) {
        at = finish(&*at) ? running_.erase(at) : at + 1;
      }
    }
  }

 private:
  void start(Running* running) {
    const Job& job = jobs_[running->index];
    const size_t first = running->results.size();
    running->timed_out = false;
    push_deadline(running);
    running->child = std::make_unique<Child>([&job, first](const Child::Say& say) {
      run_here(
          job, first, [&](const std::string& check) { say("begin " + check); },
          [&](const CheckResult& result) {
            say("result " + to_json(result).dump(-1, ' ', false, json::error_handler_t::replace));
          });
    });
  }

  void push_deadline(Running* running) const {
    running->deadline =
        Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * options_.timeout_s));
  }

  void wait() {
    std::vector<pollfd> files;
    for (const Running& running : running_) files.push_back({running.child->file(), POLLIN, 0});
    poll(files.data(), files.size(), 100);
    for (size_t i = 0; i < files.size(); ++i) {
      Running& running = running_[i];
      for (const std::string& line : running.child->read_lines()) hear(&running, line);
      if (!running.child->ended() && Clock::now() > running.deadline && !running.timed_out) {
        running.timed_out = true;
        running.child->kill_now();
      }
    }
  }

  void hear(Running* running, const std::string& line) {
    push_deadline(running);
    if (line.rfind("begin ", 0) == 0) running->stage = line.substr(6);
    if (line.rfind("result ", 0) != 0) return;
    running->results.push_back(result_from_json(json::parse(line.substr(7))));
  }

  // True when the whole job has ended; starts a new child after a crash.
  bool finish(Running* running) {
    if (!running->child->ended()) return false;
    const Job& job = jobs_[running->index];
    if (running->child->left_process() && !running->results.empty()) {
      CheckResult& last = running->results.back();
      last.status = Status::kFailed;
      last.where = "processes when the checks had ended";
      last.got = "one that was left running";
      last.want = "none";
    }
    if (running->results.size() < job.checks.size()) {
      CheckResult lost;
      lost.check = job.checks[running->results.size()];
      lost.status = running->timed_out ? Status::kTimeout : Status::kCrashed;
      lost.got = running->timed_out ? fmt::format("no answer within {} s", options_.timeout_s)
                                    : running->child->epitaph();
      lost.where = job.other ? running->stage : "the process";
      running->results.push_back(std::move(lost));
    }
    if (running->results.size() < job.checks.size()) {
      start(running);
      return false;
    }
    done_(running->index, std::move(running->results));
    return true;
  }

  const std::vector<Job>& jobs_;
  const JobOptions& options_;
  const std::function<void(size_t, std::vector<CheckResult>)>& done_;
  std::deque<Running> running_;
};

std::vector<CandidateInfo> ask_here(const std::string& library, const perch::Case& problem) {
  perch::Case asked = problem;
  asked.config.layer().max_tokens = problem.t + 1;
  const Instance instance(open_table(library), {});
  std::vector<CandidateInfo> candidates;
  const uint32_t count = instance.variants(asked.config.abi());
  for (uint32_t variant = 0; variant < count; ++variant) {
    const Answer answer = instance.query(asked.config.abi(), variant);
    candidates.push_back({variant, answer.yes(), answer.support.kernel, answer.support.caps,
                          answer.reply.ok() ? answer.print_reasons() : answer.reply.print()});
  }
  return candidates;
}

}  // namespace

void run_jobs(const std::vector<Job>& jobs, const JobOptions& options,
              const std::function<void(size_t, std::vector<CheckResult>)>& done) {
  if (options.isolate) return Pool(jobs, options, done).run();
  for (size_t i = 0; i < jobs.size(); ++i) {
    std::vector<CheckResult> results;
    run_here(
        jobs[i], 0, [](const std::string&) {},
        [&](const CheckResult& result) { results.push_back(result); });
    done(i, std::move(results));
  }
}

std::vector<CandidateInfo> ask_candidates(const std::string& library, const perch::Case& problem,
                                          const JobOptions& options) {
  if (!options.isolate) return ask_here(library, problem);
  Child child([&](const Child::Say& say) {
    json answer = {{"error", ""}, {"candidates", json::array()}};
    try {
      for (const CandidateInfo& info : ask_here(library, problem)) {
        answer["candidates"].push_back(
            {info.variant, info.yes, info.kernel, info.caps, info.refusal});
      }
    } catch (const std::exception& error) {
      answer["error"] = error.what();
    }
    say(answer.dump(-1, ' ', false, json::error_handler_t::replace));
  });
  std::vector<std::string> lines;
  if (!listen(&child, options.timeout_s, [&](const std::string& line) { lines.push_back(line); })) {
    throw std::runtime_error(
        fmt::format("query_support: no answer within {} s", options.timeout_s));
  }
  if (lines.empty()) throw std::runtime_error("query_support: " + child.epitaph());
  const json answer = json::parse(lines[0]);
  if (!answer["error"].get<std::string>().empty()) {
    throw std::runtime_error(answer["error"].get<std::string>());
  }
  std::vector<CandidateInfo> candidates;
  for (const json& one : answer["candidates"]) {
    candidates.push_back({one[0], one[1], one[2], one[3], one[4]});
  }
  return candidates;
}

}  // namespace perch_check
