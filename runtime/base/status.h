// Status and Result<T>: how every function of the runtime reports a wrong input.
//
// Not for a wrong program: that is PERCH_CHECK (base/check.h). No exception crosses a folder of
// runtime/; libraries that throw are wrapped where they are called. The codes are those of the ABI,
// so the text a user reads is the text written where the fault was found.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "perch/base.h"

namespace perch {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(perch_status code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == PERCH_OK; }
  perch_status code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same status with where it happened put in front: "<where>: <message>".
  Status with_context(const std::string& where) const {
    return ok() ? *this : Status(code_, where + ": " + message_);
  }

 private:
  perch_status code_ = PERCH_OK;
  std::string message_;
};

inline Status invalid_argument(std::string message) {
  return {PERCH_E_INVALID_ARGUMENT, std::move(message)};
}
inline Status unsupported(std::string message) { return {PERCH_E_UNSUPPORTED, std::move(message)}; }
inline Status not_found(std::string message) { return {PERCH_E_NOT_FOUND, std::move(message)}; }
inline Status internal_error(std::string message) { return {PERCH_E_INTERNAL, std::move(message)}; }

// A T, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor): reads as T
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  T& value() { return std::get<T>(state_); }
  const T& value() const { return std::get<T>(state_); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace perch

// Returns the status of `expression` from the enclosing function unless it is OK.
#define PERCH_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                           \
    if (::perch::Status perch_status_ = (expression); !perch_status_.ok()) return perch_status_; \
  } while (false)

#define PERCH_CONCAT_INNER(a, b) a##b
#define PERCH_CONCAT(a, b) PERCH_CONCAT_INNER(a, b)
#define PERCH_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return result.status();                          \
  declaration = std::move(result.value())

// PERCH_ASSIGN_OR_RETURN(int n, parse(text)): declares n, or returns the error of parse().
#define PERCH_ASSIGN_OR_RETURN(declaration, expression) \
  PERCH_ASSIGN_OR_RETURN_IMPL(PERCH_CONCAT(perch_result_, __LINE__), declaration, expression)
