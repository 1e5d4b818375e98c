// guard.hpp - for backend authors in C++: what keeps a fault inside its library.
//
// guarded(error, fn) runs fn, turns every exception into a status with its text, and gives the
// floating-point state (rounding, flush-to-zero, masks) back as it found it. Wrap each entry of
// perch_backend_api in it: an exception that crosses the border ends the process, because the other
// side may have another C++ runtime or none.
// Header-only, C++11, needs only the C headers. Not for hosts: those take perch.hpp.
#ifndef PERCH_GUARD_HPP_
#define PERCH_GUARD_HPP_

#include <perch/backend.h>

#include <cfenv>
#include <cstring>
#include <exception>
#include <new>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace perch_guard {

// Copies what fits of `text` into a field of `capacity` bytes, NUL-terminated.
inline void copy_text(char* field, size_t capacity, const char* text) {
  const size_t length = std::strlen(text);
  const size_t copied = length < capacity ? length : capacity - 1;
  std::memcpy(field, text, copied);
  field[copied] = '\0';
}

// Writes as much of `message` as fits and says how long it was. `error` may be null.
inline perch_status fail(perch_error* error, perch_status code, const char* message) {
  if (error == nullptr) return code;
  if (error->struct_size < sizeof(perch_error)) return code;
  error->code = code;
  error->native_code = 0;
  error->message_len = static_cast<uint32_t>(std::strlen(message));
  copy_text(error->message, sizeof(error->message), message);
  return code;
}

// Saves MXCSR and the x87 environment, restores them when it goes.
class FloatState {
 public:
  FloatState() noexcept {
    std::fegetenv(&environment_);
#if defined(__SSE__)
    mxcsr_ = _mm_getcsr();
#endif
  }
  ~FloatState() {
    std::fesetenv(&environment_);
#if defined(__SSE__)
    _mm_setcsr(mxcsr_);
#endif
  }
  FloatState(const FloatState&) = delete;
  FloatState& operator=(const FloatState&) = delete;

 private:
  std::fenv_t environment_;
#if defined(__SSE__)
  unsigned mxcsr_;
#endif
};

// fn: a callable that returns perch_status.
template <typename Fn>
perch_status guarded(perch_error* error, Fn&& fn) noexcept {
  const FloatState saved;
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return fail(error, PERCH_E_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& caught) {
    return fail(error, PERCH_E_EXCEPTION, caught.what());
  } catch (...) {
    return fail(error, PERCH_E_EXCEPTION, "an exception that is not a std::exception");
  }
}

// Adds one reason to a support answer: counts it always, writes it where there is room.
inline void add_reason(perch_support* support, int32_t code, const char* field, const char* text) {
  if (support->num_reasons < support->reasons_capacity) {
    perch_reason* reason = &support->reasons[support->num_reasons];
    std::memset(reason, 0, sizeof(*reason));
    reason->code = code;
    copy_text(reason->field, sizeof(reason->field), field);
    copy_text(reason->text, sizeof(reason->text), text);
  }
  ++support->num_reasons;
  support->verdict = PERCH_VERDICT_NO;
}

// Starts an answer of "yes": clears what the backend owns, keeps what the caller lent.
inline void begin_support(perch_support* support, uint32_t variant) {
  support->verdict = PERCH_VERDICT_YES;
  support->variant = variant;
  support->score = 0;
  support->caps = 0;
  support->flags = 0;
  support->align = 0;
  support->packed_bytes = 0;
  support->workspace_bytes = 0;
  std::memset(support->kernel, 0, sizeof(support->kernel));
  support->num_reasons = 0;
}

// prepare_begin's first line: true when query_support, which is asked again, says no; `error` then
// holds its first reason. Return PERCH_E_UNSUPPORTED.
template <typename Query>
bool refused(Query query_support, perch_backend* backend, const perch_layer_config* config,
             uint32_t variant, perch_error* error) {
  perch_reason reason = {};
  perch_support support = {};
  support.struct_size = sizeof(support);
  support.reasons = &reason;
  support.reasons_capacity = 1;
  if (query_support(backend, config, variant, &support, error) == PERCH_OK &&
      support.verdict == PERCH_VERDICT_YES) {
    return false;
  }
  if (support.num_reasons > 0) fail(error, PERCH_E_UNSUPPORTED, reason.text);
  return true;
}

}  // namespace perch_guard

#endif  // PERCH_GUARD_HPP_
