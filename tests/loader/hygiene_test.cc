// What backends of this tree export, need and ask of the dynamic linker (abi/README.md), read with
// nm and readelf as anybody else would.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace perch {
namespace {

std::vector<std::string> output_lines(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {"popen failed: " + command};
  std::string output;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) output += static_cast<char>(c);
  if (pclose(pipe) != 0) return {"failed: " + command + ": " + output};
  std::vector<std::string> lines;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> lines_with(const std::vector<std::string>& lines,
                                    const std::string& part) {
  std::vector<std::string> found;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(found),
               [&part](const std::string& line) { return contains(line, part); });
  return found;
}

std::vector<std::string> backends() {
  std::vector<std::string> paths;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::string(PERCH_BUILD_DIR) + "/lib/perch/backends", none)) {
    const std::string name = entry.path().filename();
    if (name.rfind("libperch_", 0) == 0 && entry.path().extension() == ".so") {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Hygiene : public testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(backends().empty()) << "no backend was built"; }
};

TEST_F(Hygiene, ExportsTheEntryAndNothingElse) {
  for (const std::string& path : backends()) {
    const auto lines = output_lines("nm -D --defined-only " + path);
    ASSERT_EQ(lines.size(), 1U) << path << ": " << testing::PrintToString(lines);
    EXPECT_TRUE(contains(lines[0], " T perch_backend_entry_v1")) << path << ": " << lines[0];
  }
}

TEST_F(Hygiene, NeedsNoSymbolOfPerch) {
  for (const std::string& path : backends()) {
    EXPECT_EQ(lines_with(output_lines("nm -D --undefined-only " + path), "perch_").size(), 0U)
        << path;
  }
}

TEST_F(Hygiene, HasNoUniqueSymbols) {
  for (const std::string& path : backends()) {
    EXPECT_EQ(lines_with(output_lines("readelf --dyn-syms -W " + path), " UNIQUE "),
              std::vector<std::string>())
        << path;
  }
}

TEST_F(Hygiene, DynamicFlags) {
  for (const std::string& path : backends()) {
    const auto lines = output_lines("readelf -dW " + path);
    const auto flags = lines_with(lines, "(FLAGS_1)");
    ASSERT_EQ(flags.size(), 1U) << path;
    EXPECT_TRUE(contains(flags[0], "NODELETE")) << path << ": " << flags[0];
    EXPECT_TRUE(contains(flags[0], "NOW")) << path << ": " << flags[0];
    EXPECT_TRUE(lines_with(lines, "TEXTREL").empty()) << path;
    EXPECT_TRUE(lines_with(lines, "STATIC_TLS").empty()) << path;
    EXPECT_TRUE(lines_with(lines, "(RPATH)").empty()) << path;
  }
}

// Sanitizer runtimes are for the builds that ask for them. The CUDA driver is opened at run time,
// never linked: a machine without it must still be able to list the backend and its reason.
TEST_F(Hygiene, NeedsOnlyTheUsualLibraries) {
  const std::vector<std::string> usual = {
      "libc.so",  "libm.so",       "libstdc++.so", "libgcc_s.so", "ld-linux",
      "libdl.so", "libpthread.so", "libasan.so",   "libubsan.so", "libtsan.so"};
  for (const std::string& path : backends()) {
    for (const std::string& line : lines_with(output_lines("readelf -dW " + path), "(NEEDED)")) {
      EXPECT_TRUE(std::any_of(usual.begin(), usual.end(),
                              [&line](const auto& name) { return contains(line, "[" + name); }))
          << path << ": " << line;
    }
  }
}

TEST_F(Hygiene, StackIsNotExecutable) {
  for (const std::string& path : backends()) {
    const auto stack = lines_with(output_lines("readelf -lW " + path), "GNU_STACK");
    ASSERT_EQ(stack.size(), 1U) << path;
    EXPECT_FALSE(contains(stack[0], "RWE")) << path << ": " << stack[0];
  }
}

}  // namespace
}  // namespace perch
