// loops_avx2.cc - AVX2 and FMA.
#include "bench/limits/loop_shapes.h"

namespace perch_bench {
namespace {

typedef uint64_t ReadVector __attribute__((vector_size(32), may_alias));
typedef float FloatVector __attribute__((vector_size(32)));
typedef int32_t IntVector __attribute__((vector_size(32)));

struct F32 {
  using Sum = FloatVector;
  static constexpr int kNumAccumulators = 12;
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
  static constexpr int kNumAccumulators = 8;
  static constexpr int kProductsPerLane = 4;
  static Ones ones() { return {IntVector{} + 0x01010101, IntVector{} + 0x00010001}; }
  static void add(IntVector& sum, const Ones& ones) {
    IntVector pairs;
    __asm__ volatile("vpmaddubsw %2, %2, %1; vpmaddwd %3, %1, %1; vpaddd %1, %0, %0"
                     : "+v"(sum), "=&v"(pairs)
                     : "v"(ones.bytes), "v"(ones.halves));
  }
};

bool cpu_runs() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

}  // namespace

const LoopSet kLoopsAvx2 = {
    "avx2",
    cpu_runs,
    {read_streams<ReadVector, 1>, read_streams<ReadVector, 2>, read_streams<ReadVector, 4>,
     read_streams<ReadVector, 8>},
    {dot_loop<F32>("vfmadd ymm"), DotLoop{}, dot_loop<Int8>("vpmaddubsw vpmaddwd vpaddd ymm")}};

}  // namespace perch_bench
