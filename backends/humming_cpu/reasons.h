// reasons.h - collecting why not, with the field that each reason is about.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

#include "perch/backend.h"
#include "perch/guard.hpp"

namespace humming_cpu {

class Reasons {
 public:
  explicit Reasons(perch_support* support) : support_(support) {}
  __attribute__((format(printf, 4, 5))) void add(int32_t code, const char* field,
                                                 const char* format, ...) {
    va_list values;
    va_start(values, format);
    add_list(code, field, format, values);
    va_end(values);
  }
  // A field of a part: "moe.w13" and "group_k" make "moe.w13.group_k".
  __attribute__((format(printf, 5, 6))) void add_in(int32_t code, const char* prefix,
                                                    const char* name, const char* format, ...) {
    char field[sizeof(perch_reason::field)];
    std::snprintf(field, sizeof(field), "%s.%s", prefix, name);
    va_list values;
    va_start(values, format);
    add_list(code, field, format, values);
    va_end(values);
  }

 private:
  __attribute__((format(printf, 4, 0))) void add_list(int32_t code, const char* field,
                                                      const char* format, va_list values) {
    char text[sizeof(perch_reason::text)];
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): the caller has started it
    std::vsnprintf(text, sizeof(text), format, values);
    // A string of unknown length: the copy that add_reason makes cannot be cut, but GCC warns.
    perch_guard::add_reason(support_, code, field, std::string(text).c_str());
  }

  perch_support* support_;
};

}  // namespace humming_cpu
