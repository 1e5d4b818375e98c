// Status: a refusal and its text, inside this backend. Nothing here throws on purpose.
#pragma once

#include <perch/base.h>

#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>

namespace reference {

struct [[nodiscard]] Status {
  perch_status code = PERCH_OK;
  std::string text;
  bool ok() const { return code == PERCH_OK; }
};

__attribute__((format(printf, 1, 2))) inline std::string text(const char* format, ...) {
  char buffer[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  return buffer;
}

inline Status invalid(std::string text) { return {PERCH_E_INVALID_ARGUMENT, std::move(text)}; }

}  // namespace reference

#define REFERENCE_RETURN_IF_BAD(expression)                                        \
  do {                                                                             \
    if (::reference::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
