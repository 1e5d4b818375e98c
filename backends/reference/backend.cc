// The reference backend's table, and the one function that it exports. What it promises and how it
// computes: README.md.
#include <perch/backend.h>

#include <perch/guard.hpp>

#include "entries.h"
#include "support.h"

namespace {

constexpr perch_backend_info kInfo = {
    sizeof(perch_backend_info),
    0,
    "reference",
    "1.0.0",
    "Perch",
    "scalar, " __VERSION__,
    PERCH_KIND_BIT(PERCH_KIND_LINEAR) | PERCH_KIND_BIT(PERCH_KIND_MOE),
    PERCH_DEVICE_BIT(kDLCPU),
    reference::kCaps,
};

constexpr perch_struct_sizes kSizes = PERCH_STRUCT_SIZES_INIT;

constexpr perch_backend_api kApi = {
    sizeof(perch_backend_api),
    PERCH_ABI_MAGIC,
    PERCH_ABI_MAJOR,
    PERCH_ABI_MINOR,
    0,  // any host of this major
    0,
    0,
    &kInfo,
    &kSizes,
    reference::create,
    reference::destroy,
    reference::device_count,
    reference::device_get,
    reference::variant_count,
    reference::query_support,
    reference::describe,
    reference::prepare_begin,
    reference::prepare_put,
    reference::prepare_end,
    reference::prepare_abort,
    reference::update,
    reference::prepared_destroy,
    reference::workspace,
    reference::execute_call,
    nullptr,  // no extensions
};

}  // namespace

perch_status PERCH_CALL perch_backend_entry_v1(const perch_host_api* host,
                                               const perch_backend_api** api, perch_error* error) {
  if (host == nullptr || host->magic != PERCH_ABI_MAGIC || host->abi_major != PERCH_ABI_MAJOR ||
      host->struct_size < sizeof(perch_host_api)) {
    return perch_guard::fail(error, PERCH_E_ABI_MISMATCH, "the host is not one of ABI 1");
  }
  *api = &kApi;
  return PERCH_OK;
}
