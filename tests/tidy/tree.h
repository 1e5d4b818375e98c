// The source tree as lines of text: what the tidy tests read.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace perch_test {

struct SourceFile {
  std::string path;  // from the root: "runtime/run/route.cc"
  std::vector<std::string> lines;

  bool under(const std::string& folder) const { return path.rfind(folder + "/", 0) == 0; }
  std::string name() const { return path.substr(path.rfind('/') + 1); }
  // "runtime/run"; "" for a file of the root.
  std::string folder() const {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash);
  }
  bool has_extension(const std::vector<std::string>& extensions) const {
    const std::string extension = std::filesystem::path(path).extension();
    return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
  }
  bool is_code() const { return has_extension({".c", ".cc", ".cu", ".cuh", ".h", ".hpp", ".inc"}); }
  bool is_cmake() const { return name() == "CMakeLists.txt" || has_extension({".cmake"}); }
  bool is_script() const { return !lines.empty() && lines[0].rfind("#!", 0) == 0; }
};

inline std::vector<std::string> read_lines(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Entries of .gitignore: names alone.
inline std::vector<std::string> ignored_names(const std::filesystem::path& root) {
  std::vector<std::string> names = {".git"};
  for (std::string line : read_lines(root / ".gitignore")) {
    line.erase(std::remove(line.begin(), line.end(), '/'), line.end());
    names.push_back(line);
  }
  return names;
}

inline bool is_data(const std::string& path) {
  for (const char* folder : {"tests/fixtures/hf", "tests/fixtures/corpus", "tests/golden"}) {
    if (path == folder) return true;
  }
  return false;
}

// Every file of the tree but what git ignores and the data of the tests.
inline std::vector<SourceFile> read_tree(const std::filesystem::path& root) {
  const std::vector<std::string> ignored = ignored_names(root);
  std::vector<SourceFile> files;
  auto walk = std::filesystem::recursive_directory_iterator(root);
  for (auto it = begin(walk); it != end(walk); ++it) {
    const std::string path = std::filesystem::relative(it->path(), root);
    const std::string name = it->path().filename();
    const bool skip = std::find(ignored.begin(), ignored.end(), name) != ignored.end();
    if (it->is_directory() && (skip || is_data(path))) it.disable_recursion_pending();
    if (it->is_regular_file() && !skip) files.push_back({path, read_lines(it->path())});
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace perch_test
