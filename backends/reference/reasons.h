// Reasons: collects every reason against a config, each with the field's path.
#pragma once

#include <cstdint>
#include <perch/guard.hpp>
#include <string>

#include "status.h"

namespace reference {

class Reasons {
 public:
  explicit Reasons(perch_support* support) : support_(support) {}

  void add(int32_t code, const std::string& field, const std::string& why) {
    perch_guard::add_reason(support_, code, field.c_str(), why.c_str());
  }

  // `value` must be one of 1..`last`.
  void want_enum(int32_t code, const std::string& field, uint32_t value, uint32_t last) {
    if (value >= 1 && value <= last) return;
    add(code, field, text("want 1..%u, got %u%s", last, value, value == 0 ? " (not set)" : ""));
  }

  void want_flags(const std::string& field, uint32_t flags, uint32_t known) {
    if ((flags & ~known) == 0) return;
    add(PERCH_REASON_FIELD_UNKNOWN, field, text("unknown flags 0x%x", flags & ~known));
  }

  // A struct that is too short is no struct of this ABI; bytes beyond what is known must be zero;
  // an extension that must be understood is not, because this backend knows none.
  template <typename T>
  void want_known(const std::string& path, const T* value) {
    if (value->struct_size < sizeof(T) || value->struct_size > 65536) {
      add(PERCH_REASON_ABI, path + ".struct_size",
          text("want %zu..65536, got %u", sizeof(T), value->struct_size));
      return;
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(value);
    for (uint32_t i = sizeof(T); i < value->struct_size; ++i) {
      if (bytes[i] == 0) continue;
      add(PERCH_REASON_FIELD_UNKNOWN, path, text("byte %u belongs to an unknown field", i));
      break;
    }
    for (const perch_ext* ext = value->next; ext != nullptr; ext = ext->next) {
      if (ext->flags == 0) continue;
      add(PERCH_REASON_EXT_UNKNOWN, path + ".next",
          text("extension %u with flags 0x%x is not known", ext->type, ext->flags));
    }
  }

 private:
  perch_support* support_;
};

}  // namespace reference
