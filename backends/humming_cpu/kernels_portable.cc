// kernels_portable.cc - the kernels for any machine: 16 lanes as four vectors of the compiler's
// own kind, a product and a sum where the others have one FMA.
#include <string.h>

#include "kernels.h"
#include "numbers.h"

namespace humming_cpu {
namespace {

struct Vec {
  typedef float F4 __attribute__((vector_size(16)));
  typedef int32_t I4 __attribute__((vector_size(16)));
  typedef uint32_t U4 __attribute__((vector_size(16)));
  struct F {
    F4 q[4];
  };
  struct I {
    U4 q[4];
  };
  static constexpr int kPanelsAtOneRow = 2;

  // op(i) makes quarter i. A cast between vectors keeps the bits.
  template <class Op>
  static inline F each(const Op& op) {
    return {{op(0), op(1), op(2), op(3)}};
  }
  static inline F zero() { return F{}; }
  static inline F set1(float value) {
    const F4 all = {value, value, value, value};
    return {{all, all, all, all}};
  }
  static inline F load_f32(const float* at) {
    F a;
    memcpy(&a, at, sizeof(a));
    return a;
  }
  static inline void store(float* at, const F& a) { memcpy(at, &a, sizeof(a)); }
  static inline F add(const F& a, const F& b) {
    return each([&](int i) { return a.q[i] + b.q[i]; });
  }
  static inline F sub(const F& a, const F& b) {
    return each([&](int i) { return a.q[i] - b.q[i]; });
  }
  static inline F mul(const F& a, const F& b) {
    return each([&](int i) { return a.q[i] * b.q[i]; });
  }
  static inline F div(const F& a, const F& b) {
    return each([&](int i) { return a.q[i] / b.q[i]; });
  }
  static inline F min(const F& a, const F& b) {
    return each([&](int i) { return a.q[i] < b.q[i] ? a.q[i] : b.q[i]; });
  }
  static inline F max(const F& a, const F& b) {
    return each([&](int i) { return a.q[i] > b.q[i] ? a.q[i] : b.q[i]; });
  }
  static inline F fma(const F& a, const F& b, const F& c) {
    return each([&](int i) { return a.q[i] * b.q[i] + c.q[i]; });
  }
  static inline I load_words(const uint8_t* at) {
    I words;
    memcpy(&words, at, sizeof(words));
    return words;
  }
  template <int N>
  static inline F nibble(const I& words) {
    return each([&](int i) {
      const U4 top = words.q[i] << (28 - 4 * N);
      return __builtin_convertvector((I4)top >> 28, F4);
    });
  }
  static inline F4 as_floats(U4 words) {
    F4 a;
    memcpy(&a, &words, sizeof(a));
    return a;
  }
  template <class Op>
  static inline I each_words(const Op& op) {
    return {{op(0), op(1), op(2), op(3)}};
  }
  static inline I words(uint32_t value) {
    const U4 all = {value, value, value, value};
    return {{all, all, all, all}};
  }
  static inline I zero_words() { return I{}; }
  static inline I load_bytes(const uint8_t* at) {
    uint32_t lanes[kLanes];
    I result;
    for (int i = 0; i < kLanes; ++i) lanes[i] = at[i];
    memcpy(&result, lanes, sizeof(result));
    return result;
  }
  static inline I bits_and(const I& a, uint32_t mask) {
    return each_words([&](int i) { return a.q[i] & mask; });
  }
  static inline I bits_or(const I& a, const I& b) {
    return each_words([&](int i) { return a.q[i] | b.q[i]; });
  }
  static inline I plus(const I& a, uint32_t b) {
    return each_words([&](int i) { return a.q[i] + b; });
  }
  static inline I left(const I& a, int count) {
    return each_words([&](int i) { return a.q[i] << count; });
  }
  template <int N>
  static inline I right(const I& a) {
    return each_words([&](int i) { return a.q[i] >> N; });
  }
  static inline F to_float(const I& a) {
    return each([&](int i) { return __builtin_convertvector((I4)a.q[i], F4); });
  }
  static inline F as_float(const I& a) {
    return each([&](int i) { return as_floats(a.q[i]); });
  }
  static inline I as_words(const F& a) {
    I result;
    memcpy(&result, &a, sizeof(result));
    return result;
  }
  static inline F select_less(const I& a, uint32_t b, const F& yes, const F& no) {
    return each([&](int i) { return a.q[i] < b ? yes.q[i] : no.q[i]; });
  }
  static inline F lookup(const float* table, const I& code) {
    uint32_t index[kLanes];
    float lanes[kLanes];
    memcpy(index, &code, sizeof(index));
    for (int i = 0; i < kLanes; ++i) lanes[i] = table[index[i] & 15u];
    return load_f32(lanes);
  }
  static inline F bf16_low(const I& words) {
    return each([&](int i) { return as_floats(words.q[i] << 16); });
  }
  static inline F bf16_high(const I& words) {
    return each([&](int i) { return as_floats(words.q[i] & 0xffff0000u); });
  }
  static inline F load_bf16(const uint8_t* at) { return load_16_bits<bf16_to_float>(at); }
  static inline F load_f16(const uint8_t* at) { return load_16_bits<f16_to_float>(at); }
  static inline F load_int8(const uint8_t* at) {
    alignas(16) float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(static_cast<int8_t>(at[i]));
    return load_f32(lanes);
  }
  static inline void store_bf16(uint16_t* at, const F& a) {
    alignas(16) float lanes[kLanes];
    store(lanes, a);
    for (int i = 0; i < kLanes; ++i) at[i] = float_to_bf16(lanes[i]);
  }
  // a * 2^n, n the integer in the low bits of `shifted`; in two steps, so that n may be 129.
  static inline F scale_by_shifted(const F& a, const F& shifted) {
    return each([&](int i) {
      U4 bits;
      memcpy(&bits, &shifted.q[i], sizeof(bits));
      const U4 n = bits - 0x4b400000u;
      const I4 halved = (I4)n >> 1;
      const U4 half = (U4)halved;
      const F4 once = a.q[i] * as_floats((half + 127u) << 23);
      return once * as_floats((n - half + 127u) << 23);
    });
  }

 private:
  template <float (*Convert)(uint16_t)>
  static inline F load_16_bits(const uint8_t* at) {
    uint16_t codes[kLanes];
    alignas(16) float lanes[kLanes];
    memcpy(codes, at, sizeof(codes));
    for (int i = 0; i < kLanes; ++i) lanes[i] = Convert(codes[i]);
    return load_f32(lanes);
  }
};

}  // namespace
}  // namespace humming_cpu

#include "kernels_impl.h"
// After it: what it defines is used there.
#include "kernels_any.h"
#include "kernels_quantize.h"

namespace humming_cpu {

void gemm_bf16_portable(const GemmTile& tile) { gemm<WeightBf16>(tile); }
void gemm_int4_portable(const GemmTile& tile) { gemm<WeightInt4>(tile); }
void gemm_int4z_portable(const GemmTile& tile) { gemm<WeightInt4Zero>(tile); }
void gemm_any_portable(const GemmTile& tile) { gemm_any(tile); }
const RowKernels row_kernels_portable = {load_row, activate,    add_row,
                                         sum_rows, combine_row, quantize_row};

}  // namespace humming_cpu
