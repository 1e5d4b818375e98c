// PERCH_CHECK: a wrong program (never a wrong input) stops here, in every build.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace perch {
[[noreturn]] inline void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: PERCH_CHECK failed: %s\n", file, line, condition);
  std::abort();
}
}  // namespace perch

#define PERCH_CHECK(condition) \
  ((condition) ? (void)0 : ::perch::check_failed(__FILE__, __LINE__, #condition))
