// What the loader's tests share: a directory of their own to fill with libraries, and a log that
// remembers.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "plugin/registry.h"

namespace perch {

inline std::string fixture_path(const std::string& name) {
  return std::string(PERCH_BUILD_DIR) + "/loader_fixtures/" + name + "/libperch_" + name + ".so";
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class ScratchDirectory : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "perch_loader_XXXXXX";
    ASSERT_NE(mkdtemp(path_.data()), nullptr);
    path_ = std::filesystem::canonical(path_);
    chmod(path_.c_str(), 0755);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  // The fixture as <directory>/libperch_<as>.so; returns its path. A copy is a new file to the
  // dynamic linker, so that no test sees what another one has loaded.
  std::string add_fixture(const std::string& name, const std::string& as) {
    return add_file("libperch_" + as + ".so", read_file(fixture_path(name)));
  }
  std::string add_fixture(const std::string& name) { return add_fixture(name, name); }

  std::string add_file(const std::string& name, const std::string& content) {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    chmod(path.c_str(), 0644);
    return path;
  }

  // Only this directory is searched.
  PluginOptions options() {
    PluginOptions options;
    options.api_paths = {path_};
    options.use_environment = false;
    options.use_builtin = false;
    options.log = {[](void* ctx, int32_t level, const char* component, const char* message) {
                     auto* test = static_cast<ScratchDirectory*>(ctx);
                     test->log_.push_back({level, component, message});
                   },
                   this};
    return options;
  }

  struct LogLine {
    int32_t level;
    std::string component;
    std::string message;
  };
  std::vector<LogLine> lines_at_least(int32_t level) const {
    std::vector<LogLine> lines;
    for (const LogLine& line : log_) {
      if (line.level >= level) lines.push_back(line);
    }
    return lines;
  }

  std::string path_;
  std::vector<LogLine> log_;
};

inline const LibraryRecord* record_of(const Registry& registry, const std::string& path) {
  for (const LibraryRecord& record : registry.libraries()) {
    if (record.path == path) return &record;
  }
  return nullptr;
}

// Runs `body` in a child process, whose output is dropped; returns waitpid's status. The child
// exits with 0 when body returns true.
inline int run_in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(99);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace perch
