// The headers by themselves: each in a translation unit of its own, in every language they promise.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "shell.h"

namespace perch::test {
namespace {

const char kInclude[] = PERCH_SOURCE_DIR "/abi/include";

struct Language {
  const char* name;  // of the test
  const char* flags;
  const char* suffix;
  std::vector<std::string> headers;
  // -Wpadded is a promise of the structs that cross; perch.hpp has classes of its own.
  const char* warnings = "-pedantic -Wall -Wextra -Wpadded -Werror";
};

const std::vector<std::string> kCHeaders = {"base.h", "layer.h", "backend.h", "runtime.h"};

const std::vector<Language>& languages() {
  static const std::vector<std::string> kBackend = {"base.h", "layer.h", "backend.h", "runtime.h",
                                                    "guard.hpp"};
  static const std::vector<Language> kLanguages = {
      {"c99", "-std=c99", ".c", kCHeaders},
      {"c11", "-std=c11", ".c", kCHeaders},
      {"c17", "-std=c17", ".c", kCHeaders},
      {"cxx11", "-std=c++11", ".cc", kBackend},
      {"cxx14", "-std=c++14", ".cc", kBackend},
      {"cxx17", "-std=c++17", ".cc", kBackend},
      {"cxx20", "-std=c++20", ".cc", kBackend},
      {"host_cxx17", "-std=c++17", ".cc", {"perch.hpp"}, "-pedantic -Wall -Wextra -Werror"},
      {"host_cxx20", "-std=c++20", ".cc", {"perch.hpp"}, "-pedantic -Wall -Wextra -Werror"},
  };
  return kLanguages;
}

std::string compiler(const std::string& family, const std::string& suffix) {
  if (family == "gcc") return suffix == ".c" ? "gcc" : "g++";
  return suffix == ".c" ? "clang" : "clang++";
}

class HeaderTest : public ::testing::TestWithParam<std::tuple<const char*, size_t>> {};

TEST_P(HeaderTest, CompilesAlone) {
  const auto& [family, index] = GetParam();
  const Language& language = languages()[index];
  const std::string program = compiler(family, language.suffix);
  if (!is_installed(program)) GTEST_SKIP() << program << " is not installed";
  const TempDir folder;
  std::string files;
  for (const std::string& header : language.headers) {
    const std::string file = folder / (header + language.suffix);
    // A declaration of our own: a translation unit without one is not ISO C.
    write_text(file, "#include <perch/" + header + ">\nint perch_only_header;\n");
    files += " " + file;
  }
  const ShellResult result = run_shell(program + " " + language.flags + " " + language.warnings +
                                       " -fsyntax-only -I" + kInclude + files + " 2>&1");
  EXPECT_EQ(result.code, 0) << result.output;
}

INSTANTIATE_TEST_SUITE_P(Languages, HeaderTest,
                         ::testing::Combine(::testing::Values("gcc", "clang"),
                                            ::testing::Range<size_t>(0, languages().size())),
                         [](const auto& row) {
                           return std::string(std::get<0>(row.param)) + "_" +
                                  languages()[std::get<1>(row.param)].name;
                         });

class TwoUnitsTest : public ::testing::TestWithParam<const char*> {};

// Two units that include everything, one of them C, link: nothing is defined twice.
TEST_P(TwoUnitsTest, Link) {
  const std::string cc = compiler(GetParam(), ".c");
  const std::string cxx = compiler(GetParam(), ".cc");
  if (!is_installed(cc) || !is_installed(cxx)) GTEST_SKIP() << cc << " is not installed";
  const TempDir folder;
  write_text(folder / "a.c",
             "#include <perch/backend.h>\n#include <perch/runtime.h>\n"
             "int64_t width(void);\n"
             "int64_t width(void) { return perch_gate_up_width(PERCH_ACTIVATION_SILU, 3); }\n");
  write_text(folder / "b.cc",
             "#include <perch/guard.hpp>\n#include <perch/runtime.h>\n"
             "extern \"C\" int64_t width(void);\n"
             "perch_status guard() { return perch_guard::guarded(nullptr, [] { return PERCH_OK; });"
             " }\n");
  write_text(folder / "main.cc",
             "#include <perch/guard.hpp>\n#include <perch/runtime.h>\n"
             "extern \"C\" int64_t width(void);\nperch_status guard();\n"
             "int main() { return width() == 6 && guard() == PERCH_OK &&\n"
             "  perch_gate_up_width(PERCH_ACTIVATION_RELU2_NO_MUL, 3) == 3 ? 0 : 1; }\n");
  const std::string in = "cd " + folder.path() + " && ";
  const std::string include = std::string(" -I") + kInclude;
  const ShellResult built =
      run_shell(in + cc + " -std=c99 -c a.c -o a.o" + include + " 2>&1 && " + cxx +
                " -std=c++11 -c b.cc -o b.o" + include + " 2>&1 && " + cxx +
                " -std=c++11 main.cc a.o b.o -o both" + include + " 2>&1");
  ASSERT_EQ(built.code, 0) << built.output;
  EXPECT_EQ(run_shell(folder / "both").code, 0);
}

INSTANTIATE_TEST_SUITE_P(Compilers, TwoUnitsTest, ::testing::Values("gcc", "clang"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace perch::test
