// isa.h - which instructions this machine and its operating system offer, as one of three levels.
//
// Not a list of CPU flags: kernels are chosen by level only. Baseline code; read first.
#pragma once

#include <cstdint>

namespace humming_cpu {

// In rising order: a machine offers its level and all below it. A level with 16-bit or 8-bit dots
// is one more row in isa.cc and in kernels.inc.
enum class Isa : int32_t { kNone = -1, kPortable = 0, kAvx2 = 1, kAvx512 = 2 };
inline constexpr int32_t kNumIsaLevels = 3;

// What CPUID and XGETBV say, kept apart from the decision so that a test can make it up.
struct CpuFeatures {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint64_t xcr0 = 0;  // the registers that the operating system saves
};
CpuFeatures read_cpu_features();
// kNone where not even x86-64-v2 is there.
Isa best_isa(const CpuFeatures& features);
// best_isa of this machine.
Isa machine_isa();

const char* isa_name(Isa isa);   // "portable" "avx2" "avx512"
const char* isa_needs(Isa isa);  // what the CPU and the system must have, for messages
// False for a name that is no level.
bool parse_isa(const char* name, Isa* isa);
inline constexpr char kIsaNames[] = "portable, avx2, avx512";

// The CPU's brand, NUL-terminated and cut to `size`.
void cpu_brand(char* out, uint32_t size);

}  // namespace humming_cpu
