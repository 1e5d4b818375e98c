// Step 0 of the flow: paths -> every backend library found, verified, created, with its devices;
// or with the reason why not. Nothing is thrown away: what failed stays in the table.
//
// Not the chooser (select/), and not YAML (config/): PluginOptions is what both have in common.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/host_table.h"
#include "plugin/loader.h"
#include "plugin/search.h"

namespace perch {

struct PluginOptions {
  std::vector<std::string> api_paths;     // absolute files or directories, searched first
  std::vector<std::string> config_paths;  // backends.paths
  bool use_environment = true;            // PERCH_BACKEND_PATH
  bool use_builtin = true;                // <directory of libperch.so>/perch/backends
  std::vector<std::string> allow{"*"};    // globs over ids, which are known once it is opened
  std::vector<std::string> deny;  // globs over ids, and over file names: a match is not opened
  std::vector<std::string> must_load;
  bool trust_any = false;
  std::map<std::string, OptionList> backend_options;  // by id
  HostServices host;
  LogSink log;
};

// What became of a library.
enum class LibraryState {
  kLoaded,    // and only then `backend` is set
  kFailed,    // could not be loaded, or its create said no
  kRefused,   // file or directory not trusted, or no permission to read it
  kShadowed,  // another library with this id came first
  kDisabled,  // allow or deny says so
};
const char* state_name(LibraryState state);  // "loaded" "failed" "refused" "shadowed" "disabled"

struct LibraryRecord {
  std::string path;       // as found
  std::string real_path;  // "" when it could not be resolved
  // The backend's own once its table was read; before that a guess from the file's name
  // (libperch_humming_cuda.so: humming-cuda), so that messages and lists can name it.
  std::string id;
  bool id_known = false;
  std::string version, vendor, build;
  std::string build_id;  // GNU build id in hex
  std::string abi;       // "1.0": what it was built for
  LibraryState state = LibraryState::kFailed;
  std::string reason;                   // one line, without the path; "" when loaded
  perch_status code = PERCH_OK;         // of the reason
  std::vector<std::string> complaints;  // rules it broke without being refused for it
  int32_t reason_code = 0;              // PERCH_REASON_LOAD, _ABI or _POLICY; 0 when loaded
  std::vector<DeviceRecord> devices;
  perch_caps caps_possible = 0;
  // Valid for the life of the process once set; members added after 1.0: ask PERCH_HAS_FIELD.
  const perch_backend_api* api = nullptr;
  perch_backend* backend = nullptr;
  dev_t file_device = 0;
  ino_t file_inode = 0;
};

// Not thread safe itself. Loading and destroying are serialised over the whole process, as the ABI
// asks, so several registries may live side by side.
class Registry {
 public:
  Registry() = default;
  ~Registry();  // destroys every backend; libraries stay mapped
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Once, before anything else. Fails only when an id of must_load did not load (NOT_FOUND, with
  // the reasons); the table is complete then too.
  Status load_all(const PluginOptions& options);

  // One more library, by absolute path, under the same options. A library that is loaded already is
  // OK; one that had failed is tried again. References into libraries() end here.
  Status load_file(const std::string& path);

  const std::vector<LibraryRecord>& libraries() const { return libraries_; }
  const std::vector<SearchPlace>& places() const { return places_; }
  // Settings without effect, one line each; they have been logged too.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // The loaded library of that id, or null.
  const LibraryRecord* find(const std::string& id) const;
  // The table that backends were given; null before load_all or load_file.
  const perch_host_api* host() const { return host_ == nullptr ? nullptr : host_->api(); }

 private:
  LibraryRecord load(const FoundFile& file);
  Status load_steps(const FoundFile& file, LibraryRecord* record);
  Status check_policy(LibraryRecord* record) const;
  Status check_must_load() const;
  void warn_unused_options();
  void report(const LibraryRecord& record) const;
  void ensure_host();
  void log(int32_t level, const std::string& message) const;

  PluginOptions options_;
  std::unique_ptr<HostTable> host_;
  std::vector<LibraryRecord> libraries_;
  std::vector<SearchPlace> places_;
  std::vector<std::string> warnings_;
};

}  // namespace perch
