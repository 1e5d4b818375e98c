// check_backend_api of loader.h: what a table must be before one of its members is called.
#include <fmt/format.h>
#include <fnmatch.h>

#include <cstddef>
#include <cstring>
#include <string_view>

#include "plugin/loader.h"

namespace perch {
namespace {

// Sizes as of ABI 1.0: constants, never sizeof, because the structs grow and 1.0 backends do not.
// While the ABI is a draft they follow it.
constexpr uint32_t kApiBytes1_0 = 176;
constexpr uint32_t kInfoBytes1_0 = 64;
constexpr uint32_t kSizesBytes1_0 = 56;
constexpr uint32_t kBytesMax = 64 * 1024;  // R5: beyond this a size is garbage
constexpr uint64_t kFeaturesKnown = 0;     // bits of must_understand
constexpr size_t kIdBytesMax = 63;

constexpr bool matches_1_0(size_t now, size_t then) {
  return PERCH_ABI_MINOR == 0 ? now == then : now >= then;
}
static_assert(matches_1_0(sizeof(perch_backend_api), kApiBytes1_0));
static_assert(matches_1_0(sizeof(perch_backend_info), kInfoBytes1_0));
static_assert(matches_1_0(sizeof(perch_struct_sizes), kSizesBytes1_0));

// One member of perch_struct_sizes, with the size that its struct had in 1.0.
struct SizeRow {
  const char* name;
  uint32_t perch_struct_sizes::*member;
  uint32_t bytes_1_0;
};
constexpr SizeRow kSizeRows[] = {
    {"perch_quant", &perch_struct_sizes::quant, 56},
    {"perch_act_quant", &perch_struct_sizes::act_quant, 32},
    {"perch_linear_config", &perch_struct_sizes::linear_config, 48},
    {"perch_moe_config", &perch_struct_sizes::moe_config, 96},
    {"perch_layer_config", &perch_struct_sizes::layer_config, 96},
    {"perch_support", &perch_struct_sizes::support, 136},
    {"perch_layout", &perch_struct_sizes::layout, 128},
    {"perch_call_shape", &perch_struct_sizes::call_shape, 16},
    {"perch_workspace_req", &perch_struct_sizes::workspace_req, 24},
    {"perch_exec_args", &perch_struct_sizes::exec_args, 120},
    {"perch_device_info", &perch_struct_sizes::device_info, 280},
    {"perch_error", &perch_struct_sizes::error, 512},
    {"perch_host_api", &perch_struct_sizes::host_api, 88},
};
static_assert(matches_1_0(sizeof(perch_quant), 56) && matches_1_0(sizeof(perch_act_quant), 32) &&
              matches_1_0(sizeof(perch_linear_config), 48) &&
              matches_1_0(sizeof(perch_moe_config), 96) &&
              matches_1_0(sizeof(perch_layer_config), 96) &&
              matches_1_0(sizeof(perch_support), 136) && matches_1_0(sizeof(perch_layout), 128) &&
              matches_1_0(sizeof(perch_call_shape), 16) &&
              matches_1_0(sizeof(perch_workspace_req), 24) &&
              matches_1_0(sizeof(perch_exec_args), 120) &&
              matches_1_0(sizeof(perch_device_info), 280) &&
              matches_1_0(sizeof(perch_error), 512) && matches_1_0(sizeof(perch_host_api), 88));

Status mismatch(std::string message) { return {PERCH_E_ABI_MISMATCH, std::move(message)}; }
Status contract(std::string message) { return {PERCH_E_CONTRACT, std::move(message)}; }

Status check_size(const char* what, uint32_t got, uint32_t bytes_1_0) {
  if (got >= bytes_1_0 && got <= kBytesMax) return {};
  return mismatch(
      fmt::format("{} is {} bytes; want {} (ABI 1.0) to {}", what, got, bytes_1_0, kBytesMax));
}

Status check_versions(const perch_backend_api& api) {
  if (api.magic != PERCH_ABI_MAGIC) {
    return contract(
        fmt::format("the table's magic is {:#010x}; want {:#010x}", api.magic, PERCH_ABI_MAGIC));
  }
  if (api.abi_major != PERCH_ABI_MAJOR) {
    return mismatch(fmt::format("built for ABI {}.{}; this runtime has {}.{}", api.abi_major,
                                api.abi_minor, PERCH_ABI_MAJOR, PERCH_ABI_MINOR));
  }
  PERCH_RETURN_IF_ERROR(check_size("perch_backend_api", api.struct_size, kApiBytes1_0));
  if (api.abi_minor_required > PERCH_ABI_MINOR) {
    return mismatch(fmt::format("needs host ABI {}.{}; this runtime has {}.{}", api.abi_major,
                                api.abi_minor_required, PERCH_ABI_MAJOR, PERCH_ABI_MINOR));
  }
  if ((api.must_understand & ~kFeaturesKnown) != 0) {
    return mismatch(fmt::format("needs host features {:#x}, which this runtime does not know",
                                api.must_understand & ~kFeaturesKnown));
  }
  return {};
}

// Names the first required member that is NULL. describe, update and get_extension may be.
Status check_members(const perch_backend_api& api) {
  const struct {
    const char* name;
    bool present;
  } required[] = {
      {"info", api.info != nullptr},
      {"sizes", api.sizes != nullptr},
      {"create", api.create != nullptr},
      {"destroy", api.destroy != nullptr},
      {"device_count", api.device_count != nullptr},
      {"device_get", api.device_get != nullptr},
      {"variant_count", api.variant_count != nullptr},
      {"query_support", api.query_support != nullptr},
      {"prepare_begin", api.prepare_begin != nullptr},
      {"prepare_put", api.prepare_put != nullptr},
      {"prepare_end", api.prepare_end != nullptr},
      {"prepare_abort", api.prepare_abort != nullptr},
      {"prepared_destroy", api.prepared_destroy != nullptr},
      {"workspace", api.workspace != nullptr},
      {"execute", api.execute != nullptr},
  };
  for (const auto& member : required) {
    if (!member.present) {
      return contract(fmt::format("the table's {} is NULL; it is required", member.name));
    }
  }
  return {};
}

Status check_sizes(const perch_struct_sizes& sizes) {
  PERCH_RETURN_IF_ERROR(check_size("perch_struct_sizes", sizes.struct_size, kSizesBytes1_0));
  for (const SizeRow& row : kSizeRows) {
    PERCH_RETURN_IF_ERROR(check_size(row.name, sizes.*row.member, row.bytes_1_0));
  }
  return {};
}

bool is_valid_id(const char* id) {
  const std::string_view text(id, strnlen(id, kIdBytesMax + 1));
  if (text.empty() || text.size() > kIdBytesMax || text[0] < 'a' || text[0] > 'z') return false;
  return text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

Status check_info(const perch_backend_info& info) {
  PERCH_RETURN_IF_ERROR(check_size("perch_backend_info", info.struct_size, kInfoBytes1_0));
  const struct {
    const char* name;
    const char* text;
  } strings[] = {
      {"id", info.id}, {"version", info.version}, {"vendor", info.vendor}, {"build", info.build}};
  for (const auto& string : strings) {
    if (string.text == nullptr) {
      return contract(fmt::format("info's {} is NULL; it is required", string.name));
    }
  }
  if (!is_valid_id(info.id)) {
    return contract(fmt::format("info's id is '{:.{}}'; want [a-z][a-z0-9-]*, at most {} bytes",
                                std::string_view(info.id, strnlen(info.id, kIdBytesMax + 1)),
                                kIdBytesMax + 1, kIdBytesMax));
  }
  return {};
}

}  // namespace

Status check_backend_api(const perch_backend_api* api) {
  if (api == nullptr) return contract("the entry gave no table (NULL)");
  PERCH_RETURN_IF_ERROR(check_versions(*api));
  PERCH_RETURN_IF_ERROR(check_members(*api));
  PERCH_RETURN_IF_ERROR(check_sizes(*api->sizes));
  return check_info(*api->info);
}

}  // namespace perch
