// Where backends are looked for: paths in, files out, in the one fixed order.
//
// No current directory, no LD_LIBRARY_PATH, no name search by the dynamic linker: a backend is
// always an absolute path that this file has resolved and judged.
//
// "Who may give us code to run?" Root and the effective user: a file or directory that others may
// write or own is refused. Its parents further up are not looked at.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace perch {

// One place that was looked at. `reason` is "" unless the place gave nothing: it is missing,
// relative, unreadable or not trusted.
struct SearchPlace {
  std::string path;
  std::string origin;  // "api" "config" "environment" "built-in"
  std::string reason;
  perch_status code = PERCH_OK;
  int64_t num_files = 0;  // libperch_*.so in it, or 1 for a place that is a file
};

// One file to load, or the reason why it must not be.
struct FoundFile {
  std::string path;       // as found: the place's name and the file's
  std::string real_path;  // absolute, no symlinks; "" when it could not be resolved
  dev_t device = 0;
  ino_t inode = 0;
  Status status;  // PERMISSION: not trusted
};

struct SearchRequest {
  std::vector<std::string> api_paths;
  std::vector<std::string> config_paths;
  std::vector<std::string> environment_paths;
  std::string builtin_directory;  // "": none
  bool trust_any = false;
};

struct SearchResult {
  std::vector<SearchPlace> places;
  std::vector<FoundFile> files;  // each inode once, the first name wins
};

// Paths are files or directories. In a directory: libperch_*.so, sorted bytewise, not recursive.
SearchResult find_libraries(const SearchRequest& request);

// One file by absolute path: the file itself and the directory it really lies in are judged.
FoundFile find_file(const std::string& path, bool trust_any);

// "a:b" -> {a, b}; empty parts are dropped.
std::vector<std::string> split_paths(std::string_view list);

// <directory of the library or program that this code is in>/perch/backends; "" when not known.
std::string builtin_backend_directory();

}  // namespace perch
