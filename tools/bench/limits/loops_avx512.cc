// loops_avx512.cc - AVX-512 F, BW, DQ, VL.
#include "bench/limits/loop_shapes.h"

namespace perch_bench {
namespace {

typedef uint64_t ReadVector __attribute__((vector_size(64), may_alias));
typedef float FloatVector __attribute__((vector_size(64)));
typedef int32_t IntVector __attribute__((vector_size(64)));

struct F32 {
  using Sum = FloatVector;
  static constexpr int kNumAccumulators = 24;
  static constexpr int kProductsPerLane = 1;
  static FloatVector ones() { return FloatVector{} + 1.0F; }
  static void add(FloatVector& sum, FloatVector ones) {
    __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(ones));
  }
};

// Exact for unsigned bytes up to 127: a pair's sum then fits 16 bits.
struct Int8 {
  struct Ones {
    IntVector bytes, halves;
  };
  using Sum = IntVector;
  static constexpr int kNumAccumulators = 16;
  static constexpr int kProductsPerLane = 4;
  static Ones ones() { return {IntVector{} + 0x01010101, IntVector{} + 0x00010001}; }
  static void add(IntVector& sum, const Ones& ones) {
    IntVector pairs;
    __asm__ volatile("vpmaddubsw %2, %2, %1; vpmaddwd %3, %1, %1; vpaddd %1, %0, %0"
                     : "+v"(sum), "=&v"(pairs)
                     : "v"(ones.bytes), "v"(ones.halves));
  }
};

bool cpu_runs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

const LoopSet kLoopsAvx512 = {
    "avx512",
    cpu_runs,
    {read_streams<ReadVector, 1>, read_streams<ReadVector, 2>, read_streams<ReadVector, 4>,
     read_streams<ReadVector, 8>},
    {dot_loop<F32>("vfmadd zmm"), DotLoop{}, dot_loop<Int8>("vpmaddubsw vpmaddwd vpaddd zmm")}};

}  // namespace perch_bench
