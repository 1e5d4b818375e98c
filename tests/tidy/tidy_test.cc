// The rules of style that a program can check. Each test names every place that breaks its rule.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "functions.h"
#include "tree.h"

namespace perch_test {
namespace {

const std::filesystem::path kRoot = PERCH_SOURCE_DIR;

const std::vector<SourceFile>& tree() {
  static const std::vector<SourceFile> files = read_tree(kRoot);
  return files;
}

std::string at(const SourceFile& file, size_t line) {
  return file.path + ":" + std::to_string(line + 1) + ": ";
}

// Characters, not bytes: UTF-8 continuation bytes do not count.
size_t columns(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

TEST(Tidy, TopLevelIsTheFixedSet) {
  std::set<std::string> allowed = {
      "CMakeLists.txt", "runtime",     "abi",        "backends", "configs",
      "tests",          "tools",       "README.md",  "LICENSE",  "CMakePresets.json",
      ".clang-format",  ".clang-tidy", ".gitignore", ".ci",
  };
  for (const std::string& name : ignored_names(kRoot)) allowed.insert(name);
  for (const auto& entry : std::filesystem::directory_iterator(kRoot)) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(allowed.count(name)) << name << ": the top level is fixed; see README.md's map";
  }
}

TEST(Tidy, AtMost100Columns) {
  for (const SourceFile& file : tree()) {
    if (!file.is_code() && !file.is_cmake() && !file.is_script() &&
        !file.has_extension({".yaml", ".py"})) {
      continue;
    }
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_LE(columns(file.lines[i]), 100u) << at(file, i) << "too wide";
    }
  }
}

TEST(Tidy, FilesOfAtMost400Lines) {
  for (const SourceFile& file : tree()) {
    if (file.is_code() || file.is_cmake() || file.is_script()) {
      EXPECT_LE(file.lines.size(), 400u) << file.path << ": split it by what it is about";
    }
  }
}

// A file says at its head what it is; a .cc with a header of its own leaves that to the header.
TEST(Tidy, FilesStartWithAComment) {
  for (const SourceFile& file : tree()) {
    ASSERT_FALSE(file.lines.empty()) << file.path << ": is empty";
    const std::string& first = file.lines[file.is_script() && file.lines.size() > 1 ? 1 : 0];
    if (file.is_code()) {
      const std::string stem = std::filesystem::path(file.path).stem();
      const bool own_header =
          std::regex_search(first, std::regex("^#include \"(.*/)?" + stem + "\\.h"));
      EXPECT_TRUE(first.rfind("//", 0) == 0 || first.rfind("/*", 0) == 0 || own_header)
          << file.path << ": say in the first line what this file is";
    } else if (file.is_script() || file.has_extension({".yaml"})) {
      EXPECT_TRUE(first.rfind("#", 0) == 0 || first.rfind("\"\"\"", 0) == 0)
          << file.path << ": say in the first line what this file is";
    }
  }
}

TEST(Tidy, FunctionsOfAtMost70Lines) {
  for (const SourceFile& file : tree()) {
    if (!file.is_code()) continue;
    // A kernel is one long walk over registers.
    const bool kernels = file.name().rfind("kernels", 0) == 0;
    for (const FunctionBody& body : FunctionFinder(file.lines).find()) {
      EXPECT_LE(body.num_lines, kernels ? 150u : 70u)
          << at(file, body.first_line) << "too long a function";
    }
  }
}

TEST(Tidy, FindsFunctions) {
  const std::vector<std::string> lines = {
      "namespace a {",
      "struct S {",
      "  int method(int x = f()) const {  // {",
      "    return x;",
      "  }",
      "};",
      "const int k[] = {g(1)};",
      "#define M(x) {",
      "Status long_one(const char* text,",
      "                int) {",
      "  auto lambda = [] { return R\"(}})\"; };",
      "  if (*text == '{') {",
      "  }",
      "}",
      "}  // namespace a",
  };
  const std::vector<FunctionBody> found = FunctionFinder(lines).find();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].first_line, 2u);
  EXPECT_EQ(found[0].num_lines, 3u);
  EXPECT_EQ(found[1].first_line, 8u);
  EXPECT_EQ(found[1].num_lines, 6u);
}

TEST(Tidy, NoFastMath) {
  for (const SourceFile& file : tree()) {
    if (file.under("tests")) continue;  // tests build what must be refused
    if (!file.is_cmake() && !file.has_extension({".json", ".in"}) && !file.is_script()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_EQ(file.lines[i].find("-ffast-math"), std::string::npos)
          << at(file, i) << "results would depend on the compiler's mood";
    }
  }
}

TEST(Tidy, EnvironmentIsReadInFewPlaces) {
  const std::regex reads(R"(\b((secure_)?getenv *\(|environ\b *[;,)]|setenv *\(|putenv *\())");
  for (const SourceFile& file : tree()) {
    if (!file.is_code() || file.under("tests") || file.under("tools") ||
        file.under("runtime/plugin") || file.path == "runtime/api_runtime.cc") {
      continue;
    }
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string code = file.lines[i].substr(0, file.lines[i].find("//"));
      EXPECT_FALSE(std::regex_search(code, reads))
          << at(file, i) << "only runtime/api_runtime.cc, runtime/plugin/ and tools/ may";
    }
  }
}

TEST(Tidy, OpenEndsNameTheirIssue) {
  // Assembled, so that this file does not break its own rule.
  const std::regex open(std::string("\\b(TO") + "DO|FIX" + "ME|X" + "XX)\\b");
  const std::regex named(std::string("TO") + "DO\\(#[0-9]+\\)");
  for (const SourceFile& file : tree()) {
    if (!file.is_code() && !file.is_cmake() && !file.is_script()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (!std::regex_search(file.lines[i], open)) continue;
      EXPECT_TRUE(std::regex_search(file.lines[i], named)) << at(file, i) << "want the issue: (#n)";
    }
  }
}

TEST(Tidy, NoCodeInComments) {
  const std::regex code(
      R"(^ *// *([a-z_:.>-]+\(.*\);|(return|if|for|while|const|auto|int|float)\b.*[;{])$)");
  for (const SourceFile& file : tree()) {
    if (!file.is_code()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_match(file.lines[i], code))
          << at(file, i) << "delete it: git remembers";
    }
  }
}

}  // namespace
}  // namespace perch_test
