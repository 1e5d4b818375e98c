#include "plugin/registry.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <stdlib.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "plugin/clean_text.h"
#include "plugin/elf_check.h"
#include "plugin/float_watch.h"

namespace perch {
namespace {

constexpr size_t kInfoTextBytesMax = 512;

// create, destroy and the entry run one at a time per process (backend.h).
std::mutex& process_mutex() {
  static std::mutex mutex;
  return mutex;
}

// "/x/libperch_humming_cuda.so" -> "humming-cuda"
std::string id_from_file_name(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  if (name.rfind("libperch_", 0) == 0) name = name.substr(9);
  name = name.substr(0, name.find('.'));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// The glob of `globs` that matches, or null.
const std::string* matching(const std::vector<std::string>& globs, const std::string& id) {
  const auto found = std::find_if(globs.begin(), globs.end(), [&id](const std::string& glob) {
    return fnmatch(glob.c_str(), id.c_str(), 0) == 0;
  });
  return found == globs.end() ? nullptr : &*found;
}

std::string shadow_text(const LibraryRecord& first) {
  std::string text = "shadowed by " + first.path;
  if (first.state != LibraryState::kLoaded) text += ", which did not load: " + first.reason;
  return text;
}

void fill_info(const perch_backend_api& api, LibraryRecord* record) {
  record->api = &api;
  record->id = api.info->id;
  record->id_known = true;
  record->version = clean_text(api.info->version, kInfoTextBytesMax);
  record->vendor = clean_text(api.info->vendor, kInfoTextBytesMax);
  record->build = clean_text(api.info->build, kInfoTextBytesMax);
  record->abi = fmt::format("{}.{}", api.abi_major, api.abi_minor);
  record->caps_possible = api.info->caps_possible;
}

int32_t reason_code_of(const LibraryRecord& record) {
  switch (record.state) {
    case LibraryState::kLoaded:
      return 0;
    case LibraryState::kDisabled:
    case LibraryState::kShadowed:
    case LibraryState::kRefused:
      return PERCH_REASON_POLICY;
    case LibraryState::kFailed:
      break;
  }
  const bool is_abi = record.code == PERCH_E_ABI_MISMATCH || record.code == PERCH_E_CONTRACT;
  return is_abi ? PERCH_REASON_ABI : PERCH_REASON_LOAD;
}

int32_t log_level_of(const LibraryRecord& record) {
  switch (record.state) {
    case LibraryState::kLoaded:
      return PERCH_LOG_DEBUG;
    case LibraryState::kDisabled:
      return PERCH_LOG_INFO;
    case LibraryState::kFailed:
      if (record.code == PERCH_E_CONTRACT) return PERCH_LOG_BACKEND_MISUSE;
      return PERCH_LOG_WARN;
    case LibraryState::kRefused:
    case LibraryState::kShadowed:
      break;
  }
  return PERCH_LOG_WARN;
}

}  // namespace

const char* state_name(LibraryState state) {
  switch (state) {
    case LibraryState::kLoaded:
      return "loaded";
    case LibraryState::kFailed:
      return "failed";
    case LibraryState::kRefused:
      return "refused";
    case LibraryState::kShadowed:
      return "shadowed";
    case LibraryState::kDisabled:
      return "disabled";
  }
  return "failed";
}

Registry::~Registry() {
  const std::lock_guard lock(process_mutex());
  for (auto record = libraries_.rbegin(); record != libraries_.rend(); ++record) {
    if (record->backend == nullptr) continue;
    FloatWatch watch;
    record->api->destroy(record->backend);
    if (const std::string changed = watch.restore(); !changed.empty()) {
      log(PERCH_LOG_BACKEND_MISUSE,
          fmt::format("{}: destroy changed the floating-point state ({}); put back", record->path,
                      changed));
    }
  }
}

Status Registry::load_all(const PluginOptions& options) {
  PERCH_CHECK(host_ == nullptr);
  options_ = options;
  ensure_host();
  SearchRequest request;
  request.api_paths = options_.api_paths;
  request.config_paths = options_.config_paths;
  // secure_getenv: a set-user-id program must not run code that its caller names.
  const char* environment =
      options_.use_environment ? secure_getenv("PERCH_BACKEND_PATH") : nullptr;
  if (environment != nullptr) request.environment_paths = split_paths(environment);
  if (options_.use_builtin) request.builtin_directory = builtin_backend_directory();
  request.trust_any = options_.trust_any;

  SearchResult found = find_libraries(request);
  places_ = std::move(found.places);
  for (const SearchPlace& place : places_) {
    if (place.reason.empty()) continue;
    const bool expected = place.origin == "built-in" && place.code == PERCH_E_NOT_FOUND;
    log(expected ? PERCH_LOG_DEBUG : PERCH_LOG_WARN,
        fmt::format("{} ({} path): {}", place.path, place.origin, place.reason));
  }
  for (const FoundFile& file : found.files) libraries_.push_back(load(file));
  warn_unused_options();
  return check_must_load();
}

Status Registry::load_file(const std::string& path) {
  ensure_host();
  const FoundFile file = find_file(path, options_.trust_any);
  const auto known =
      std::find_if(libraries_.begin(), libraries_.end(), [&file](const LibraryRecord& record) {
        return file.real_path.empty()
                   ? record.path == file.path
                   : record.file_device == file.device && record.file_inode == file.inode;
      });
  if (known != libraries_.end() && known->state == LibraryState::kLoaded) return {};
  if (known != libraries_.end()) libraries_.erase(known);
  libraries_.push_back(load(file));
  const LibraryRecord& record = libraries_.back();
  if (record.state == LibraryState::kLoaded) return {};
  return {record.code, record.path + ": " + record.reason};
}

const LibraryRecord* Registry::find(const std::string& id) const {
  for (const LibraryRecord& record : libraries_) {
    if (record.state == LibraryState::kLoaded && record.id == id) return &record;
  }
  return nullptr;
}

LibraryRecord Registry::load(const FoundFile& file) {
  LibraryRecord record;
  record.path = file.path;
  record.real_path = file.real_path;
  record.file_device = file.device;
  record.file_inode = file.inode;
  record.id = id_from_file_name(file.path);
  {
    const std::lock_guard lock(process_mutex());
    const Status status = load_steps(file, &record);
    record.code = status.code();
    record.reason = status.message();
  }
  record.reason_code = reason_code_of(record);
  report(record);
  return record;
}

// Stops at the first reason against the library; record->state then says of what kind it is.
Status Registry::load_steps(const FoundFile& file, LibraryRecord* record) {
  record->state =
      file.status.code() == PERCH_E_PERMISSION ? LibraryState::kRefused : LibraryState::kFailed;
  PERCH_RETURN_IF_ERROR(file.status);
  if (const std::string* glob = matching(options_.deny, record->id)) {
    record->state = LibraryState::kDisabled;
    return unsupported(fmt::format("disabled by backends.deny: {} (not opened)", *glob));
  }
  const Result<ElfFacts> elf = check_elf(file.real_path);
  if (elf.status().code() == PERCH_E_PERMISSION) record->state = LibraryState::kRefused;
  PERCH_RETURN_IF_ERROR(elf.status());
  record->build_id = elf->build_id;

  PERCH_ASSIGN_OR_RETURN(const perch_backend_api* api,
                         open_library(file.real_path, host_->api(), &record->complaints));
  fill_info(*api, record);
  PERCH_RETURN_IF_ERROR(check_policy(record));
  for (const LibraryRecord& other : libraries_) {
    // "Why also by one that failed to create?" An id means one library; another one in its place
    // would be a substitute that nobody asked for.
    const bool holds_id =
        other.state == LibraryState::kLoaded || other.state == LibraryState::kFailed;
    if (!holds_id || !other.id_known || other.id != record->id) continue;
    record->state = LibraryState::kShadowed;
    return unsupported(shadow_text(other));
  }
  const auto options = options_.backend_options.find(record->id);
  PERCH_ASSIGN_OR_RETURN(
      record->backend,
      create_backend(*api, host_->api(),
                     options == options_.backend_options.end() ? OptionList{} : options->second,
                     &record->complaints));
  record->devices = list_devices(*api, record->backend, &record->complaints);
  record->state = LibraryState::kLoaded;
  return {};
}

Status Registry::check_policy(LibraryRecord* record) const {
  if (const std::string* glob = matching(options_.deny, record->id)) {
    record->state = LibraryState::kDisabled;
    return unsupported(fmt::format("disabled by backends.deny: {}", *glob));
  }
  if (matching(options_.allow, record->id) == nullptr) {
    record->state = LibraryState::kDisabled;
    return unsupported(fmt::format("disabled: '{}' is not in backends.allow ({})", record->id,
                                   fmt::join(options_.allow, ", ")));
  }
  return {};
}

Status Registry::check_must_load() const {
  std::string missing;
  for (const std::string& id : options_.must_load) {
    if (find(id) != nullptr) continue;
    std::string why;
    for (const LibraryRecord& record : libraries_) {
      if (record.id == id) why += fmt::format("; {}: {}", record.path, record.reason);
    }
    if (why.empty()) {
      why = "; no library of that id in";
      for (const SearchPlace& place : places_) {
        why += " " + place.path + (place.reason.empty() ? "" : " (" + place.reason + ")");
      }
      if (places_.empty()) why += " any place: none was given";
    }
    missing +=
        fmt::format("{}'{}' did not load: {}", missing.empty() ? "" : "; ", id, why.substr(2));
  }
  return missing.empty() ? Status() : not_found("backends.must_load: " + missing);
}

void Registry::warn_unused_options() {
  for (const auto& [id, options] : options_.backend_options) {
    if (find(id) != nullptr || options.empty()) continue;
    warnings_.push_back(
        fmt::format("backends.options.{} has no effect: no backend of that id loaded", id));
    log(PERCH_LOG_WARN, warnings_.back());
  }
}

void Registry::report(const LibraryRecord& record) const {
  for (const std::string& complaint : record.complaints) {
    log(PERCH_LOG_BACKEND_MISUSE, record.path + ": " + complaint);
  }
  log(log_level_of(record),
      record.state == LibraryState::kLoaded
          ? fmt::format("{}: loaded {} {}, {} device{}", record.path, record.id, record.version,
                        record.devices.size(), record.devices.size() == 1 ? "" : "s")
          : record.path + ": " + record.reason);
}

void Registry::ensure_host() {
  if (host_ == nullptr) host_ = std::make_unique<HostTable>(options_.host, options_.log);
}

void Registry::log(int32_t level, const std::string& message) const {
  options_.log(level, "plugin", message.c_str());
}

}  // namespace perch
