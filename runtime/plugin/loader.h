// One library: file -> verified table -> backend -> its devices.
//
// Not the place for policy (search order, allow lists, duplicates): that is registry.h. Nothing
// here is ever unloaded: a library may have left threads, TLS destructors or callbacks behind.
// Everything that a backend returns is checked before it is believed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "perch/backend.h"

namespace perch {

struct DeviceRecord {
  perch_device device{};
  std::string name;
  std::string arch;
  std::string reason;  // why not usable
  bool usable = false;
  uint64_t memory_bytes = 0;
};

// What a backend did that is no reason to refuse it, one line each; to be logged as its misuse.
using Complaints = std::vector<std::string>;

using OptionList = std::vector<std::pair<std::string, std::string>>;

// Maps the library, calls its entry and verifies the table. The floating-point state is given back
// as it was. [one at a time]
Result<const perch_backend_api*> open_library(const std::string& real_path,
                                              const perch_host_api* host, Complaints* complaints);

// The checks of a table, alone: versions, sizes, required members, what info says. Never calls the
// backend. `api` must have perch_backend_api's 1.0 size, or less with a struct_size that says so.
Status check_backend_api(const perch_backend_api* api);

// [one at a time] An exception that the backend let out is caught where the C++ runtimes allow it;
// that is luck and not a promise: the net is guard.hpp, on the other side.
Result<perch_backend*> create_backend(const perch_backend_api& api, const perch_host_api* host,
                                      const OptionList& options, Complaints* complaints);

// Every device, in the backend's order; one that it cannot tell about is listed as not usable.
std::vector<DeviceRecord> list_devices(const perch_backend_api& api, perch_backend* backend,
                                       Complaints* complaints);

}  // namespace perch
