// Who may include whom:   abi <- backends   abi <- runtime <- tools   tests see all
// and inside runtime/ the order that its CMakeLists.txt gives the folders.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "tree.h"

namespace perch_test {
namespace {

const std::filesystem::path kRoot = PERCH_SOURCE_DIR;

struct Include {
  std::string where;  // "runtime/run/route.cc:7: "
  std::string target;
  bool quoted;

  bool in(const std::string& folder) const { return target.rfind(folder + "/", 0) == 0; }
};

std::vector<Include> includes_of(const SourceFile& file) {
  const std::regex line_of(R"(^ *# *include *([<"])([^>"]+)[>"].*)");
  std::vector<Include> includes;
  for (size_t i = 0; i < file.lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_match(file.lines[i], match, line_of)) continue;
    includes.push_back(
        {file.path + ":" + std::to_string(i + 1) + ": ", match[2], match[1] == "\""});
  }
  return includes;
}

template <typename Check>
void for_each_include(const std::string& folder, Check check) {
  for (const SourceFile& file : read_tree(kRoot)) {
    if (!file.is_code() || !file.under(folder)) continue;
    for (const Include& include : includes_of(file)) check(file, include);
  }
}

bool exists(const std::string& path) { return std::filesystem::exists(kRoot / path); }
bool of_abi(const Include& include) { return exists("abi/include/" + include.target); }

TEST(Arrows, TheAbiNeedsOnlyDlpack) {
  for_each_include("abi", [](const SourceFile&, const Include& include) {
    const bool standard = include.target.find('/') == std::string::npos;
    EXPECT_TRUE(!include.quoted &&
                (standard || include.target == "dlpack/dlpack.h" || of_abi(include)))
        << include.where << include.target;
  });
}

TEST(Arrows, ABackendSeesTheAbiTheNumbersAndItself) {
  for_each_include("backends", [](const SourceFile& file, const Include& include) {
    const std::regex first_two("^backends/[^/]+");
    std::smatch own;
    ASSERT_TRUE(std::regex_search(file.path, own, first_two));
    const bool number = include.in("numeric") && own.str() != "backends/reference";
    if (include.quoted) {
      EXPECT_TRUE(number || of_abi(include) || exists(own.str() + "/" + include.target))
          << include.where << include.target << " is none of its own";
    }
    EXPECT_TRUE(include.target != "perch/runtime.h" && include.target != "perch/perch.hpp")
        << include.where << "the host's side of the ABI";
  });
}

TEST(Arrows, TheReferenceDecodesByTablesOfItsOwn) {
  for_each_include("backends/reference", [](const SourceFile&, const Include& include) {
    EXPECT_FALSE(include.in("numeric")) << include.where << include.target;
  });
}

// "run" -> everything that perch_folder(run ...) reaches, itself included.
std::map<std::string, std::set<std::string>> runtime_arrows() {
  const std::regex folder_line(R"(^perch_folder\((\w+)(.*)\))");
  const std::regex dependency(R"(perch_(\w+))");
  std::map<std::string, std::set<std::string>> reach;
  for (const std::string& line : read_lines(kRoot / "runtime/CMakeLists.txt")) {
    std::smatch match;
    if (!std::regex_search(line, match, folder_line)) continue;
    std::set<std::string>& own = reach[match[1]];
    own = {match[1], "numeric"};
    const std::string dependencies = match[2];
    for (std::sregex_iterator it(dependencies.begin(), dependencies.end(), dependency), end;
         it != end; ++it) {
      own.insert(reach[(*it)[1]].begin(), reach[(*it)[1]].end());
    }
  }
  return reach;
}

TEST(Arrows, TheRuntimesFoldersPointOneWay) {
  const auto reach = runtime_arrows();
  ASSERT_TRUE(reach.count("run")) << "runtime/CMakeLists.txt is not as this test reads it";
  for_each_include("runtime", [&](const SourceFile& file, const Include& include) {
    if (!include.quoted || of_abi(include)) return;
    const std::string folder = file.folder() == "runtime" ? "" : file.folder().substr(8);
    const size_t slash = include.target.find('/');
    const std::string target = slash == std::string::npos ? "" : include.target.substr(0, slash);
    EXPECT_TRUE(exists("runtime/" + include.target))
        << include.where << include.target << ": write it from runtime/ on";
    if (folder.empty()) return;  // the host API stands above all of them
    if (folder == "numeric") {
      EXPECT_EQ(target, "numeric") << include.where << "numeric/ is a leaf";
      return;
    }
    ASSERT_TRUE(reach.count(folder)) << folder << ": runtime/CMakeLists.txt does not have it";
    EXPECT_TRUE(reach.at(folder).count(target))
        << include.where << folder << "/ must not see " << include.target;
  });
}

TEST(Arrows, ToolsSeeTheRuntimeAndNoBackend) {
  for_each_include("tools", [](const SourceFile& file, const Include& include) {
    if (!include.quoted) return;
    EXPECT_TRUE(exists(file.folder() + "/" + include.target) || exists("tools/" + include.target) ||
                exists("runtime/" + include.target) || of_abi(include))
        << include.where << include.target;
    EXPECT_FALSE(file.under("tools/examples"))
        << include.where << "an example includes what is installed";
  });
}

}  // namespace
}  // namespace perch_test
