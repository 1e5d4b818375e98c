#include "bench/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace perch_bench {
namespace {

std::string trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// The case less what the layer itself does not depend on.
std::string layer_text(perch::Case problem) {
  problem.t = 1;
  problem.config.layer().max_tokens = 1;
  problem.seed = 0;
  problem.load = "uniform";
  return perch::print_case(problem);
}

}  // namespace

perch::Result<BenchLine> parse_bench_line(const std::string& text) {
  const size_t mark = text.find(">=");
  PERCH_ASSIGN_OR_RETURN(perch::Case problem, perch::parse_case(trim(text.substr(0, mark))));
  BenchLine line{std::move(problem), std::nullopt};
  if (mark == std::string::npos) return line;
  const std::string share = trim(text.substr(mark + 2));
  char* end = nullptr;
  const double value = std::strtod(share.c_str(), &end);
  if (share.empty() || *end != '\0' || !(value > 0) || value > 1) {
    return perch::invalid_argument(
        fmt::format("'{}' after '>=': want a share such as 0.95, above 0 and at most 1", share));
  }
  line.required = value;
  return line;
}

std::vector<std::vector<BenchLine>> group_lines(const std::vector<BenchLine>& lines) {
  std::vector<std::vector<BenchLine>> groups;
  std::vector<std::string> layers;
  for (const BenchLine& line : lines) {
    const std::string layer = layer_text(line.problem);
    const auto known = std::find(layers.begin(), layers.end(), layer);
    const auto group = static_cast<size_t>(known - layers.begin());
    if (known == layers.end()) {
      layers.push_back(layer);
      groups.emplace_back();
    }
    groups[group].push_back(line);
  }
  return groups;
}

}  // namespace perch_bench
