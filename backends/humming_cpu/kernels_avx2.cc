// kernels_avx2.cc - the kernels for AVX2, FMA and F16C. Built with those flags: nothing here may
// run before machine_isa() has said so.
#include <immintrin.h>

#include "kernels.h"

namespace humming_cpu {
namespace {

struct Vec {
  struct F {
    __m256 lo, hi;
  };
  struct I {
    __m256i lo, hi;
  };
  static constexpr int kPanelsAtOneRow = 2;

  static inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static inline F set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static inline F load_f32(const float* at) {
    return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
  }
  static inline void store(float* at, F a) {
    _mm256_storeu_ps(at, a.lo);
    _mm256_storeu_ps(at + 8, a.hi);
  }
  static inline F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static inline F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static inline F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static inline F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static inline F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static inline F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static inline F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static inline __m256i load_half(const uint8_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  static inline I load_words(const uint8_t* at) { return {load_half(at), load_half(at + 32)}; }

  template <int N>
  static inline __m256 nibble_half(__m256i words) {
    if constexpr (N < 7) words = _mm256_slli_epi32(words, 28 - 4 * N);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(words, 28));
  }
  template <int N>
  static inline F nibble(I words) {
    return {nibble_half<N>(words.lo), nibble_half<N>(words.hi)};
  }
  static inline I words(uint32_t value) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(value));
    return {all, all};
  }
  static inline I zero_words() { return words(0); }
  static inline __m256i load_byte_half(const uint8_t* at) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
  }
  static inline I load_bytes(const uint8_t* at) {
    return {load_byte_half(at), load_byte_half(at + 8)};
  }
  static inline I bits_and(I a, uint32_t mask) {
    const I m = words(mask);
    return {_mm256_and_si256(a.lo, m.lo), _mm256_and_si256(a.hi, m.hi)};
  }
  static inline I bits_or(I a, I b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  static inline I plus(I a, uint32_t b) {
    const I all = words(b);
    return {_mm256_add_epi32(a.lo, all.lo), _mm256_add_epi32(a.hi, all.hi)};
  }
  static inline I left(I a, int count) {
    return {_mm256_slli_epi32(a.lo, count), _mm256_slli_epi32(a.hi, count)};
  }
  template <int N>
  static inline I right(I a) {
    return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
  }
  static inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  static inline F as_float(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
  static inline I as_words(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
  static inline __m256 select_half(__m256i a, __m256i b, __m256 yes, __m256 no) {
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)));
  }
  static inline F select_less(I a, uint32_t b, F yes, F no) {
    const I all = words(b);
    return {select_half(a.lo, all.lo, yes.lo, no.lo), select_half(a.hi, all.hi, yes.hi, no.hi)};
  }
  // Each permutation looks up in 8 of the 16; bit 3 of the code says which is right.
  static inline __m256 lookup_half(F table, __m256i code) {
    const __m256 low = _mm256_permutevar8x32_ps(table.lo, code);
    const __m256 high = _mm256_permutevar8x32_ps(table.hi, code);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
  }
  static inline F lookup(const float* table, I code) {
    const F all = load_f32(table);
    return {lookup_half(all, code.lo), lookup_half(all, code.hi)};
  }
  static inline __m256 low_half(__m256i words) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
  static inline F bf16_low(I words) { return {low_half(words.lo), low_half(words.hi)}; }
  static inline F bf16_high(I words) {
    const __m256i mask = _mm256_set1_epi32(-65536);
    return {_mm256_castsi256_ps(_mm256_and_si256(words.lo, mask)),
            _mm256_castsi256_ps(_mm256_and_si256(words.hi, mask))};
  }
  static inline __m128i load_quarter(const uint8_t* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  static inline F load_bf16(const uint8_t* at) {
    return {low_half(_mm256_cvtepu16_epi32(load_quarter(at))),
            low_half(_mm256_cvtepu16_epi32(load_quarter(at + 16)))};
  }
  static inline F load_f16(const uint8_t* at) {
    return {_mm256_cvtph_ps(load_quarter(at)), _mm256_cvtph_ps(load_quarter(at + 16))};
  }
  static inline __m256 load_int8_half(const uint8_t* at) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
  static inline F load_int8(const uint8_t* at) {
    return {load_int8_half(at), load_int8_half(at + 8)};
  }
  static inline __m256i round_bf16_half(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
  }
  static inline void store_bf16(uint16_t* at, F a) {
    const __m256i packed = _mm256_packus_epi32(round_bf16_half(a.lo), round_bf16_half(a.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static inline __m256 scale_half(__m256 a, __m256 shifted) {
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000));
    const __m256i half = _mm256_srai_epi32(n, 1);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
    const __m256 once = _mm256_mul_ps(a, _mm256_castsi256_ps(first));
    return _mm256_mul_ps(once, _mm256_castsi256_ps(second));
  }
  // a * 2^n, n the integer in the low bits of `shifted`; in two steps, so that n may be 129.
  static inline F scale_by_shifted(F a, F shifted) {
    return {scale_half(a.lo, shifted.lo), scale_half(a.hi, shifted.hi)};
  }
};

}  // namespace
}  // namespace humming_cpu

#include "kernels_impl.h"
// After it: what it defines is used there.
#include "kernels_any.h"
#include "kernels_quantize.h"

namespace humming_cpu {

void gemm_bf16_avx2(const GemmTile& tile) { gemm<WeightBf16>(tile); }
void gemm_int4_avx2(const GemmTile& tile) { gemm<WeightInt4>(tile); }
void gemm_int4z_avx2(const GemmTile& tile) { gemm<WeightInt4Zero>(tile); }
void gemm_any_avx2(const GemmTile& tile) { gemm_any(tile); }
const RowKernels row_kernels_avx2 = {load_row, activate,    add_row,
                                     sum_rows, combine_row, quantize_row};

}  // namespace humming_cpu
