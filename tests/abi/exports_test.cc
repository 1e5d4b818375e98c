// What leaves libperch and the backends, and what they need to be there.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "shell.h"

namespace perch::test {
namespace {

const char kLibrary[] = PERCH_BUILD_DIR "/lib/libperch.so.1";
const char kBackends[] = PERCH_BUILD_DIR "/lib/perch/backends/";

// Names of the dynamic symbols, defined or undefined; versions cut off.
std::set<std::string> dynamic_names(const std::string& library, bool defined) {
  const ShellResult result = run_shell(
      std::string("nm -D ") + (defined ? "--defined-only " : "--undefined-only ") + library);
  EXPECT_EQ(result.code, 0) << library;
  std::set<std::string> names;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, type, name;
    while (words >> word) {
      type = name;
      name = word;
    }
    // 'A' is the node of the version script itself.
    if (type != "A") names.insert(name.substr(0, name.find('@')));
  }
  return names;
}

std::set<std::string> words_of(const std::string& path) {
  std::istringstream text(read_text(path));
  std::set<std::string> words;
  for (std::string word; text >> word;) words.insert(word);
  return words;
}

std::set<std::string> needed_by(const std::string& library) {
  const std::string text = run_shell("readelf -d " + library).output;
  std::set<std::string> needed;
  const std::regex entry("\\(NEEDED\\)[^\\[]*\\[([^\\]]*)\\]");
  for (std::sregex_iterator i(text.begin(), text.end(), entry), end; i != end; ++i) {
    needed.insert((*i)[1]);
  }
  return needed;
}

TEST(Exports, AreTheCommittedList) {
  const std::set<std::string> names = dynamic_names(kLibrary, true);
  EXPECT_EQ(names, words_of(PERCH_SOURCE_DIR "/tests/abi/exported.txt"))
      << "a name removed from libperch breaks built hosts (R13); an added one belongs in the list";
  for (const std::string& name : names) EXPECT_EQ(name.rfind("perch_", 0), 0U) << name;
}

TEST(Exports, AreTheFunctionsOfTheHeader) {
  const std::string header = read_text(PERCH_SOURCE_DIR "/abi/include/perch/runtime.h");
  std::set<std::string> declared;
  const std::regex function("PERCH_EXPORT[^;]*?PERCH_CALL\\s+(perch_\\w+)\\(");
  for (std::sregex_iterator i(header.begin(), header.end(), function), end; i != end; ++i) {
    declared.insert((*i)[1]);
  }
  EXPECT_EQ(dynamic_names(kLibrary, true), declared);
}

TEST(Needed, ByTheRuntimeIsLibcAlone) {
  if (kSanitized) GTEST_SKIP() << "sanitizers bring their own libraries";
  const std::set<std::string> allowed = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2",
                                         "ld-linux-aarch64.so.1"};
  for (const std::string& library : needed_by(kLibrary)) {
    EXPECT_EQ(allowed.count(library), 1U) << library;
  }
}

// "lib/perch/backends/libperch_reference.so" as a test's name.
std::string file_name(const ::testing::TestParamInfo<const char*>& row) {
  std::string name = std::filesystem::path(row.param).filename().string();
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

class CudaTest : public ::testing::TestWithParam<const char*> {};

// A host on a machine without a driver must start (field report G4).
TEST_P(CudaTest, IsNotNeeded) {
  for (const std::string& library : needed_by(std::string(PERCH_BUILD_DIR "/") + GetParam())) {
    EXPECT_EQ(library.find("cuda"), std::string::npos) << library;
    EXPECT_EQ(library.find("nvidia"), std::string::npos) << library;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, CudaTest,
                         ::testing::Values("lib/libperch.so.1", "bin/perch",
                                           "lib/perch/backends/libperch_reference.so",
                                           "lib/perch/backends/libperch_humming_cpu.so"),
                         file_name);

class BackendExportsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(BackendExportsTest, AreTheEntryAlone) {
  const std::string library = kBackends + std::string(GetParam());
  const std::set<std::string> only = {"perch_backend_entry_v1"};
  EXPECT_EQ(dynamic_names(library, true), only);
  for (const std::string& name : dynamic_names(library, false)) {
    EXPECT_NE(name.rfind("perch_", 0), 0U) << name << " is wanted from outside";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendExportsTest,
                         ::testing::Values("libperch_reference.so", "libperch_humming_cpu.so",
                                           "libperch_template.so"),
                         file_name);

}  // namespace
}  // namespace perch::test
