#include "plugin/search.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <system_error>

namespace perch {
namespace {

Status system_error(int code, const char* what) {
  const perch_status status = code == EACCES || code == EPERM     ? PERCH_E_PERMISSION
                              : code == ENOENT || code == ENOTDIR ? PERCH_E_NOT_FOUND
                                                                  : PERCH_E_INVALID_ARGUMENT;
  return {status, fmt::format("{}: {}", what, std::generic_category().message(code))};
}

std::string resolve(const std::string& path, Status* status) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), free);
  if (real != nullptr) return real.get();
  *status = system_error(errno, "cannot be resolved");
  return "";
}

std::string parent_of(const std::string& real_path) {
  const size_t slash = real_path.rfind('/');
  return slash == 0 ? "/" : real_path.substr(0, slash);
}

// May code from here run in this process? `what`: "" for the thing itself, else "its directory ".
// A sticky directory is fine around a file that was named, since nobody else can replace that file;
// it is no place to scan, since anybody may have put something there.
Status check_trust(const struct stat& info, const std::string& what, bool sticky_is_fine) {
  const bool sticky = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0;
  if ((info.st_mode & S_IWOTH) != 0 && !(sticky && sticky_is_fine)) {
    return {PERCH_E_PERMISSION,
            fmt::format("{}is writable by everyone (mode {:04o}); chmod o-w it, or set "
                        "backends.trust: any",
                        what, info.st_mode & 07777)};
  }
  if (info.st_uid != 0 && info.st_uid != geteuid()) {
    return {PERCH_E_PERMISSION,
            fmt::format("{}belongs to user {}, neither to root nor to us (user {}); chown it, or "
                        "set backends.trust: any",
                        what, info.st_uid, geteuid())};
  }
  return {};
}

// Names of the directory's libperch_*.so, sorted bytewise.
Result<std::vector<std::string>> list_directory(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (directory == nullptr) return system_error(errno, "cannot be listed");
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(directory.get());
    if (entry == nullptr) break;
    if (fnmatch("libperch_*.so", entry->d_name, 0) == 0) names.emplace_back(entry->d_name);
  }
  if (errno != 0) return system_error(errno, "cannot be listed");
  std::sort(names.begin(), names.end());
  return names;
}

class Search {
 public:
  explicit Search(bool trust_any) : trust_any_(trust_any) {}

  void look_at(const std::string& path, const char* origin) {
    SearchPlace place{path, origin, "", PERCH_OK, 0};
    const Status status = look(path, &place);
    place.reason = status.message();
    place.code = status.code();
    result_.places.push_back(std::move(place));
  }

  SearchResult take() { return std::move(result_); }

 private:
  Status look(const std::string& path, SearchPlace* place) {
    if (path.empty() || path[0] != '/') {
      return invalid_argument("is a relative path; want an absolute one");
    }
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return system_error(errno, "cannot be searched");
    if (!S_ISDIR(info.st_mode)) {
      add(find_file(path, trust_any_), place);
      return {};
    }
    if (!trust_any_) PERCH_RETURN_IF_ERROR(check_trust(info, "", false));
    PERCH_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(path));
    const std::string prefix = path.back() == '/' ? path : path + "/";
    for (const std::string& name : names) add(find_file(prefix + name, trust_any_), place);
    return {};
  }

  void add(FoundFile file, SearchPlace* place) {
    ++place->num_files;
    const auto same = [&file](const FoundFile& other) {
      if (file.real_path.empty()) return other.path == file.path;
      return !other.real_path.empty() && other.device == file.device && other.inode == file.inode;
    };
    if (std::none_of(result_.files.begin(), result_.files.end(), same)) {
      result_.files.push_back(std::move(file));
    }
  }

  bool trust_any_;
  SearchResult result_;
};

}  // namespace

FoundFile find_file(const std::string& path, bool trust_any) {
  FoundFile file;
  file.path = path;
  if (path.empty() || path[0] != '/') {
    file.status = invalid_argument("is a relative path; want an absolute one");
    return file;
  }
  const std::string real_path = resolve(path, &file.status);
  if (!file.status.ok()) return file;
  struct stat info {};
  struct stat directory {};
  if (stat(real_path.c_str(), &info) != 0 || stat(parent_of(real_path).c_str(), &directory) != 0) {
    file.status = system_error(errno, "cannot be looked at");
    return file;
  }
  file.real_path = real_path;
  file.device = info.st_dev;
  file.inode = info.st_ino;
  if (trust_any) return file;
  file.status = check_trust(info, "", false);
  if (file.status.ok()) {
    file.status = check_trust(directory, "its directory " + parent_of(real_path) + " ", true);
  }
  return file;
}

SearchResult find_libraries(const SearchRequest& request) {
  Search search(request.trust_any);
  for (const std::string& path : request.api_paths) search.look_at(path, "api");
  for (const std::string& path : request.config_paths) search.look_at(path, "config");
  for (const std::string& path : request.environment_paths) search.look_at(path, "environment");
  if (!request.builtin_directory.empty()) search.look_at(request.builtin_directory, "built-in");
  return search.take();
}

std::vector<std::string> split_paths(std::string_view list) {
  std::vector<std::string> paths;
  while (!list.empty()) {
    const size_t colon = std::min(list.find(':'), list.size());
    if (colon > 0) paths.emplace_back(list.substr(0, colon));
    list.remove_prefix(std::min(colon + 1, list.size()));
  }
  return paths;
}

std::string builtin_backend_directory() {
  Dl_info info{};
  // Any address in this library will do. For a statically linked test it is the program's.
  if (dladdr(reinterpret_cast<const void*>(&builtin_backend_directory), &info) == 0 ||
      info.dli_fname == nullptr) {
    return "";
  }
  Status status;
  const std::string self = resolve(info.dli_fname, &status);
  if (!status.ok()) return "";
  return (parent_of(self) == "/" ? "" : parent_of(self)) + "/perch/backends";
}

}  // namespace perch
