// The README shows files of this tree: a block below `<!-- from PATH -->` must stand in PATH, line
// for line but for what it leaves out at `/* ... */`; the table of recipes is what the backends
// answer; a link leads somewhere.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>

namespace {

const std::filesystem::path kRoot = PERCH_SOURCE_DIR;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Readme, BlocksAreCutFromFiles) {
  const std::string readme = read_text(kRoot / "README.md");
  const std::regex block("<!-- from ([^ ]+) -->\n```[a-z]*\n((?:[^\n]*\n)*?)```\n");
  int blocks = 0;
  for (std::sregex_iterator it(readme.begin(), readme.end(), block), end; it != end; ++it) {
    const std::string path = (*it)[1], text = (*it)[2];
    ++blocks;
    const std::string file = "\n" + read_text(kRoot / path);
    const std::regex gap(" */\\* \\.\\.\\. \\*/\n");
    size_t from = 0;
    for (std::sregex_token_iterator part(text.begin(), text.end(), gap, -1), last; part != last;
         ++part) {
      from = file.find("\n" + part->str(), from);
      ASSERT_NE(from, std::string::npos) << "README.md shows what is not in " << path << ", in "
                                         << "this order:\n"
                                         << part->str();
    }
  }
  EXPECT_GE(blocks, 1);
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof(buffer), pipe.get()) != nullptr) {
    text += buffer;
  }
  return text;
}

// "w=bf16 a=int8t" -> the kernel of the backend's first variant that takes it; "" if none does.
std::string kernel_of(const std::string& backend, const std::string& recipe) {
  const std::string table =
      output_of("'" PERCH_BUILD_DIR "/bin/perch' explain 'moe t1 e4 top2 h128 i128 " + recipe +
                " act=silu' 2>&1");
  EXPECT_NE(table.find("BACKEND"), std::string::npos) << recipe << ": " << table;
  std::smatch found;
  const std::regex line("\n *(?:=>|ok) +" + backend + "/\\d+ +(\\S+)");
  return std::regex_search(table, found, line) ? found[1].str() : "";
}

// The table of recipes: each row says what takes them, and by which of humming-cpu's kernels.
TEST(Readme, RecipesAreWhatTheBackendsAnswer) {
  const std::string readme = read_text(kRoot / "README.md");
  const std::regex row(R"(\n\| (`w=[^|]*) \| yes \| `(\w+)` \|)"), recipe("`(w=[^`]*)`");
  ASSERT_NE(readme.find("| reference | humming-cpu, kernel |\n"), std::string::npos);
  int recipes = 0;
  for (std::sregex_iterator it(readme.begin(), readme.end(), row), end; it != end; ++it) {
    const std::string cell = (*it)[1];
    for (std::sregex_iterator one(cell.begin(), cell.end(), recipe); one != end; ++one) {
      ++recipes;
      EXPECT_EQ(kernel_of("reference", (*one)[1]), "reference") << (*one)[1];
      const std::string kernel = kernel_of("humming-cpu", (*one)[1]);
      EXPECT_EQ(kernel.rfind("bf16_" + (*it)[2].str() + "_bf16_", 0), 0u)
          << (*one)[1] << ": " << kernel;
    }
  }
  EXPECT_GE(recipes, 15);
}

TEST(Readme, LinksLeadSomewhere) {
  const std::regex link(R"(\]\(([^)#]+)[^)]*\))");
  for (const char* folder : {"", "abi", "backends", "runtime", "configs", "tests", "tools"}) {
    const std::filesystem::path readme = kRoot / folder / "README.md";
    if (!std::filesystem::exists(readme)) continue;
    const std::string text = read_text(readme);
    for (std::sregex_iterator it(text.begin(), text.end(), link), end; it != end; ++it) {
      const std::string target = (*it)[1];
      if (target.rfind("http", 0) == 0) continue;
      EXPECT_TRUE(std::filesystem::exists(readme.parent_path() / target))
          << readme << " links to " << target;
    }
  }
}

}  // namespace
