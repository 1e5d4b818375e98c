// Runs `perch check` on the mutants: does the check that a mutant names find it, at both of its
// cases, and does the unmutated library pass all the same runs?
//
//   kill_mutants PERCH MUTANTS [NAME...]        these mutants, or all: a table and a count
//   kill_mutants PERCH MUTANTS --unmutated      every check and case of every mutant must pass
//   kill_mutants PERCH MUTANTS --forged-split   humming-cpu's split with a promise it cannot keep
//   kill_mutants PERCH MUTANTS --at-least N     so many mutants were built
//
// PERCH is the command, MUTANTS the folder of *.mutant; the libraries lie beside this program.
// Exit code 0: all as it should be; 1: not; 2: bad usage. README.md says what a mutant is.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct Places {
  std::string perch;
  fs::path mutants;
  fs::path libraries;
  std::string library(const std::string& name) const {
    return libraries / ("libperch_" + name + ".so");
  }
};

// ---- A mutant's file ---------------------------------------------------------------------------

struct Mutant {
  std::string name;
  std::string what;
  std::string check;
  std::vector<std::string> cases;
};

Mutant read_mutant(const fs::path& path) {
  Mutant mutant;
  mutant.name = path.stem();
  std::ifstream in(path);
  for (std::string line; std::getline(in, line) && line.rfind("--- ", 0) != 0;) {
    const auto value = [&](const std::string& key) -> std::optional<std::string> {
      if (line.rfind(key + ": ", 0) != 0) return std::nullopt;
      return line.substr(key.size() + 2);
    };
    if (const auto text = value("what")) mutant.what = *text;
    if (const auto text = value("check")) mutant.check = *text;
    if (const auto text = value("case")) mutant.cases.push_back(*text);
  }
  return mutant;
}

// Those whose library was built, by name.
std::vector<Mutant> built_mutants(const Places& places) {
  std::vector<Mutant> mutants;
  for (const auto& entry : fs::directory_iterator(places.mutants)) {
    if (entry.path().extension() != ".mutant") continue;
    Mutant mutant = read_mutant(entry.path());
    if (fs::exists(places.library("mutant_" + mutant.name))) mutants.push_back(std::move(mutant));
  }
  std::sort(mutants.begin(), mutants.end(),
            [](const Mutant& a, const Mutant& b) { return a.name < b.name; });
  return mutants;
}

// ---- One run of `perch check` ------------------------------------------------------------------

std::string quoted(const std::string& text) { return "'" + text + "'"; }  // no ' in case lines

struct Run {
  int code = -1;
  json report;  // discarded where the output was no JSON
  int64_t number(const char* key) const { return report.value(key, int64_t{-1}); }
};

Run run_check(const Places& places, const std::string& library, const std::string& arguments) {
  const std::string command = quoted(places.perch) + " check --plugin " +
                              quoted(places.library(library)) + " --jobs 1 " + arguments +
                              " </dev/null";
  Run run;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return run;
  std::string text;
  char buffer[4096];
  for (size_t got = 0; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    text.append(buffer, got);
  }
  const int status = pclose(pipe);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.report = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!run.report.is_object()) run.report = json::object();
  return run;
}

Run run_cases(const Places& places, const std::string& library, const std::string& check,
              const std::vector<std::string>& cases) {
  std::string arguments = "--check=" + check + " --json";
  for (const std::string& line : cases) arguments += " " + quoted(line);
  return run_check(places, library, arguments);
}

// ---- Verdicts ----------------------------------------------------------------------------------

struct Verdict {
  bool good = false;
  std::string text;  // the smallest reproducer, or what is wrong
};

Verdict bad(std::string text) { return {false, std::move(text)}; }

// The case of "perch check --plugin ... 'linear t1 n1 k1 w=bf16'".
std::string case_of(const std::string& reproducer) {
  const size_t end = reproducer.rfind('\'');
  const size_t begin = end == std::string::npos ? end : reproducer.rfind('\'', end - 1);
  return begin == std::string::npos ? reproducer : reproducer.substr(begin + 1, end - begin - 1);
}

// Killed: the named check, and no other, failed at this case.
Verdict kill_at(const Places& places, const Mutant& mutant, const std::string& line) {
  const Run run = run_cases(places, "mutant_" + mutant.name, mutant.check, {line});
  const json failures = run.report.value("failures", json::array());
  if (run.code == 0) return bad("ALIVE at " + line);
  if (run.code != 1 || failures.empty()) {
    return bad("exit code " + std::to_string(run.code) + " and no failure at " + line);
  }
  std::string smallest;
  for (const json& failure : failures) {
    const std::string check = failure.value("check", "");
    if (check != mutant.check) return bad("killed by " + check + " at " + line);
    const std::string reproducer = case_of(failure.value("reproducer", ""));
    if (smallest.empty() || reproducer.size() < smallest.size()) smallest = reproducer;
  }
  if (smallest.empty()) return bad("no reproducer at " + line);
  return {true, smallest};
}

Verdict kill(const Places& places, const Mutant& mutant) {
  if (mutant.what.empty() || mutant.check.empty()) return bad("its file lacks what: or check:");
  if (mutant.cases.size() != 2 || mutant.cases[0] == mutant.cases[1]) {
    return bad("its file must have two cases");
  }
  Verdict best;
  for (const std::string& line : mutant.cases) {
    const Verdict verdict = kill_at(places, mutant, line);
    if (!verdict.good) return verdict;
    if (!best.good || verdict.text.size() < best.text.size()) best = verdict;
  }
  return best;
}

// verdict(i) for i in 0..count-1, on all cores.
template <typename Judge>
std::vector<Verdict> judge_all(size_t count, const Judge& judge) {
  std::vector<Verdict> verdicts(count);
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < count; at = next++) verdicts[at] = judge(at);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return verdicts;
}

