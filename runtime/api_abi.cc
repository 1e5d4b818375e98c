// perch_abi_* and what all api files share.
#include <fmt/format.h>

#include "api.h"
#include "base/abi_layout.h"

namespace perch {

perch_status write_error(perch_error* error, const Status& status) {
  if (error == nullptr || error->struct_size < sizeof(perch_error)) return status.code();
  const std::string& message = status.message();
  error->code = status.code();
  error->native_code = 0;
  error->message_len = static_cast<uint32_t>(message.size());
  size_t copied = std::min(message.size(), sizeof(error->message) - 1);
  // Never cut inside a UTF-8 sequence.
  while (copied < message.size() && copied > 0 &&
         (static_cast<unsigned char>(message[copied]) & 0xC0) == 0x80) {
    --copied;
  }
  std::memcpy(error->message, message.data(), copied);
  error->message[copied] = '\0';
  return status.code();
}

Status null_argument(const char* function, const char* argument) {
  return invalid_argument(fmt::format("{}: {}: got NULL; want a pointer", function, argument));
}

Status copy_json(const std::string& text, char* json, uint64_t capacity, uint64_t* needed) {
  const uint64_t size = text.size() + 1;
  if (needed != nullptr) *needed = size;
  if (json == nullptr || capacity < size) {
    return {PERCH_E_BUFFER_TOO_SMALL,
            fmt::format("json: capacity: got {}; want {}", capacity, size)};
  }
  std::memcpy(json, text.c_str(), size);
  return {};
}

perch_stream stream_or_cpu(const perch_stream* stream, perch_device device) {
  if (stream != nullptr) return *stream;
  perch_stream none{};
  none.device = device;
  return none;
}

Result<Selection> select_in(perch_runtime* runtime, const SelectRequest& request) {
  const std::shared_lock<std::shared_mutex> lock(runtime->registry_mutex);
  return select_backend(runtime->config, runtime->registry, request);
}

Result<Selection> choose(perch_runtime* runtime, const SelectRequest& request) {
  PERCH_ASSIGN_OR_RETURN(Selection selection, select_in(runtime, request));
  if (!selection.found) {
    const Status status = no_candidate_status(selection);
    // perch_error holds the beginning of a long list; the log has it whole.
    if (status.message().size() >= sizeof(perch_error::message)) {
      runtime->log.write(PERCH_LOG_ERROR, "select", status.message());
    }
    return status;
  }
  if (selection.fallback) {
    runtime->log.write(PERCH_LOG_WARN, "select",
                       fmt::format("layer '{}': fallback to {}", selection.config.name(),
                                   selection.chosen()->backend));
  }
  return selection;
}

}  // namespace perch

extern "C" {

perch_status perch_abi_version(uint32_t* major, uint32_t* minor) {
  if (major != nullptr) *major = PERCH_ABI_MAJOR;
  if (minor != nullptr) *minor = PERCH_ABI_MINOR;
  return PERCH_OK;
}

perch_status perch_abi_describe(char* json, uint64_t capacity, uint64_t* needed) {
  return perch::guarded_call(nullptr, "perch_abi_describe", [&] {
    return perch::copy_json(perch::abi_layout_json(), json, capacity, needed);
  });
}

const char* perch_status_name(perch_status status) {
  static constexpr const char* kNames[] = {
      "PERCH_OK",          "PERCH_E_INVALID_ARGUMENT", "PERCH_E_UNSUPPORTED",
      "PERCH_E_NOT_FOUND", "PERCH_E_ABI_MISMATCH",     "PERCH_E_OUT_OF_MEMORY",
      "PERCH_E_DEVICE",    "PERCH_E_INTERNAL",         "PERCH_E_EXCEPTION",
      "PERCH_E_BUSY",      "PERCH_E_BUFFER_TOO_SMALL", "PERCH_E_CONTRACT",
      "PERCH_E_PERMISSION"};
  constexpr auto kCount = static_cast<int32_t>(sizeof(kNames) / sizeof(kNames[0]));
  return status >= 0 && status < kCount ? kNames[status] : "PERCH_E_INTERNAL";
}

}  // extern "C"
