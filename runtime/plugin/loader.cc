#include "plugin/loader.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <exception>

#include "plugin/clean_text.h"
#include "plugin/float_watch.h"

namespace perch {
namespace {

constexpr uint32_t kDevicesMax = 1024;
constexpr size_t kWhatBytesMax = 400;  // of an exception's text

// Runs `call` on the backend's side: exceptions, as far as they can be caught here, and changed
// floating-point modes stop at this line.
template <typename Call>
Status on_the_other_side(const char* function, Complaints* complaints, const Call& call) {
  FloatWatch watch;
  Status status;
  try {
    call();
  } catch (const std::exception& caught) {
    status = Status(PERCH_E_CONTRACT,
                    fmt::format("an exception left {}: {} (perch/guard.hpp keeps them inside)",
                                function, clean_text(caught.what(), kWhatBytesMax)));
  } catch (...) {
    status =
        Status(PERCH_E_CONTRACT,
               fmt::format("an exception left {} (perch/guard.hpp keeps them inside)", function));
  }
  if (const std::string changed = watch.restore(); !changed.empty()) {
    complaints->push_back(fmt::format(
        "{} changed the floating-point state ({}); put back{}", function, changed,
        std::string_view(function) == "loading it" ? "; was it linked with -ffast-math?" : ""));
  }
  return status;
}

perch_error empty_error() {
  perch_error error{};
  error.struct_size = sizeof(error);
  return error;
}

// The status of a failed call, with the text that came with it.
Status failure(const char* function, perch_status code, const perch_error& error) {
  const bool known = code > PERCH_OK && code <= PERCH_E_PERMISSION;
  const std::string text = clean_text(error.message, sizeof(error.message));
  return {known ? code : PERCH_E_INTERNAL,
          text.empty() ? fmt::format("{} failed with status {} and no text", function, code)
                       : fmt::format("{}: {}", function, text)};
}

// dlerror's text without the path in front: the record has it already.
std::string linker_message(const std::string& real_path) {
  const char* text = dlerror();  // a second call would return NULL
  const std::string message = clean_text(text, 4096);
  const std::string prefix = real_path + ": ";
  return message.rfind(prefix, 0) == 0 ? message.substr(prefix.size()) : message;
}

// Why there is no entry of our version: another major, or no backend at all.
Status no_entry(void* library) {
  for (int major = 0; major <= 9; ++major) {
    const std::string name = fmt::format("perch_backend_entry_v{}", major);
    if (dlsym(library, name.c_str()) != nullptr) {
      return {PERCH_E_ABI_MISMATCH, fmt::format("no {} (found {}): built for another major version",
                                                PERCH_BACKEND_ENTRY, name)};
    }
  }
  return invalid_argument(fmt::format("no {}: not a Perch backend (or its entry is not exported)",
                                      PERCH_BACKEND_ENTRY));
}

}  // namespace

Result<const perch_backend_api*> open_library(const std::string& real_path,
                                              const perch_host_api* host, Complaints* complaints) {
  void* library = nullptr;
  PERCH_RETURN_IF_ERROR(on_the_other_side("loading it", complaints, [&] {
    library = dlopen(real_path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }));
  if (library == nullptr) {
    return not_found("the dynamic linker refused it: " + linker_message(real_path));
  }
  void* const symbol = dlsym(library, PERCH_BACKEND_ENTRY);
  if (symbol == nullptr) return no_entry(library);

  const auto entry = reinterpret_cast<perch_backend_entry_fn>(symbol);
  const perch_backend_api* api = nullptr;
  perch_error error = empty_error();
  perch_status code = PERCH_OK;
  PERCH_RETURN_IF_ERROR(on_the_other_side(PERCH_BACKEND_ENTRY, complaints,
                                          [&] { code = entry(host, &api, &error); }));
  if (code != PERCH_OK) return failure(PERCH_BACKEND_ENTRY, code, error);
  PERCH_RETURN_IF_ERROR(check_backend_api(api));
  return api;
}

Result<perch_backend*> create_backend(const perch_backend_api& api, const perch_host_api* host,
                                      const OptionList& options, Complaints* complaints) {
  std::vector<perch_kv> views;
  views.reserve(options.size());
  for (const auto& [key, value] : options) views.push_back({key.c_str(), value.c_str()});

  perch_backend* backend = nullptr;
  perch_error error = empty_error();
  perch_status code = PERCH_OK;
  PERCH_RETURN_IF_ERROR(on_the_other_side("create", complaints, [&] {
    code = api.create(host, views.data(), static_cast<uint32_t>(views.size()), &backend, &error);
  }));
  if (code != PERCH_OK) return failure("create", code, error);
  if (backend == nullptr) return Status(PERCH_E_CONTRACT, "create said OK and made no backend");
  return backend;
}

std::vector<DeviceRecord> list_devices(const perch_backend_api& api, perch_backend* backend,
                                       Complaints* complaints) {
  uint32_t count = 0;
  const Status counted =
      on_the_other_side("device_count", complaints, [&] { count = api.device_count(backend); });
  if (!counted.ok()) {
    complaints->push_back(counted.message());
    return {};
  }
  if (count > kDevicesMax) {
    complaints->push_back(
        fmt::format("device_count is {}; the first {} are listed", count, kDevicesMax));
    count = kDevicesMax;
  }
  std::vector<DeviceRecord> devices;
  for (uint32_t index = 0; index < count; ++index) {
    perch_device_info info{};
    info.struct_size = sizeof(info);
    perch_error error = empty_error();
    perch_status code = PERCH_OK;
    Status status = on_the_other_side(
        "device_get", complaints, [&] { code = api.device_get(backend, index, &info, &error); });
    if (status.ok() && code != PERCH_OK) status = failure("device_get", code, error);
    DeviceRecord& record = devices.emplace_back();
    record.device = info.device;
    record.name = clean_text(info.name, sizeof(info.name));
    record.arch = clean_text(info.arch, sizeof(info.arch));
    record.memory_bytes = info.memory_bytes;
    record.usable = status.ok() && info.usable == 1;
    record.reason = status.ok() ? clean_text(info.reason, sizeof(info.reason)) : status.message();
    if (record.usable) {
      record.reason.clear();
    } else if (record.reason.empty()) {
      record.reason = "the backend gives no reason";
    }
  }
  return devices;
}

}  // namespace perch