int print_table(const std::vector<std::array<std::string, 2>>& heads,
                const std::vector<Verdict>& verdicts, const char* good, const char* other) {
  size_t width = 0;
  for (const auto& head : heads) width = std::max(width, head[0].size());
  size_t num_good = 0;
  for (size_t i = 0; i < heads.size(); ++i) {
    num_good += verdicts[i].good ? 1 : 0;
    std::printf("%-*s  %-17s  %s%s\n", static_cast<int>(width), heads[i][0].c_str(),
                heads[i][1].c_str(), verdicts[i].good ? "" : "!! ", verdicts[i].text.c_str());
  }
  std::printf("%zu of %zu %s, %zu %s\n", num_good, heads.size(), good, heads.size() - num_good,
              other);
  return num_good == heads.size() && !heads.empty() ? 0 : 1;
}

int kill_all(const Places& places, const std::vector<std::string>& names) {
  std::vector<Mutant> mutants = built_mutants(places);
  for (const std::string& name : names) {
    const auto named = [&](const Mutant& mutant) { return mutant.name == name; };
    if (std::any_of(mutants.begin(), mutants.end(), named)) continue;
    std::fprintf(stderr, "kill_mutants: no mutant '%s' was built\n", name.c_str());
    return 2;
  }
  if (!names.empty()) {
    std::erase_if(mutants, [&](const Mutant& mutant) {
      return std::find(names.begin(), names.end(), mutant.name) == names.end();
    });
  }
  std::vector<std::array<std::string, 2>> heads;
  for (const Mutant& mutant : mutants) heads.push_back({mutant.name, mutant.check});
  return print_table(heads,
                     judge_all(mutants.size(), [&](size_t i) { return kill(places, mutants[i]); }),
                     "mutants killed by the check that they name", "not");
}

// A check that was skipped, or that does not trust itself, proves nothing about the mutants. One
// that looks at what the reference does not promise has a library that promises it and keeps it.
Verdict pass(const Places& places, const std::string& check, const std::set<std::string>& cases) {
  const std::string own = "unmutated_" + check;
  const std::string library = fs::exists(places.library(own)) ? own : "unmutated";
  const Run run = run_cases(places, library, check, {cases.begin(), cases.end()});
  const json failures = run.report.value("failures", json::array());
  if (run.code != 0 || !failures.empty()) {
    return bad("exit code " + std::to_string(run.code) + ": " + failures.dump());
  }
  const json skipped = run.report.value("skipped", json::object());
  if (run.number("untrusted") != 0 || !skipped.empty()) {
    return bad("untrusted " + std::to_string(run.number("untrusted")) + ", skipped " +
               skipped.dump());
  }
  const auto want = static_cast<int64_t>(cases.size());
  if (run.number("passed") < want) {
    return bad("passed " + std::to_string(run.number("passed")) + " of " + std::to_string(want));
  }
  return {true, std::to_string(want) + " cases"};
}

int pass_unmutated(const Places& places) {
  std::map<std::string, std::set<std::string>> cases_of;
  for (const Mutant& mutant : built_mutants(places)) {
    cases_of[mutant.check].insert(mutant.cases.begin(), mutant.cases.end());
  }
  const std::vector<std::pair<std::string, std::set<std::string>>> runs(cases_of.begin(),
                                                                        cases_of.end());
  std::vector<std::array<std::string, 2>> heads;
  for (const auto& [check, cases] : runs) heads.push_back({"unmutated", check});
  return print_table(
      heads,
      judge_all(runs.size(), [&](size_t i) { return pass(places, runs[i].first, runs[i].second); }),
      "checks passed by the unmutated library", "not");
}

// The promise is false already between a call of one token and one of two: a failure must say so,
// with a case of at most two tokens and the row.
int catch_forged_split(const Places& places) {
  const Run run =
      run_check(places, "forged_split", "--suite smoke --check batch_invariance --json");
  const json failures = run.report.value("failures", json::array());
  const std::regex few_tokens("(^|.* )t[12] .*");
  const std::regex row("\\brow\\b", std::regex::icase);
  bool found = false;
  for (const json& failure : failures) {
    const std::string reproducer = failure.value("reproducer", "");
    const std::string where = failure.value("where", "");
    const bool good = failure.value("check", "") == "batch_invariance" &&
                      std::regex_match(reproducer, few_tokens) && std::regex_search(where, row);
    std::printf("%s%s\n    %s\n", good ? "" : "!! ", reproducer.c_str(), where.c_str());
    found = found || good;
  }
  std::printf("exit code %d, %zu failures%s\n", run.code, failures.size(),
              found ? "" : ", none with at most two tokens that names the row");
  return run.code == 1 && found ? 0 : 1;
}

int count_at_least(const Places& places, long least) {
  const size_t count = built_mutants(places).size();
  std::printf("%zu mutants, want at least %ld\n", count, least);
  return static_cast<long>(count) >= least ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 2 || !fs::is_directory(arguments[1])) {
    std::fprintf(stderr, "usage: kill_mutants PERCH MUTANTS [NAME...|--unmutated|...]\n");
    return 2;
  }
  const Places places{arguments[0], arguments[1], fs::canonical("/proc/self/exe").parent_path()};
  const std::vector<std::string> rest(arguments.begin() + 2, arguments.end());
  const std::string mode = rest.empty() ? "" : rest[0];
  if (mode == "--unmutated") return pass_unmutated(places);
  if (mode == "--forged-split") return catch_forged_split(places);
  if (mode == "--at-least" && rest.size() == 2) {
    return count_at_least(places, std::strtol(rest[1].c_str(), nullptr, 10));
  }
  return kill_all(places, rest);
}
