// One row of a weight matrix, from its canonical tensors to f32: layer.h's algebra written out.
//
//   value(n,k) = (code(n,k) - zero(n,g)) * scale(n,g) * scale2(n) + offset(n,g)
//
// evaluated from left to right in f32. For the runtime's error bound and for tests; kernels have
// their own ways. Nothing here checks: config_rules.h and the readers of canonical/ have done it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "numeric/float_formats.h"
#include "numeric/packed_codes.h"
#include "perch/layer.h"

namespace perch::numeric {

// The tensors of one matrix (of one expert), laid out as backend.h says; borrowed. A tensor that
// the perch_quant does not call for may be NULL. No alignment is asked of the void pointers.
struct MatrixTensors {
  const void* w = nullptr;      // packed codes, or f32, f16, bf16 [N,K]
  const void* scale = nullptr;  // of scale_dtype
  const float* scale2 = nullptr;
  const void* zero = nullptr;  // uint8 (ZERO_INT) or f32 (ZERO_FLOAT) [N,G]
  const float* offset = nullptr;
  const float* lut = nullptr;
  const int32_t* g_idx = nullptr;  // [K] of the rows that are decoded: gate's or up's own
};

// The tensors that `find` has under their suffixes (".scale"; "" for the codes), null for none.
template <typename Find>
MatrixTensors matrix_tensors(Find&& find) {
  MatrixTensors tensors;
  tensors.w = find("");
  tensors.scale = find(".scale");
  tensors.scale2 = static_cast<const float*>(find(".scale2"));
  tensors.zero = find(".zero");
  tensors.offset = static_cast<const float*>(find(".offset"));
  tensors.lut = static_cast<const float*>(find(".lut"));
  tensors.g_idx = static_cast<const int32_t*>(find(".g_idx"));
  return tensors;
}

// Bits of one code; 0 for what is no element type.
constexpr int code_bits(uint32_t type) {
  if (type >= PERCH_TYPE_INT1 && type <= PERCH_TYPE_INT8) {
    return static_cast<int>(type - PERCH_TYPE_INT1) + 1;
  }
  switch (type) {
    case PERCH_TYPE_F32:
      return 32;
    case PERCH_TYPE_F16:
    case PERCH_TYPE_BF16:
      return 16;
    case PERCH_TYPE_E4M3FN:
    case PERCH_TYPE_E5M2:
    case PERCH_TYPE_E8M0:
      return 8;
    case PERCH_TYPE_E3M2:
    case PERCH_TYPE_E2M3:
      return 6;
    case PERCH_TYPE_E2M1:
    case PERCH_TYPE_LUT4:
      return 4;
    default:
      return 0;
  }
}

// The values of a float type of 8 bits and less, indexed by code; NULL for every other type.
constexpr const float* code_values(uint32_t type) {
  switch (type) {
    case PERCH_TYPE_E4M3FN:
      return kCodeTable<kE4m3>.values;
    case PERCH_TYPE_E5M2:
      return kCodeTable<kE5m2>.values;
    case PERCH_TYPE_E3M2:
      return kCodeTable<kE3m2>.values;
    case PERCH_TYPE_E2M3:
      return kCodeTable<kE2m3>.values;
    case PERCH_TYPE_E2M1:
      return kCodeTable<kE2m1>.values;
    default:
      return nullptr;
  }
}

template <typename T>
T load_unaligned(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(data) + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

// Element `index` of an array of a float type whose elements are whole bytes: f32, f16, bf16, e4m3,
// e5m2, e8m0. NaN for any other type.
inline float load_float(uint32_t type, const void* data, int64_t index) {
  switch (type) {
    case PERCH_TYPE_F32:
      return load_unaligned<float>(data, index);
    case PERCH_TYPE_F16:
      return f32_from_f16(load_unaligned<uint16_t>(data, index));
    case PERCH_TYPE_BF16:
      return f32_from_bf16(load_unaligned<uint16_t>(data, index));
    case PERCH_TYPE_E4M3FN:
      return f32_from_e4m3(load_unaligned<uint8_t>(data, index));
    case PERCH_TYPE_E5M2:
      return f32_from_e5m2(load_unaligned<uint8_t>(data, index));
    case PERCH_TYPE_E8M0:
      return f32_from_e8m0(load_unaligned<uint8_t>(data, index));
    default:
      return std::nanf("");
  }
}

// Rounds once to a float type whose elements are whole bytes, to element `index` of an array of it;
// what is too large goes where the type's conversion sends it. e8m0: the power of two not below.
inline void store_float(uint32_t type, float value, void* data, int64_t index) {
  const auto put = [&](auto code) {
    std::memcpy(static_cast<uint8_t*>(data) + index * int64_t{sizeof(code)}, &code, sizeof(code));
  };
  switch (type) {
    case PERCH_TYPE_F16:
      return put(f16_from_f32(value));
    case PERCH_TYPE_BF16:
      return put(bf16_from_f32(value));
    case PERCH_TYPE_E4M3FN:
      return put(e4m3_from_f32(value));
    case PERCH_TYPE_E5M2:
      return put(e5m2_from_f32(value));
    case PERCH_TYPE_E8M0:
      return put(e8m0_ceil_from_f32(value));
    default:
      return put(value);
  }
}

// The codes of one row as numbers, before zero and scale: 0..2^b-1 for INTb, lut[code] for LUT4.
inline void decode_code_row(const perch_quant& quant, const MatrixTensors& tensors, int64_t columns,
                            int64_t row, float* out) {
  const int bits = code_bits(quant.weight);
  if (bits > 8) {
    for (int64_t k = 0; k < columns; ++k) {
      out[k] = load_float(quant.weight, tensors.w, row * columns + k);
    }
    return;
  }
  const uint8_t* codes =
      static_cast<const uint8_t*>(tensors.w) + row * packed_row_bytes(columns, bits);
  const float* values = quant.weight == PERCH_TYPE_LUT4 ? tensors.lut : code_values(quant.weight);
  CodeReader reader(codes, bits);
  for (int64_t k = 0; k < columns; ++k) {
    const uint32_t code = reader.next();
    out[k] = values == nullptr ? static_cast<float>(code) : values[code];
  }
}

// Groups along K of [N,G] tensors: scales of kind GROUP or BLOCK, zeros and offsets.
constexpr int64_t group_count(const perch_quant& quant, int64_t columns) {
  if (quant.num_groups != 0) return quant.num_groups;
  if (quant.group_k == 0) return 1;
  return (columns + quant.group_k - 1) / quant.group_k;
}

// What turns a code of row n, group g into its value.
struct GroupTerms {
  float zero;
  float scale;
  float scale2;
  float offset;
};

inline GroupTerms group_terms(const perch_quant& quant, const MatrixTensors& tensors,
                              int64_t columns, int64_t row, int64_t group) {
  const int64_t groups = group_count(quant, columns);
  const int64_t at = row * groups + group;
  GroupTerms terms{0.0f, 1.0f, 1.0f, 0.0f};
  if (quant.zero_kind == PERCH_ZERO_MIDPOINT) terms.zero = pow2(code_bits(quant.weight) - 1);
  if (quant.zero_kind == PERCH_ZERO_INT) terms.zero = load_unaligned<uint8_t>(tensors.zero, at);
  if (quant.zero_kind == PERCH_ZERO_FLOAT) terms.zero = load_unaligned<float>(tensors.zero, at);
  if (quant.scale_kind != PERCH_SCALE_NONE) {
    int64_t index = 0;  // PERCH_SCALE_TENSOR
    if (quant.scale_kind == PERCH_SCALE_CHANNEL) index = row;
    if (quant.scale_kind == PERCH_SCALE_GROUP) index = at;
    if (quant.scale_kind == PERCH_SCALE_BLOCK) index = row / quant.group_n * groups + group;
    terms.scale = load_float(quant.scale_dtype, tensors.scale, index);
  }
  if (quant.scale2_kind == PERCH_SCALE2_TENSOR) terms.scale2 = tensors.scale2[0];
  if (quant.scale2_kind == PERCH_SCALE2_CHANNEL) terms.scale2 = tensors.scale2[row];
  if (quant.offset_kind == PERCH_OFFSET_GROUP) terms.offset = tensors.offset[at];
  return terms;
}

// Columns [begin, end) of a row, all of one group, from codes to values in place.
inline void apply_terms(const perch_quant& quant, const GroupTerms& terms, int64_t begin,
                        int64_t end, float* out) {
  for (int64_t k = begin; k < end; ++k) {
    out[k] = (out[k] - terms.zero) * terms.scale * terms.scale2;
  }
  if (quant.offset_kind == PERCH_OFFSET_NONE) return;  // adding 0 would turn -0 into +0
  for (int64_t k = begin; k < end; ++k) out[k] += terms.offset;
}

// Row `row` of the matrix as f32 values: out[0 .. columns). columns is K, and every g_idx entry
// lies in [0, G).
inline void decode_weight_row(const perch_quant& quant, const MatrixTensors& tensors,
                              int64_t columns, int64_t row, float* out) {
  decode_code_row(quant, tensors, columns, row, out);
  if (quant.k_order == PERCH_K_G_IDX) {
    for (int64_t k = 0; k < columns; ++k) {
      apply_terms(quant, group_terms(quant, tensors, columns, row, tensors.g_idx[k]), k, k + 1,
                  out);
    }
    return;
  }
  const int64_t width = quant.group_k == 0 ? columns : int64_t{quant.group_k};
  for (int64_t begin = 0, group = 0; begin < columns; begin += width, ++group) {
    const int64_t end = columns - begin < width ? columns : begin + width;
    apply_terms(quant, group_terms(quant, tensors, columns, row, group), begin, end, out);
  }
}

}  // namespace perch::numeric
