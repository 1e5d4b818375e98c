#include "check/select_cases.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/recipe.h"
#include "command.h"

namespace perch_check {
namespace {

using perch_command::Failure;
using perch_command::kExitBadInput;

void add_lines(const std::string& text, std::vector<SuiteLine>* lines) {
  const auto expanded = expand_braces(text);
  if (!expanded.ok()) throw Failure(kExitBadInput, "CASE: " + expanded.status().message());
  for (const std::string& line : *expanded) {
    const auto parsed = perch::parse_case(line);
    if (!parsed.ok()) throw Failure(kExitBadInput, "CASE: " + parsed.status().message());
    lines->push_back({"", perch::print_case(*parsed), {}});
  }
}

std::string suite_file(const std::string& suite) {
  std::string path = find_suite(suite);
  if (!path.empty()) return path;
  if (std::filesystem::exists(suite)) return suite;
  std::string all;
  for (const std::string& name : suite_names()) all += " " + name;
  throw Failure(kExitBadInput,
                fmt::format("--suite: got \"{}\"; want a file or one of:{}", suite, all));
}

}  // namespace

bool is_case(const std::string& text) {
  return text.rfind("moe ", 0) == 0 || text.rfind("linear ", 0) == 0;
}

std::vector<SuiteLine> select_cases(const std::vector<std::string>& cases, const std::string& suite,
                                    std::string* chosen) {
  std::vector<SuiteLine> lines;
  for (const std::string& text : cases) add_lines(text, &lines);
  if (!lines.empty() && suite.empty()) return lines;
  *chosen = suite.empty() ? "smoke" : suite;
  const auto read = read_suite(suite_file(*chosen));
  if (!read.ok()) throw Failure(kExitBadInput, read.status().message());
  if (read->empty()) throw Failure(kExitBadInput, "--suite: " + *chosen + ": has no case");
  lines.insert(lines.end(), read->begin(), read->end());
  return lines;
}

std::vector<CandidateInfo> fitting_candidates(const perch::Case& problem,
                                              const std::vector<CandidateInfo>& candidates) {
  std::vector<CandidateInfo> fitting;
  const perch_caps require = problem.config.abi().require;
  for (const CandidateInfo& info : candidates) {
    const bool named = problem.kernel.empty() || problem.kernel == info.kernel;
    if (info.yes && named && (info.caps & require) == require) fitting.push_back(info);
  }
  return fitting;
}

std::string print_refusals(const perch::Case& problem,
                           const std::vector<CandidateInfo>& candidates) {
  const perch_caps require = problem.config.abi().require;
  std::string text, last;
  for (const CandidateInfo& info : candidates) {
    std::string why = info.refusal;
    if (info.yes) {
      const perch_caps missing = require & ~info.caps;
      why = missing == 0 ? "is not the kernel named" : "lacks " + perch::print_caps(missing);
    }
    if (!info.kernel.empty()) why = fmt::format("{} {}", info.kernel, why);
    if (why == last) continue;  // variants without a name that refuse for the same reasons
    text += (text.empty() ? "" : "; ") + why;
    last = why;
  }
  return problem.kernel.empty() ? text : "kernel " + problem.kernel + ": " + text;
}

}  // namespace perch_check
