// Floating-point modes around foreign code: a library that was linked with -ffast-math switches
// the thread that loads it to flush-to-zero, and every result of the host would change with it.
//
// Not for the sticky exception flags: they are put back, but nobody is blamed for raising one.
#pragma once

#include <cfenv>
#include <string>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

#include <fmt/format.h>

namespace perch {

class FloatWatch {
 public:
  FloatWatch() : modes_(read()) { std::fegetenv(&environment_); }

  // Puts the state back as it was at construction. Says what had changed, as in
  // "MXCSR 0x1f80 -> 0x9fc0"; "" when nothing had.
  std::string restore() {
    const Modes now = read();
    std::fesetenv(&environment_);
#if defined(__x86_64__) || defined(__i386__)
    _mm_setcsr(modes_.mxcsr);
    constexpr unsigned kSticky = _MM_EXCEPT_MASK;
    if ((now.mxcsr & ~kSticky) != (modes_.mxcsr & ~kSticky)) {
      return fmt::format("MXCSR {:#06x} -> {:#06x}", modes_.mxcsr & ~kSticky, now.mxcsr & ~kSticky);
    }
#endif
    if (now.x87 != modes_.x87) {
      return fmt::format("x87 control word {:#06x} -> {:#06x}", modes_.x87, now.x87);
    }
    if (now.rounding != modes_.rounding) {
      return fmt::format("rounding mode {:#x} -> {:#x}", modes_.rounding, now.rounding);
    }
    return "";
  }

 private:
  struct Modes {
    unsigned mxcsr = 0;
    unsigned short x87 = 0;
    int rounding = 0;
  };

  static Modes read() {
    Modes modes;
#if defined(__x86_64__) || defined(__i386__)
    modes.mxcsr = _mm_getcsr();
    __asm__ volatile("fnstcw %0" : "=m"(modes.x87));
#endif
    modes.rounding = std::fegetround();
    return modes;
  }

  Modes modes_;
  std::fenv_t environment_;
};

}  // namespace perch
