#include "pack.h"

#include <cstring>

namespace humming_cpu {
namespace {

using Source = const uint8_t* [kNumRoles];

// Index of the scale of row `n` at column `k`.
int64_t scale_index(const MatrixPlan& matrix, int64_t n, int64_t k) {
  if (matrix.scale_kind == PERCH_SCALE_TENSOR) return 0;
  if (matrix.scale_kind == PERCH_SCALE_CHANNEL) return n;
  const int64_t group = matrix.source_group_k == 0 ? 0 : k / matrix.source_group_k;
  if (matrix.scale_kind == PERCH_SCALE_GROUP) return n * matrix.source_groups + group;
  const int64_t block = matrix.source_group_n == 0 ? 0 : n / matrix.source_group_n;
  return block * matrix.source_groups + group;
}

// Scales and zeros of one group of a panel; pads stay as they are, 0.
void pack_header(const MatrixPlan& matrix, const Source& source, int64_t panel, int64_t group,
                 uint8_t* out) {
  const int64_t k = group * matrix.group_k;
  const int64_t width = number_bytes_of(matrix.scale);
  uint8_t* zeros = out + kPanel * width;
  for (int64_t column = 0; column < kPanel; ++column) {
    const int64_t row = matrix.source_row(panel, static_cast<int32_t>(column));
    if (row < 0) continue;
    std::memcpy(out + column * width, source[kScale] + scale_index(matrix, row, k) * width,
                static_cast<size_t>(width));
    if (source[kZero] == nullptr) continue;
    const int64_t zero_group = matrix.source_group_k == 0 ? 0 : k / matrix.source_group_k;
    const int32_t zero = source[kZero][row * matrix.source_groups + zero_group];
    zeros[column] = static_cast<uint8_t>(zero - 8);
  }
}

// Four codes of a row from k on, as they lie in a word, each less 8; 0 beyond the row's end.
uint16_t four_codes(const uint8_t* row, int64_t k, int64_t k_size) {
  uint32_t codes = 0;
  for (int64_t i = 0; i < 4 && k + i < k_size; ++i) {
    const uint32_t byte = row[(k + i) / 2];
    const uint32_t code = (k + i) % 2 == 0 ? byte & 15u : byte >> 4;
    codes |= (code ^ 8u) << (4 * i);
  }
  return static_cast<uint16_t>(codes);
}

void pack_int4_group(const MatrixPlan& matrix, const uint8_t* codes, int64_t panel, int64_t group,
                     uint8_t* out) {
  const int64_t begin = group * matrix.group_k;
  const int64_t end = begin + matrix.group_k < matrix.k ? begin + matrix.group_k : matrix.k;
  const int64_t row_bytes = (matrix.k + 1) / 2;
  for (int64_t column = 0; column < kPanel; ++column) {
    const int64_t row = matrix.source_row(panel, static_cast<int32_t>(column));
    if (row < 0) continue;
    const uint8_t* source = codes + row * row_bytes;
    uint8_t* at = out + column % kLanes * 4 + column / kLanes * 2;
    int64_t k = begin;
    for (; k + 4 <= end; k += 4, at += 64) {
      // Low bits first along K is the order within the word, too.
      const uint32_t low = source[k / 2];
      const uint32_t high = source[k / 2 + 1];
      const uint16_t four = static_cast<uint16_t>((low | high << 8) ^ 0x8888u);
      std::memcpy(at, &four, 2);
    }
    if (k < end) {
      const uint16_t four = four_codes(source, k, matrix.k);
      std::memcpy(at, &four, 2);
    }
  }
}

void pack_bf16_group(const MatrixPlan& matrix, const uint8_t* codes, int64_t panel, int64_t group,
                     uint8_t* out) {
  const int64_t begin = group * matrix.group_k;
  const int64_t end = begin + matrix.group_k < matrix.k ? begin + matrix.group_k : matrix.k;
  for (int64_t column = 0; column < kPanel; ++column) {
    const int64_t row = matrix.source_row(panel, static_cast<int32_t>(column));
    if (row < 0) continue;
    const uint8_t* source = codes + (row * matrix.k + begin) * 2;
    uint8_t* at = out + column % kLanes * 4 + column / kLanes * 64;
    for (int64_t k = 0; k < end - begin; ++k) {
      std::memcpy(at + k / 2 * 128 + k % 2 * 2, source + k * 2, 2);
    }
  }
}

void pack_groups(const MatrixPlan& matrix, const Source& source, int64_t panel, uint8_t* out) {
  for (int64_t group = 0; group < matrix.groups; ++group) {
    uint8_t* at = out + group * matrix.group_bytes;
    if (matrix.weight == Weight::bf16) {
      pack_bf16_group(matrix, source[kCodes], panel, group, at);
    } else {
      pack_header(matrix, source, panel, group, at);
      pack_int4_group(matrix, source[kCodes], panel, group, at + matrix.header_bytes);
    }
  }
}

// ---- The panels of `any`
// --------------------------------------------------------------------------

// One group of one column; the column's value of each part is its own width apart.
void pack_any_header(const MatrixPlan& matrix, const Source& source, int64_t row, int64_t group,
                     int64_t column, uint8_t* out) {
  const AnyFormat& any = matrix.any;
  const int64_t at = row * matrix.source_groups + group;
  const auto put = [&](const uint8_t* from, int64_t index, int64_t width) {
    std::memcpy(out + column * width, from + index * width, static_cast<size_t>(width));
    out += kPanel * width;
  };
  if (any.scale_type != PERCH_TYPE_NONE) {
    const int64_t k = matrix.source_group_k == 0 ? 0 : group * matrix.source_group_k;
    put(source[kScale], scale_index(matrix, row, k), scale_bytes_of(any.scale_type));
  }
  if (any.has_zero_int) put(source[kZero], at, 1);
  if (any.has_zero_float) put(source[kZero], at, sizeof(float));
  if (any.has_offset) put(source[kOffset], at, sizeof(float));
}

// A code of a dense row, low bits first; it may lie across two bytes.
uint32_t code_at(const uint8_t* row, int64_t k, int32_t bits) {
  const int64_t first = k * bits;
  const uint8_t* at = row + first / 8;
  uint32_t window = at[0];
  if (first % 8 + bits > 8) window |= static_cast<uint32_t>(at[1]) << 8;
  return window >> (first % 8) & ((1u << bits) - 1);
}

// A code into the planes of its unit, as kernels_any.h reads them.
void put_code(uint32_t code, int32_t bits, int64_t k, int64_t column, uint8_t* unit) {
  for (int32_t width = 8; width > 0; width /= 2) {
    if ((bits & width) == 0) continue;
    const int64_t per_byte = 8 / width;
    const uint32_t part = code & ((1u << width) - 1);
    uint8_t* at = unit + k / per_byte * kPanel + column;
    *at = static_cast<uint8_t>(*at | part << (k % per_byte * width));
    code >>= width;
    unit += int64_t{kPanel} * width;
  }
}

void pack_any_codes(const MatrixPlan& matrix, const uint8_t* codes, int64_t row, int64_t column,
                    uint8_t* out) {
  const int64_t unit_bytes = matrix.any.unit_bytes;
  if (matrix.bits > 8) {
    const int64_t width = matrix.bits / 8;
    for (int64_t k = 0; k < matrix.k; ++k) {
      std::memcpy(out + (k * kPanel + column) * width, codes + (row * matrix.k + k) * width,
                  static_cast<size_t>(width));
    }
    return;
  }
  const uint8_t* source = codes + row * ((matrix.k * matrix.bits + 7) / 8);
  for (int64_t k = 0; k < matrix.k; ++k) {
    put_code(code_at(source, k, matrix.bits), matrix.bits, k % kUnitK, column,
             out + k / kUnitK * unit_bytes);
  }
}

void pack_any(const MatrixPlan& matrix, const Source& source, int64_t panel, uint8_t* out) {
  for (int64_t column = 0; column < kPanel; ++column) {
    const int64_t row = matrix.source_row(panel, static_cast<int32_t>(column));
    if (row < 0) continue;
    if (matrix.any.has_scale2) {
      const int64_t at = matrix.scale2_kind == PERCH_SCALE2_CHANNEL ? row : 0;
      std::memcpy(out + column * 4, source[kScale2] + at * 4, 4);
    }
    if (matrix.any.header_bytes != 0) {
      for (int64_t group = 0; group < matrix.source_groups; ++group) {
        pack_any_header(matrix, source, row, group, column,
                        out + matrix.any.headers_at + group * matrix.any.header_bytes);
      }
    }
    pack_any_codes(matrix, source[kCodes], row, column, out + matrix.any.codes_at);
  }
}

// ---- A matrix
// -------------------------------------------------------------------------------------

// What an expert has once, beside its panels.
void pack_vectors(const MatrixPlan& matrix, const Source& source, uint8_t* out) {
  if (matrix.has_bias) {
    float* bias = reinterpret_cast<float*>(out + matrix.bias_at);
    const float* from = reinterpret_cast<const float*>(source[kBias]);
    for (int64_t column = 0; column < matrix.columns(); ++column) {
      const int64_t row = matrix.source_row(column / kPanel, static_cast<int32_t>(column % kPanel));
      bias[column] = row < 0 ? 0.0f : from[row];
    }
  }
  constexpr int64_t kWord = 4;
  if (matrix.has_order) {
    const int64_t halves = matrix.gated ? 2 : 1;
    std::memset(out + matrix.order_at, 0, static_cast<size_t>(halves * matrix.k_end * kWord));
    for (int64_t half = 0; half < halves; ++half) {
      std::memcpy(out + matrix.order_at + half * matrix.k_end * kWord,
                  source[kOrder] + half * matrix.k * kWord, static_cast<size_t>(matrix.k * kWord));
    }
  }
  const auto copy = [&](Role role, int64_t at, int64_t count) {
    if (source[role] == nullptr) return;
    std::memcpy(out + at, source[role], static_cast<size_t>(count * kWord));
  };
  copy(kLut, matrix.lut_at, 16);
  copy(kPreScale, matrix.pre_scale_at, matrix.k);
  copy(kInputScale, matrix.input_scale_at, 1);
}

void pack_matrix(const MatrixPlan& matrix, const Source& source, uint8_t* out) {
  uint8_t* weights = out + matrix.weights_at;
  std::memset(weights, 0, static_cast<size_t>(matrix.panels * matrix.panel_bytes));
  for (int64_t panel = 0; panel < matrix.panels; ++panel) {
    uint8_t* at = weights + panel * matrix.panel_bytes;
    if (matrix.weight == Weight::any) {
      pack_any(matrix, source, panel, at);
    } else {
      pack_groups(matrix, source, panel, at);
    }
  }
  pack_vectors(matrix, source, out);
}

}  // namespace

void pack_expert(const LayerPlan& plan, const ExpertTensors& tensors, uint8_t* out) {
  for (int32_t i = 0; i < plan.num_matrices; ++i) {
    pack_matrix(plan.matrix[i], tensors.data[i], out);
  }
}

}  // namespace humming_cpu
