#include "check/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/case_line.h"

namespace perch_check {
namespace {

namespace fs = std::filesystem;

// Where suites lie: beside the libraries, in the build tree as in an installation.
std::vector<fs::path> suite_directories() {
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  const fs::path prefix = program.parent_path().parent_path();
  return {prefix / PERCH_LIBDIR / "perch/cases", prefix / "lib/perch/cases"};
}

std::string trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

class SuiteReader {
 public:
  perch::Status read(const std::string& path, int depth) {
    std::ifstream file(path);
    if (!file) return perch::invalid_argument(path + ": cannot be read");
    std::string text;
    for (int number = 1; std::getline(file, text); ++number) {
      const std::string line = trim(text.substr(0, text.find('#')));
      if (line.empty()) continue;
      const std::string where = fmt::format("{}:{}", path, number);
      PERCH_RETURN_IF_ERROR(
          read_line(line, fs::path(path).parent_path(), depth).with_context(where));
    }
    return {};
  }
  std::vector<SuiteLine> lines() { return std::move(lines_); }

 private:
  perch::Status read_line(std::string line, const fs::path& folder, int depth) {
    if (line.rfind("include ", 0) == 0) {
      if (depth > 8) return perch::invalid_argument("include: got a circle or nine levels");
      return read((folder / (trim(line.substr(8)) + ".cases")).string(), depth + 1);
    }
    SuiteLine common;
    if (const size_t at = line.find(" >= "); at != std::string::npos) {
      const std::string share = trim(line.substr(at + 4));
      char* end = nullptr;
      common.required = std::strtod(share.c_str(), &end);
      if (share.empty() || *end != '\0') {
        return perch::invalid_argument(fmt::format("got \"{}\"; want a share behind >=", share));
      }
      line = trim(line.substr(0, at));
    }
    const size_t space = line.find(' ');
    if (space != std::string::npos && space > 0 && line[space - 1] == ':') {
      common.name = line.substr(0, space - 1);
      line = trim(line.substr(space));
    }
    PERCH_ASSIGN_OR_RETURN(const std::vector<std::string> expanded, expand_braces(line));
    for (const std::string& one : expanded) {
      PERCH_ASSIGN_OR_RETURN(const perch::Case problem, perch::parse_case(one));
      SuiteLine added = common;
      added.line = perch::print_case(problem);
      if (seen_.insert(added.line).second) lines_.push_back(std::move(added));
    }
    return {};
  }

  std::vector<SuiteLine> lines_;
  std::set<std::string> seen_;
};

}  // namespace

std::string find_suite(const std::string& name) {
  for (const fs::path& directory : suite_directories()) {
    const fs::path path = directory / (name + ".cases");
    if (fs::exists(path)) return path.string();
  }
  return "";
}

std::vector<std::string> suite_names() {
  std::set<std::string> names;
  for (const fs::path& directory : suite_directories()) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(directory, none)) {
      if (entry.path().extension() == ".cases") names.insert(entry.path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

perch::Result<std::vector<SuiteLine>> read_suite(const std::string& path) {
  SuiteReader reader;
  PERCH_RETURN_IF_ERROR(reader.read(path, 0));
  return reader.lines();
}

perch::Result<std::vector<std::string>> expand_braces(const std::string& line) {
  const size_t open = line.find('{');
  if (open == std::string::npos) {
    if (line.find('}') != std::string::npos) return perch::invalid_argument("got a } without {");
    return std::vector<std::string>{line};
  }
  const size_t close = line.find('}', open);
  if (close == std::string::npos) return perch::invalid_argument("got a { without }");
  PERCH_ASSIGN_OR_RETURN(const std::vector<std::string> rests,
                         expand_braces(line.substr(close + 1)));
  std::vector<std::string> all;
  std::string list = line.substr(open + 1, close - open - 1);
  const char between = list.find('|') == std::string::npos ? ',' : '|';
  list += between;
  for (size_t begin = 0, end = 0; (end = list.find(between, begin)) != std::string::npos;
       begin = end + 1) {
    for (const std::string& rest : rests) {
      all.push_back(line.substr(0, open) + list.substr(begin, end - begin) + rest);
    }
  }
  return all;
}

}  // namespace perch_check
