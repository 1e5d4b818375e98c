// kernels_avx512.cc - the kernels for AVX-512 F, BW, CD, DQ, VL. Built with those flags: nothing
// here may run before machine_isa() has said so.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own header fills the unused operand of its builtins from an uninitialized variable.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "kernels.h"

namespace humming_cpu {
namespace {

struct Vec {
  using F = __m512;
  using I = __m512i;
  static constexpr int kPanelsAtOneRow = 4;

  static inline F zero() { return _mm512_setzero_ps(); }
  static inline F set1(float value) { return _mm512_set1_ps(value); }
  static inline F load_f32(const float* at) { return _mm512_loadu_ps(at); }
  static inline void store(float* at, F a) { _mm512_storeu_ps(at, a); }
  static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
  static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
  static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
  static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
  static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static inline I load_words(const uint8_t* at) { return _mm512_loadu_si512(at); }

  // A table look-up uses the low 4 bits of each word and makes the float at once: a shift and a
  // permutation per 16 weights, where shifting and converting would take three.
  template <int N>
  static inline F nibble(I words) {
    const F table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * N), table);
  }
  static inline I words(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static inline I zero_words() { return _mm512_setzero_si512(); }
  static inline I load_bytes(const uint8_t* at) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  static inline I bits_and(I a, uint32_t mask) { return _mm512_and_si512(a, words(mask)); }
  static inline I bits_or(I a, I b) { return _mm512_or_si512(a, b); }
  static inline I plus(I a, uint32_t b) { return _mm512_add_epi32(a, words(b)); }
  static inline I left(I a, int count) {
    return _mm512_slli_epi32(a, static_cast<unsigned>(count));
  }
  template <int N>
  static inline I right(I a) {
    return _mm512_srli_epi32(a, N);
  }
  static inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static inline F as_float(I a) { return _mm512_castsi512_ps(a); }
  static inline I as_words(F a) { return _mm512_castps_si512(a); }
  static inline F select_less(I a, uint32_t b, F yes, F no) {
    return _mm512_mask_mov_ps(no, _mm512_cmplt_epi32_mask(a, words(b)), yes);
  }
  static inline F lookup(const float* table, I code) {
    return _mm512_permutexvar_ps(code, load_f32(table));
  }
  static inline F bf16_low(I words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
  static inline F bf16_high(I words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)));
  }
  static inline F load_bf16(const uint8_t* at) {
    return bf16_low(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
  }
  static inline F load_f16(const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static inline F load_int8(const uint8_t* at) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  static inline void store_bf16(uint16_t* at, F a) {
    const I bits = _mm512_castps_si512(a);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const I quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const I result = _mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(result));
  }
  // a * 2^n, n the integer in the low bits of `shifted`; in two steps, so that n may be 129.
  static inline F scale_by_shifted(F a, F shifted) {
    const I bias = _mm512_set1_epi32(127);
    const I n = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x4b400000));
    const I half = _mm512_srai_epi32(n, 1);
    const I first = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    const I second = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23);
    return mul(mul(a, _mm512_castsi512_ps(first)), _mm512_castsi512_ps(second));
  }
};

}  // namespace
}  // namespace humming_cpu

#include "kernels_impl.h"
// After it: what it defines is used there.
#include "kernels_any.h"
#include "kernels_quantize.h"

namespace humming_cpu {

void gemm_bf16_avx512(const GemmTile& tile) { gemm<WeightBf16>(tile); }
void gemm_int4_avx512(const GemmTile& tile) { gemm<WeightInt4>(tile); }
void gemm_int4z_avx512(const GemmTile& tile) { gemm<WeightInt4Zero>(tile); }
void gemm_any_avx512(const GemmTile& tile) { gemm_any(tile); }
const RowKernels row_kernels_avx512 = {load_row, activate,    add_row,
                                       sum_rows, combine_row, quantize_row};

}  // namespace humming_cpu
