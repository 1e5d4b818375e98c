// loops_avx512_vnni.cc - AVX-512 VNNI: four products of bytes and their sum in one instruction.
#include "bench/limits/loop_shapes.h"

namespace perch_bench {
namespace {

typedef int32_t IntVector __attribute__((vector_size(64)));

struct Int8 {
  using Sum = IntVector;
  static constexpr int kNumAccumulators = 24;
  static constexpr int kProductsPerLane = 4;
  static IntVector ones() { return IntVector{} + 0x01010101; }
  static void add(IntVector& sum, IntVector ones) {
    __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(ones));
  }
};

bool cpu_runs() { return kLoopsAvx512.runs() && __builtin_cpu_supports("avx512vnni"); }

}  // namespace

const LoopSet kLoopsAvx512Vnni = {
    "avx512_vnni", cpu_runs, {}, {DotLoop{}, DotLoop{}, dot_loop<Int8>("vpdpbusd zmm")}};

}  // namespace perch_bench
