// The inner loops of the machine's limits: reading memory, and dot products held in registers.
//
// One file per ISA level (loops_<isa>.cc), each built for its level and called only where `runs()`
// says that this CPU and its system have it. What is timed and how: limits.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace perch_bench {

// What a layer multiplies: f32 FMA, pairs of bf16 into f32, quads of int8 into int32.
enum class DotClass { kF32, kBf16, kInt8 };
inline constexpr std::array<DotClass, 3> kDotClasses = {DotClass::kF32, DotClass::kBf16,
                                                        DotClass::kInt8};
const char* dot_class_name(DotClass dot);  // "bf16"

// A loop over independent accumulators, enough of them to hide the instruction's latency.
struct DotLoop {
  const char* instructions = nullptr;  // "vdpbf16ps zmm"; nullptr: not at this level
  int64_t operations_per_round = 0;    // a multiplication and its addition are two
  // Returns a value made of every accumulator, so that no round can be left out.
  double (*run)(int64_t rounds) = nullptr;
};

// Number of streams of each entry of LoopSet::read.
inline constexpr std::array<int, 4> kStreamCounts = {1, 2, 4, 8};

struct LoopSet {
  const char* isa;  // "avx512"
  bool (*runs)();
  // Reads `bytes` (a multiple of 8 streams x 64) from 64-byte aligned memory with loads as wide as
  // the level has, from kStreamCounts[i] equal parts side by side. nullptr: as the level below.
  std::array<uint64_t (*)(const std::byte* data, int64_t bytes), 4> read;
  std::array<DotLoop, 3> dots;  // by DotClass
};

// Every level built into this program, from the baseline up. Each includes those below it.
std::span<const LoopSet* const> loop_sets();

extern const LoopSet kLoopsPortable;
#if defined(__x86_64__)
extern const LoopSet kLoopsAvx2;
extern const LoopSet kLoopsAvx512;
extern const LoopSet kLoopsAvx512Vnni;
extern const LoopSet kLoopsAvx512Bf16;
#endif

}  // namespace perch_bench
