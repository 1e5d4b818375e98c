// isa.cc - CPUID alone is not enough: an operating system (or a hypervisor) that does not save the
// wide registers leaves the flag set, so XGETBV decides too.
#include "isa.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace humming_cpu {
namespace {

constexpr uint32_t bit(int n) { return uint32_t{1} << n; }

// What level `isa` asks for, beyond the level below.
struct IsaLevel {
  Isa isa;
  const char* name;
  const char* needs;
  uint32_t leaf1_ecx;
  uint32_t leaf7_ebx;
  uint64_t xcr0;
};

constexpr IsaLevel kLevels[kNumIsaLevels] = {
    // SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT
    {Isa::kPortable, "portable", "SSE4.2 and POPCNT (x86-64-v2)",
     bit(0) | bit(9) | bit(13) | bit(19) | bit(20) | bit(23), 0, 0},
    // FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; SSE and AVX state
    {Isa::kAvx2, "avx2", "AVX2, FMA, F16C, BMI2 and an operating system that saves ymm",
     bit(12) | bit(22) | bit(27) | bit(28) | bit(29), bit(3) | bit(5) | bit(8), 0x6},
    // AVX512 F, DQ, CD, BW, VL; opmask and both zmm halves
    {Isa::kAvx512, "avx512", "AVX-512 F, BW, CD, DQ, VL and an operating system that saves zmm", 0,
     bit(16) | bit(17) | bit(28) | bit(30) | bit(31), 0xe6},
};

}  // namespace

CpuFeatures read_cpu_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) features.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) features.leaf7_ebx = ebx;
  constexpr uint32_t kOsxsave = uint32_t{1} << 27;
  if (features.leaf1_ecx & kOsxsave) {
    uint32_t low = 0, high = 0;
    // As an instruction: the intrinsic needs -mxsave, and this file is baseline code.
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    features.xcr0 = (uint64_t{high} << 32) | low;
  }
#endif
  return features;
}

Isa best_isa(const CpuFeatures& features) {
  Isa best = Isa::kNone;
  for (const IsaLevel& level : kLevels) {
    if ((features.leaf1_ecx & level.leaf1_ecx) != level.leaf1_ecx) break;
    if ((features.leaf7_ebx & level.leaf7_ebx) != level.leaf7_ebx) break;
    if ((features.xcr0 & level.xcr0) != level.xcr0) break;
    best = level.isa;
  }
  return best;
}

Isa machine_isa() {
#if defined(__x86_64__)
  return best_isa(read_cpu_features());
#else
  return Isa::kPortable;
#endif
}

const char* isa_name(Isa isa) {
  return isa == Isa::kNone ? "none" : kLevels[static_cast<int32_t>(isa)].name;
}

const char* isa_needs(Isa isa) {
  return isa == Isa::kNone ? "nothing" : kLevels[static_cast<int32_t>(isa)].needs;
}

bool parse_isa(const char* name, Isa* isa) {
  for (const IsaLevel& level : kLevels) {
    if (std::strcmp(name, level.name) == 0) {
      *isa = level.isa;
      return true;
    }
  }
  return false;
}

void cpu_brand(char* out, uint32_t size) {
  char brand[49] = "CPU";
#if defined(__x86_64__)
  uint32_t words[12] = {};
  bool known = true;
  for (size_t i = 0; i < 3; ++i) {
    uint32_t* word = words + 4 * i;
    known = __get_cpuid(0x80000002u + static_cast<uint32_t>(i), word, word + 1, word + 2,
                        word + 3) != 0 &&
            known;
  }
  if (known) std::memcpy(brand, words, sizeof(words));
#endif
  std::memset(out, 0, size);
  std::strncpy(out, brand, size - 1);
}

}  // namespace humming_cpu
