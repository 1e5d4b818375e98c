// kernels_impl.h - every kernel, written once over a vector of 16 lanes.
//
// Included by kernels_<isa>.cc after it has defined `struct Vec` in its unnamed namespace: F (16
// floats), I (16 words) and the operations used below. All of it is in that unnamed namespace, so
// each file has its own copy. Only C functions are called (kernels.h says why).
//
// "Why no horizontal sum?" A lane is a column. The K order of an element is then the same in every
// row tile and panel tile, which is all that batch invariance asks for.
#pragma once

#include <math.h>

#include "kernels.h"
#include "numbers.h"
#include "perch/layer.h"

// NOLINTBEGIN(misc-definitions-in-headers): one copy per ISA is what this file is for
namespace humming_cpu {
namespace {

#define PERCH_INLINE inline __attribute__((always_inline))

using F = Vec::F;
using I = Vec::I;

// ---- Weights: how a step of K is read -----------------------------------------------------------

// A word holds columns c (low half) and 16 + c, four k each. A nibble is code - 8 in two's
// complement.
struct WeightInt4 {
  static constexpr bool kScaled = true;
  static constexpr bool kZero = false;
  static constexpr int kStep = 4;
  static constexpr int kStepBytes = 64;
  struct Step {
    I words;
  };
  static PERCH_INLINE Step load(const uint8_t* at) { return {Vec::load_words(at)}; }
  template <int J, int Half>
  static PERCH_INLINE F value(const Step& step) {
    return Vec::nibble<4 * Half + J>(step.words);
  }
};

struct WeightInt4Zero : WeightInt4 {
  static constexpr bool kZero = true;
};

// A word holds k (low half) and k + 1 of one column.
struct WeightBf16 {
  static constexpr bool kScaled = false;
  static constexpr bool kZero = false;
  static constexpr int kStep = 2;
  static constexpr int kStepBytes = 128;
  struct Step {
    I words[2];
  };
  static PERCH_INLINE Step load(const uint8_t* at) {
    return {{Vec::load_words(at), Vec::load_words(at + 64)}};
  }
  template <int J, int Half>
  static PERCH_INLINE F value(const Step& step) {
    return J == 0 ? Vec::bf16_low(step.words[Half]) : Vec::bf16_high(step.words[Half]);
  }
};

PERCH_INLINE F load_number(Number number, const uint8_t* at, int64_t half) {
  if (number == Number::bf16) return Vec::load_bf16(at + 32 * half);
  if (number == Number::f16) return Vec::load_f16(at + 32 * half);
  return Vec::load_f32(reinterpret_cast<const float*>(at) + 16 * half);
}

PERCH_INLINE int64_t scale_bytes(Number number) { return number == Number::f32 ? 128 : 64; }

// ---- GEMM ---------------------------------------------------------------------------------------

template <int J, class W, int R, int P>
PERCH_INLINE void multiply(const typename W::Step (&step)[P], const F (&zero)[P][2],
                           const float* const (&x)[R], int64_t k, F (&sum)[R][P][2]) {
  if constexpr (J < W::kStep) {
    F xs[R];
    for (int r = 0; r < R; ++r) xs[r] = Vec::set1(x[r][k + J]);
    for (int p = 0; p < P; ++p) {
      F low = W::template value<J, 0>(step[p]);
      F high = W::template value<J, 1>(step[p]);
      if constexpr (W::kZero) {
        low = Vec::sub(low, zero[p][0]);
        high = Vec::sub(high, zero[p][1]);
      }
      for (int r = 0; r < R; ++r) {
        sum[r][p][0] = Vec::fma(low, xs[r], sum[r][p][0]);
        sum[r][p][1] = Vec::fma(high, xs[r], sum[r][p][1]);
      }
    }
  }
}

// How far ahead of the reads the panels are asked for; kernel_bench: 512 to 2048 are alike, 0 costs
// a tenth at one row.
constexpr int64_t kPrefetchBytes = 1024;

// R rows of x from `row` on times P panels from `first` on.
template <class W, int R, int P>
void gemm_tile(const GemmTile& tile, int32_t row, int32_t first) {
  F total[R][P][2];
  const float* x[R];
  const uint8_t* at[P];
  for (int r = 0; r < R; ++r) {
    x[r] = tile.x[row + r];
    for (int p = 0; p < P; ++p) total[r][p][0] = total[r][p][1] = Vec::zero();
  }
  for (int p = 0; p < P; ++p) {
    at[p] = tile.panels + (first + p) * tile.panel_bytes + tile.group_begin * tile.group_bytes;
  }
  for (int64_t group = tile.group_begin; group < tile.group_end; ++group) {
    int64_t k = group * tile.group_k;
    const int64_t k_stop = k + tile.group_k < tile.k_end ? k + tile.group_k : tile.k_end;
    const uint8_t* header[P];
    F sum[R][P][2];
    F zero[P][2];
    for (int p = 0; p < P; ++p) {
      header[p] = at[p];
      if constexpr (W::kScaled) at[p] += scale_bytes(tile.scale);
      if constexpr (W::kZero) {
        zero[p][0] = Vec::load_int8(at[p]);
        zero[p][1] = Vec::load_int8(at[p] + kLanes);
        at[p] += kPanel;
      } else {
        zero[p][0] = zero[p][1] = Vec::zero();
      }
      for (int r = 0; r < R; ++r) sum[r][p][0] = sum[r][p][1] = Vec::zero();
    }
    for (; k < k_stop; k += W::kStep) {
      typename W::Step step[P];
      for (int p = 0; p < P; ++p) {
        step[p] = W::load(at[p]);
        for (int line = 0; line < W::kStepBytes; line += 64) {
          __builtin_prefetch(at[p] + kPrefetchBytes + line);
        }
        at[p] += W::kStepBytes;
      }
      multiply<0, W, R, P>(step, zero, x, k, sum);
      multiply<1, W, R, P>(step, zero, x, k, sum);
      multiply<2, W, R, P>(step, zero, x, k, sum);
      multiply<3, W, R, P>(step, zero, x, k, sum);
    }
    for (int p = 0; p < P; ++p) {
      for (int half = 0; half < 2; ++half) {
        if constexpr (W::kScaled) {
          const F scale = load_number(tile.scale, header[p], half);
          for (int r = 0; r < R; ++r) {
            total[r][p][half] = Vec::fma(sum[r][p][half], scale, total[r][p][half]);
          }
        } else {
          for (int r = 0; r < R; ++r) {
            total[r][p][half] = Vec::add(total[r][p][half], sum[r][p][half]);
          }
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    float* out = tile.out[row + r] + int64_t{first} * kPanel;
    for (int64_t p = 0; p < P; ++p) {
      Vec::store(out + p * kPanel, total[r][p][0]);
      Vec::store(out + p * kPanel + kLanes, total[r][p][1]);
    }
  }
}

// All panels of the tile, P at a time.
template <class W, int R, int P>
void gemm_panels(const GemmTile& tile, int32_t row) {
  int32_t panel = 0;
  for (; panel + P <= tile.num_panels; panel += P) gemm_tile<W, R, P>(tile, row, panel);
  for (; panel < tile.num_panels; ++panel) gemm_tile<W, R, 1>(tile, row, panel);
}

// Few rows take several panels at once: enough independent sums to hide the latency of an FMA, and
// several streams from memory.
template <class W>
void gemm(const GemmTile& tile) {
  int32_t row = 0;
  for (; row + 4 <= tile.num_rows; row += 4) gemm_panels<W, 4, 1>(tile, row);
  switch (tile.num_rows - row) {
    case 1:
      return gemm_panels<W, 1, Vec::kPanelsAtOneRow>(tile, row);
    case 2:
      return gemm_panels<W, 2, Vec::kPanelsAtOneRow / 2>(tile, row);
    case 3:
      return gemm_panels<W, 3, 1>(tile, row);
    default:
      return;
  }
}

// ---- Activations --------------------------------------------------------------------------------

// Within 2 ulp. The clamps keep NaN: min and max give their second operand then.
PERCH_INLINE F exp_lanes(F x) {
  x = Vec::max(Vec::set1(-104.0f), Vec::min(Vec::set1(89.5f), x));
  const F magic = Vec::set1(12582912.0f);  // 1.5 * 2^23: the low bits are then the integer
  const F shifted = Vec::add(Vec::mul(x, Vec::set1(1.44269504f)), magic);
  const F n = Vec::sub(shifted, magic);
  F r = Vec::fma(n, Vec::set1(-0.693359375f), x);
  r = Vec::fma(n, Vec::set1(2.12194440e-4f), r);
  F p = Vec::set1(1.9875691500e-4f);
  p = Vec::fma(p, r, Vec::set1(1.3981999507e-3f));
  p = Vec::fma(p, r, Vec::set1(8.3334519073e-3f));
  p = Vec::fma(p, r, Vec::set1(4.1665795894e-2f));
  p = Vec::fma(p, r, Vec::set1(1.6666665459e-1f));
  p = Vec::fma(p, r, Vec::set1(5.0000001201e-1f));
  p = Vec::add(Vec::fma(Vec::mul(p, r), r, r), Vec::set1(1.0f));
  return Vec::scale_by_shifted(p, shifted);
}

// x * sigmoid(z); sigmoid alone would lose the sign of an infinite x.
PERCH_INLINE F times_sigmoid(F x, F z) {
  const F minus_z = Vec::sub(Vec::zero(), z);
  return Vec::div(x, Vec::add(Vec::set1(1.0f), exp_lanes(minus_z)));
}

PERCH_INLINE F map_lanes(F x, float (*function)(float, const Activation&), const Activation& a) {
  alignas(64) float lanes[kLanes];
  Vec::store(lanes, x);
  for (int i = 0; i < kLanes; ++i) lanes[i] = function(lanes[i], a);
  return Vec::load_f32(lanes);
}

// erfc keeps the digits that 1 + erf loses for negative x.
float gelu_lane(float x, const Activation&) { return 0.5f * x * erfcf(-0.70710678f * x); }
float situ_gate_lane(float x, const Activation& a) { return a.beta * tanhf(x / a.beta); }
float situ_up_lane(float x, const Activation& a) { return a.alpha * tanhf(x / a.alpha); }

PERCH_INLINE F gelu_tanh(F x) {
  const F cube = Vec::mul(Vec::mul(x, x), x);
  const F inner = Vec::fma(cube, Vec::set1(0.044715f), x);
  return times_sigmoid(x, Vec::mul(inner, Vec::set1(2.0f * 0.7978845608f)));
}

PERCH_INLINE F relu2(F x) {
  const F positive = Vec::max(Vec::zero(), x);
  return Vec::mul(positive, positive);
}

PERCH_INLINE F clamp_lanes(F x, float limit) {
  return Vec::max(Vec::set1(-limit), Vec::min(Vec::set1(limit), x));
}

F activate_gated(const Activation& a, F g, F u) {
  switch (a.kind) {
    case PERCH_ACTIVATION_SILU:
      if (a.has_limit) {
        g = Vec::min(Vec::set1(a.limit), g);
        u = clamp_lanes(u, a.limit);
      }
      return Vec::mul(times_sigmoid(g, g), u);
    case PERCH_ACTIVATION_GELU:
      return Vec::mul(map_lanes(g, gelu_lane, a), u);
    case PERCH_ACTIVATION_GELU_TANH:
      return Vec::mul(gelu_tanh(g), u);
    case PERCH_ACTIVATION_SWIGLUOAI:
      g = Vec::min(Vec::set1(a.limit), g);
      u = Vec::add(clamp_lanes(u, a.limit), Vec::set1(a.beta));
      return Vec::mul(times_sigmoid(g, Vec::mul(g, Vec::set1(a.alpha))), u);
    case PERCH_ACTIVATION_SWIGLUSTEP:
      g = Vec::min(Vec::set1(a.limit), times_sigmoid(g, g));
      return Vec::mul(g, clamp_lanes(u, a.limit));
    case PERCH_ACTIVATION_RELU2:
      return Vec::mul(relu2(g), u);
    default:  // SITU
      if (a.alpha > 0.0f) u = map_lanes(u, situ_up_lane, a);
      return Vec::mul(times_sigmoid(map_lanes(g, situ_gate_lane, a), g), u);
  }
}

F activate_alone(const Activation& a, F x) {
  switch (a.kind) {
    case PERCH_ACTIVATION_SILU_NO_MUL:
      return times_sigmoid(x, x);
    case PERCH_ACTIVATION_GELU_NO_MUL:
      return map_lanes(x, gelu_lane, a);
    case PERCH_ACTIVATION_GELU_TANH_NO_MUL:
      return gelu_tanh(x);
    default:  // RELU2_NO_MUL
      return relu2(x);
  }
}

void activate(const Activation& a, const float* panel, const float* bias, float* out) {
  F low = Vec::load_f32(panel);
  F high = Vec::load_f32(panel + kLanes);
  if (bias != nullptr) {
    low = Vec::add(low, Vec::load_f32(bias));
    high = Vec::add(high, Vec::load_f32(bias + kLanes));
  }
  if (a.gated) {
    Vec::store(out, activate_gated(a, low, high));
  } else {
    Vec::store(out, activate_alone(a, low));
    Vec::store(out + kLanes, activate_alone(a, high));
  }
}

// ---- Rows ---------------------------------------------------------------------------------------

PERCH_INLINE float load_one(Number number, const void* x, int64_t i) {
  if (number == Number::bf16) return bf16_to_float(static_cast<const uint16_t*>(x)[i]);
  if (number == Number::f16) return f16_to_float(static_cast<const uint16_t*>(x)[i]);
  return static_cast<const float*>(x)[i];
}

PERCH_INLINE float round_to(Number number, float value) {
  if (number == Number::bf16) return bf16_to_float(float_to_bf16(value));
  if (number == Number::f16) return f16_to_float(float_to_f16(value));
  return value;
}

PERCH_INLINE int64_t number_bytes(Number number) { return number == Number::f32 ? 4 : 2; }

void load_row(Number number, const void* x, int64_t n, const float* weight, float* out) {
  if (weight != nullptr) {
    for (int64_t i = 0; i < n; ++i) out[i] = round_to(number, load_one(number, x, i) * *weight);
  } else {
    int64_t i = 0;
    const uint8_t* bytes = static_cast<const uint8_t*>(x);
    for (; i + kLanes <= n; i += kLanes) {
      Vec::store(out + i, load_number(number, bytes + i * number_bytes(number), 0));
    }
    for (; i < n; ++i) out[i] = load_one(number, x, i);
  }
  for (int64_t i = n; i % kLanes != 0; ++i) out[i] = 0.0f;
}

void add_row(const float* bias, int64_t n, float* row) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec::store(row + i, Vec::add(Vec::load_f32(row + i), Vec::load_f32(bias + i)));
  }
}

void sum_rows(const float* rows, int64_t stride, int32_t pieces, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    F sum = Vec::load_f32(rows + i);
    for (int32_t piece = 1; piece < pieces; ++piece) {
      sum = Vec::add(sum, Vec::load_f32(rows + piece * stride + i));
    }
    Vec::store(out + i, sum);
  }
}

PERCH_INLINE void store_one(Number number, float value, void* y, int64_t i) {
  if (number == Number::bf16) {
    static_cast<uint16_t*>(y)[i] = float_to_bf16(value);
  } else if (number == Number::f16) {
    static_cast<uint16_t*>(y)[i] = float_to_f16(value);
  } else {
    static_cast<float*>(y)[i] = value;
  }
}

void combine_row(const CombineRow& job) {
  alignas(64) float lanes[kLanes];
  for (int64_t i = 0; i < job.n; i += kLanes) {
    F sum = Vec::zero();
    for (int32_t slot = 0; slot < job.num_slots; ++slot) {
      if (job.expert[slot] < 0) continue;
      sum = Vec::fma(Vec::set1(job.weight[slot]), Vec::load_f32(job.rows + slot * job.stride + i),
                     sum);
    }
    if (job.n - i >= kLanes && job.number == Number::bf16) {
      Vec::store_bf16(static_cast<uint16_t*>(job.y) + i, sum);
      continue;
    }
    Vec::store(lanes, sum);
    const int64_t left = job.n - i < kLanes ? job.n - i : kLanes;
    for (int64_t lane = 0; lane < left; ++lane) store_one(job.number, lanes[lane], job.y, i + lane);
  }
}

}  // namespace
}  // namespace humming_cpu
// NOLINTEND(misc-definitions-in-headers)
