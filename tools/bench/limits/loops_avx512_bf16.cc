// loops_avx512_bf16.cc - AVX-512 BF16: two products of bf16 and their sum in one instruction.
#include "bench/limits/loop_shapes.h"

namespace perch_bench {
namespace {

typedef float FloatVector __attribute__((vector_size(64)));
typedef int32_t IntVector __attribute__((vector_size(64)));

struct Bf16 {
  using Sum = FloatVector;
  static constexpr int kNumAccumulators = 24;
  static constexpr int kProductsPerLane = 2;
  static IntVector ones() { return IntVector{} + 0x3F803F80; }
  static void add(FloatVector& sum, IntVector ones) {
    __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(ones));
  }
};

bool cpu_runs() { return kLoopsAvx512Vnni.runs() && __builtin_cpu_supports("avx512bf16"); }

}  // namespace

const LoopSet kLoopsAvx512Bf16 = {
    "avx512_bf16", cpu_runs, {}, {DotLoop{}, dot_loop<Bf16>("vdpbf16ps zmm"), DotLoop{}}};

}  // namespace perch_bench
