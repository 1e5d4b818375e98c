// clang-format over the tree, by the version whose output the tree has: others differ.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "tree.h"

namespace perch_test {
namespace {

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof(buffer), pipe.get()) != nullptr)
    text += buffer;
  return text;
}

TEST(Format, IsWhatClangFormat14Makes) {
  if (output_of("clang-format-14 --version 2>/dev/null").empty()) {
    GTEST_SKIP() << "clang-format-14 is not installed";
  }
  std::string files;
  for (const SourceFile& file : read_tree(PERCH_SOURCE_DIR)) {
    // The C headers are prose with declarations in it, set by hand.
    if (file.is_code() && !file.under("abi/include")) files += " '" + file.path + "'";
  }
  EXPECT_EQ(output_of("cd '" PERCH_SOURCE_DIR "' && clang-format-14 --dry-run 2>&1" + files +
                      " | sed -n 's/:[0-9:]* warning: .*//p' | sort -u"),
            "")
      << "run clang-format-14 -i on these files";
}

}  // namespace
}  // namespace perch_test
