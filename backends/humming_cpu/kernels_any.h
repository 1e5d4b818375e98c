// kernels_any.h - the kernel that reads every weight type: a block of K is decoded to f32, once for
// all rows, and multiplied like any other matrix.
//
// Included by kernels_<isa>.cc behind kernels_impl.h, whose rules are the same. The codes of 32
// columns and 8 k are a unit of 32 * bits bytes, cut into planes of 8, 4, 2 and 1 bits so that no
// code crosses a byte: a 3-bit code is two bits in the first plane and one in the second. In a
// plane of w bits byte c of line j holds column c at k = j * 8/w and the next ones, low bits first.
//
// "Why is the whole value decoded, scale and all?" Group indices, offsets and zero points that are
// no integers differ from k to k and from column to column; the multiplication that this costs is
// shared by all rows.
#pragma once

#include <math.h>

#include "kernels.h"
#include "perch/layer.h"

// NOLINTBEGIN(misc-definitions-in-headers): one copy per ISA is what this file is for
namespace humming_cpu {
namespace {

// The width of a panel and of half of it, as offsets into memory.
constexpr int64_t kColumns = kPanel;
constexpr int64_t kHalf = kLanes;

// ---- Codes to numbers ---------------------------------------------------------------------------

// Code J of a unit, of 16 columns from `at` on.
template <int Bits, int J, int Width = 8>
PERCH_INLINE I unit_codes(const uint8_t* at, int from_bit = 0) {
  if constexpr (Width == 0) {
    return Vec::zero_words();
  } else if constexpr ((Bits & Width) == 0) {
    return unit_codes<Bits, J, Width / 2>(at, from_bit);
  } else {
    constexpr int kPerByte = 8 / Width;
    const I bytes = Vec::load_bytes(at + J / kPerByte * kColumns);
    const I part =
        Vec::bits_and(Vec::template right<J % kPerByte * Width>(bytes), (1u << Width) - 1);
    // A plane is 8 k * 32 columns * Width bits.
    const I rest = unit_codes<Bits, J, Width / 2>(at + kColumns * Width, from_bit + Width);
    return Vec::bits_or(Vec::left(part, from_bit), rest);
  }
}

template <int B>
struct Integer {
  static constexpr int kBits = B;
  static PERCH_INLINE F value(I code, const float*) { return Vec::to_float(code); }
};

enum class Top { kNumbers, kNan, kIeee };  // what the largest codes of a small float stand for

// Sign, E bits of exponent, M of mantissa. No f32 subnormal is made on the way: the host may have
// them flushed to zero.
template <int E, int M, int Bias, Top Kind>
struct SmallFloat {
  static constexpr int kBits = 1 + E + M;
  static PERCH_INLINE F value(I code, const float*) {
    constexpr uint32_t kOnes = (1u << (E + M)) - 1;
    constexpr uint32_t kInfinite = ((1u << E) - 1) << M;
    const I magnitude = Vec::bits_and(code, kOnes);
    const I shifted = Vec::left(magnitude, 23 - M);
    const F normal = Vec::as_float(Vec::plus(shifted, uint32_t{127 - Bias} << 23));
    const float step = bits_float(uint32_t{127 + 1 - Bias - M} << 23);
    const F small = Vec::mul(Vec::to_float(magnitude), Vec::set1(step));
    F result = Vec::select_less(magnitude, 1u << M, small, normal);
    if constexpr (Kind == Top::kNan) {
      result = Vec::select_less(magnitude, kOnes, result, Vec::set1(bits_float(0x7fc00000u)));
    } else if constexpr (Kind == Top::kIeee) {
      const F special = Vec::as_float(Vec::bits_or(shifted, Vec::words(0x7f800000u)));
      result = Vec::select_less(magnitude, kInfinite, result, special);
    }
    const I sign = Vec::left(Vec::template right<E + M>(code), 31);
    return Vec::as_float(Vec::bits_or(Vec::as_words(result), sign));
  }
};

using CodeE4M3 = SmallFloat<4, 3, 7, Top::kNan>;
using CodeE5M2 = SmallFloat<5, 2, 15, Top::kIeee>;

struct Table {
  static constexpr int kBits = 4;
  static PERCH_INLINE F value(I code, const float* lut) { return Vec::lookup(lut, code); }
};

// ---- What stands beside the codes
// -----------------------------------------------------------------

// 2^(byte - 127); byte 0 is the subnormal 2^-127, 255 NaN.
PERCH_INLINE F e8m0_value(I byte) {
  const F normal = Vec::as_float(Vec::left(byte, 23));
  const F above = Vec::select_less(byte, 1, Vec::set1(bits_float(0x400000u)), normal);
  return Vec::select_less(byte, 255, above, Vec::set1(bits_float(0x7fc00000u)));
}

PERCH_INLINE F scale_value(uint32_t type, const uint8_t* at, int half) {
  switch (type) {
    case PERCH_TYPE_F32:
      return load_number(Number::f32, at, half);
    case PERCH_TYPE_F16:
      return load_number(Number::f16, at, half);
    case PERCH_TYPE_BF16:
      return load_number(Number::bf16, at, half);
    case PERCH_TYPE_E4M3FN:
      return CodeE4M3::value(Vec::load_bytes(at + kHalf * half), nullptr);
    case PERCH_TYPE_E5M2:
      return CodeE5M2::value(Vec::load_bytes(at + kHalf * half), nullptr);
    case PERCH_TYPE_E8M0:
      return e8m0_value(Vec::load_bytes(at + kHalf * half));
    default:
      return Vec::set1(1.0f);
  }
}

PERCH_INLINE int64_t scale_line_bytes(uint32_t type) {
  if (type == PERCH_TYPE_NONE) return 0;
  if (type == PERCH_TYPE_F32) return 4 * kColumns;
  return type == PERCH_TYPE_F16 || type == PERCH_TYPE_BF16 ? 2 * kColumns : kColumns;
}

// Of one group and 16 columns.
struct Beside {
  F scale, zero, offset;
};

// Not inlined: once per group, and there are a hundred places that ask for it.
__attribute__((noinline)) Beside load_beside(const AnyFormat& format, const uint8_t* panel,
                                             int64_t group, int half) {
  const uint8_t* at = panel + format.headers_at + group * format.header_bytes;
  Beside beside;
  beside.scale = scale_value(format.scale_type, at, half);
  at += scale_line_bytes(format.scale_type);
  if (format.has_scale2) {
    const float* scale2 = reinterpret_cast<const float*>(panel) + kHalf * half;
    beside.scale = Vec::mul(beside.scale, Vec::load_f32(scale2));
  }
  beside.zero = Vec::set1(format.zero);
  if (format.has_zero_int) {
    beside.zero = Vec::to_float(Vec::load_bytes(at + kHalf * half));
    at += kColumns;
  } else if (format.has_zero_float) {
    beside.zero = load_number(Number::f32, at, half);
    at += 4 * kColumns;
  }
  beside.offset = format.has_offset ? load_number(Number::f32, at, half) : Vec::zero();
  return beside;
}

// ---- A block of K
// ---------------------------------------------------------------------------------

// Which part of which panel, and where its values go: lines of 32 floats, a line per k.
struct DecodeJob {
  const AnyFormat& format;
  const GemmTile& tile;
  const uint8_t* panel;
  int64_t k_begin, k_end;  // multiples of kUnitK
  float* lines;

