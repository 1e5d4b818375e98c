// loops_portable.cc - the baseline: x86-64-v2, or the compiler's own target elsewhere.
#include "bench/limits/loop_shapes.h"

namespace perch_bench {
namespace {

typedef uint64_t ReadVector __attribute__((vector_size(16), may_alias));
typedef float FloatVector __attribute__((vector_size(16)));
typedef int32_t IntVector __attribute__((vector_size(16)));

#if defined(__x86_64__)

// A multiplication and an addition; the copy is what two-operand instructions need.
struct F32 {
  using Sum = FloatVector;
  static constexpr int kNumAccumulators = 12;
  static constexpr int kProductsPerLane = 1;
  static FloatVector ones() { return FloatVector{} + 1.0F; }
  static void add(FloatVector& sum, FloatVector ones) {
    FloatVector product;
    __asm__ volatile("movaps %2, %1; mulps %2, %1; addps %1, %0"
                     : "+x"(sum), "=&x"(product)
                     : "x"(ones));
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
    __asm__ volatile("movdqa %2, %1; pmaddubsw %2, %1; pmaddwd %3, %1; paddd %1, %0"
                     : "+x"(sum), "=&x"(pairs)
                     : "x"(ones.bytes), "x"(ones.halves));
  }
};

constexpr const char* kF32Name = "mulps addps xmm";
constexpr const char* kInt8Name = "pmaddubsw pmaddwd paddd xmm";

#else

// The empty assembly makes the factor new in every step, so that its product is not computed once
// for all.
template <typename Vector>
struct PlainStep {
  using Sum = Vector;
  static constexpr int kNumAccumulators = 12;
  static constexpr int kProductsPerLane = 1;
  static Vector ones() { return Vector{} + 1; }
  static void add(Vector& sum, Vector ones) {
    __asm__ volatile("" : "+g"(ones));
    sum += ones * ones;
  }
};
using F32 = PlainStep<FloatVector>;
using Int8 = PlainStep<IntVector>;

constexpr const char* kF32Name = "multiply and add, 128 bits";
constexpr const char* kInt8Name = "multiply and add of int32, 128 bits";

#endif

}  // namespace

const LoopSet kLoopsPortable = {"portable",
                                [] { return true; },
                                {read_streams<ReadVector, 1>, read_streams<ReadVector, 2>,
                                 read_streams<ReadVector, 4>, read_streams<ReadVector, 8>},
                                {dot_loop<F32>(kF32Name), DotLoop{}, dot_loop<Int8>(kInt8Name)}};

}  // namespace perch_bench