  int64_t group_of(int64_t k, int half) const {
    const int32_t* order = tile.group_of[half];
    if (order != nullptr) return order[k];
    return format.source_group_k == 0 ? 0 : k / format.source_group_k;
  }
};

// `next(k)`: the first k behind k whose group may be another.
PERCH_INLINE int64_t group_end(const DecodeJob& job, int64_t k, int half) {
  if (job.tile.group_of[half] != nullptr) return k + 1;
  const int64_t group = job.format.source_group_k;
  return group == 0 ? job.k_end : (k / group + 1) * group;
}

template <class Code, int J>
PERCH_INLINE void decode_line(const DecodeJob& job, int half, int64_t k, const uint8_t* unit,
                              Beside* beside, int64_t* beside_end) {
  if (k + J >= *beside_end) {
    *beside = load_beside(job.format, job.panel, job.group_of(k + J, half), half);
    *beside_end = group_end(job, k + J, half);
  }
  F value = Code::value(unit_codes<Code::kBits, J>(unit + kHalf * half), job.tile.lut);
  value = Vec::mul(Vec::sub(value, beside->zero), beside->scale);
  if (job.format.has_offset) value = Vec::add(value, beside->offset);
  Vec::store(job.lines + (k - job.k_begin + J) * kColumns + kHalf * half, value);
}

template <class Code>
void decode(const DecodeJob& job) {
  for (int half = 0; half < 2; ++half) {
    Beside beside{Vec::zero(), Vec::zero(), Vec::zero()};
    int64_t end = job.k_begin;
    const uint8_t* unit =
        job.panel + job.format.codes_at + job.k_begin / kUnitK * job.format.unit_bytes;
    for (int64_t k = job.k_begin; k < job.k_end; k += kUnitK, unit += job.format.unit_bytes) {
      decode_line<Code, 0>(job, half, k, unit, &beside, &end);
      decode_line<Code, 1>(job, half, k, unit, &beside, &end);
      decode_line<Code, 2>(job, half, k, unit, &beside, &end);
      decode_line<Code, 3>(job, half, k, unit, &beside, &end);
      decode_line<Code, 4>(job, half, k, unit, &beside, &end);
      decode_line<Code, 5>(job, half, k, unit, &beside, &end);
      decode_line<Code, 6>(job, half, k, unit, &beside, &end);
      decode_line<Code, 7>(job, half, k, unit, &beside, &end);
    }
  }
}

// f32, f16 and bf16: a line of 32 numbers per k.
void decode_numbers(const DecodeJob& job, Number number) {
  const int64_t line_bytes = job.format.unit_bytes / kUnitK;
  for (int half = 0; half < 2; ++half) {
    Beside beside{Vec::zero(), Vec::zero(), Vec::zero()};
    int64_t end = job.k_begin;
    for (int64_t k = job.k_begin; k < job.k_end; ++k) {
      if (k >= end) {
        beside = load_beside(job.format, job.panel, job.group_of(k, half), half);
        end = group_end(job, k, half);
      }
      const uint8_t* at = job.panel + job.format.codes_at + k * line_bytes;
      F value = Vec::mul(Vec::sub(load_number(number, at, half), beside.zero), beside.scale);
      if (job.format.has_offset) value = Vec::add(value, beside.offset);
      Vec::store(job.lines + (k - job.k_begin) * kColumns + kHalf * half, value);
    }
  }
}

void decode_any(const DecodeJob& job) {
  switch (job.format.type) {
    case PERCH_TYPE_INT1:
      return decode<Integer<1>>(job);
    case PERCH_TYPE_INT2:
      return decode<Integer<2>>(job);
    case PERCH_TYPE_INT3:
      return decode<Integer<3>>(job);
    case PERCH_TYPE_INT4:
      return decode<Integer<4>>(job);
    case PERCH_TYPE_INT5:
      return decode<Integer<5>>(job);
    case PERCH_TYPE_INT6:
      return decode<Integer<6>>(job);
    case PERCH_TYPE_INT7:
      return decode<Integer<7>>(job);
    case PERCH_TYPE_INT8:
      return decode<Integer<8>>(job);
    case PERCH_TYPE_E4M3FN:
      return decode<CodeE4M3>(job);
    case PERCH_TYPE_E5M2:
      return decode<CodeE5M2>(job);
    case PERCH_TYPE_E3M2:
      return decode<SmallFloat<3, 2, 3, Top::kNumbers>>(job);
    case PERCH_TYPE_E2M3:
      return decode<SmallFloat<2, 3, 1, Top::kNumbers>>(job);
    case PERCH_TYPE_E2M1:
      return decode<SmallFloat<2, 1, 1, Top::kNumbers>>(job);
    case PERCH_TYPE_LUT4:
      return decode<Table>(job);
    case PERCH_TYPE_BF16:
      return decode_numbers(job, Number::bf16);
    case PERCH_TYPE_F16:
      return decode_numbers(job, Number::f16);
    default:
      return decode_numbers(job, Number::f32);
  }
}

// ---- GEMM
// -----------------------------------------------------------------------------------------

// out[r] += x[r][k_begin..] * lines, or = for the first block.
template <int R>
PERCH_INLINE void multiply_lines(const DecodeJob& job, int32_t row, int32_t panel, bool first) {
  F sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Vec::zero();
  const float* line = job.lines;
  for (int64_t k = job.k_begin; k < job.k_end; ++k, line += kColumns) {
    const F low = Vec::load_f32(line);
    const F high = Vec::load_f32(line + kHalf);
    for (int r = 0; r < R; ++r) {
      const F x = Vec::set1(job.tile.x[row + r][k]);
      sum[r][0] = Vec::fma(low, x, sum[r][0]);
      sum[r][1] = Vec::fma(high, x, sum[r][1]);
    }
  }
  for (int r = 0; r < R; ++r) {
    float* out = job.tile.out[row + r] + panel * kColumns;
    for (int half = 0; half < 2; ++half) {
      F total = sum[r][half];
      if (!first) total = Vec::add(Vec::load_f32(out + kHalf * half), total);
      Vec::store(out + kHalf * half, total);
    }
  }
}

// A group of the tile is a block of K here, as long as what is decoded at once.
void gemm_any(const GemmTile& tile) {
  alignas(64) float lines[kAnyBlockK * kColumns];
  for (int32_t panel = 0; panel < tile.num_panels; ++panel) {
    for (int64_t group = tile.group_begin; group < tile.group_end; ++group) {
      const int64_t begin = group * tile.group_k;
      const int64_t end = begin + tile.group_k < tile.k_end ? begin + tile.group_k : tile.k_end;
      const DecodeJob job = {*tile.any, tile, tile.panels + panel * tile.panel_bytes,
                             begin,     end,  lines};
      decode_any(job);
      const bool first = group == tile.group_begin;
      int32_t row = 0;
      for (; row + 4 <= tile.num_rows; row += 4) multiply_lines<4>(job, row, panel, first);
      for (; row < tile.num_rows; ++row) multiply_lines<1>(job, row, panel, first);
    }
  }
}

}  // namespace
}  // namespace humming_cpu
// NOLINTEND(misc-definitions-in-headers)
