// One weight matrix in the storage of a checkpoint format: the writers that the format tests read
// back. Written from the formats' descriptions, apart from the runtime's readers; packages' own
// files are in tests/fixtures.
//
// Values are whole numbers and halves of few bits with scales that are powers of two, so that sums
// of products of small integers are exact in f32 in any order.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace perch::test {

// A stored array. `rows_axis`: which axis has a row of the matrix for each index: 0, 1, or -1 for
// one value that the whole matrix shares.
struct StoredPart {
  std::string suffix;
  std::string dtype;  // of safetensors: "F8_E4M3"
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
  int rows_axis = 0;
};

struct StoredMatrix {
  int64_t n = 0;
  int64_t k = 0;
  std::vector<float> values;  // [n,k], what it stands for
  std::vector<StoredPart> parts;
};

struct StoredFormat {
  std::string name;
  nlohmann::json quantization;  // of config.json; null for none
  bool in_own_file = false;     // under "quantization" of hf_quant_config.json instead
  std::function<StoredMatrix(int64_t n, int64_t k, std::mt19937* rng)> store;
  bool fusable = true;  // some package stores all experts of it in one tensor
};

// ---- Bits ---------------------------------------------------------------------------------------
inline void put_bits(std::vector<uint8_t>* bytes, int64_t bit, int count, uint32_t value) {
  for (int i = 0; i < count; ++i, ++bit) {
    if ((value >> i & 1U) != 0) (*bytes)[static_cast<size_t>(bit / 8)] |= 1U << (bit % 8);
  }
}

template <typename T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Of a float with few significant bits; exact.
inline std::vector<uint8_t> bf16_bytes(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    halves.push_back(static_cast<uint16_t>(bits >> 16));
  }
  return bytes_of(halves);
}

// f16 of a normal number with at most 7 bits after the leading one.
inline std::vector<uint8_t> f16_bytes(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t exponent = (bits >> 23 & 0xFFU) == 0 ? 0 : (bits >> 23 & 0xFFU) - 112;
    halves.push_back(static_cast<uint16_t>(bits >> 16 & 0x8000U) |
                     static_cast<uint16_t>(exponent << 10 | (bits >> 13 & 0x3FFU)));
  }
  return bytes_of(halves);
}

// The E4M3 code of 0, or of +-1.x * 2^e with three bits after the point.
inline uint8_t e4m3_code(float value) {
  if (value == 0.0F) return 0;
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t exponent = (bits >> 23 & 0xFFU) - 120;
  return static_cast<uint8_t>((bits >> 24 & 0x80U) | exponent << 3 | (bits >> 20 & 7U));
}

// The E2M1 code of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
inline uint8_t e2m1_code(float value) {
  static const float kValues[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) {
    if (kValues[code] == value) return code;
    if (kValues[code] == -value) return code | 8U;
  }
  return 15;
}

// ---- Numbers ------------------------------------------------------------------------------------
// Codes -2..2 and scales 0.5, 1, 2, drawn so that every group has a scale of its own.
struct SmallMatrix {
  int64_t n, k, group_n, group_k;
  std::vector<int> codes;     // [n,k]
  std::vector<float> scales;  // [ceil(n/group_n), ceil(k/group_k)]
  std::vector<int> zeros;     // of the same cells; empty for none

  int64_t cells_k() const { return (k + group_k - 1) / group_k; }
  size_t cell(int64_t row, int64_t column) const {
    return static_cast<size_t>(row / group_n * cells_k() + column / group_k);
  }
  int code(int64_t row, int64_t column) const {
    return codes[static_cast<size_t>(row * k + column)];
  }
  // (code - zero) * scale, with the code as it is stored less its midpoint.
  std::vector<float> values() const {
    std::vector<float> result;
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t column = 0; column < k; ++column) {
        const size_t at = cell(row, column);
        const int zero = zeros.empty() ? 0 : zeros[at];
        result.push_back(static_cast<float>(code(row, column) - zero) * scales[at]);
      }
    }
    return result;
  }
};

inline SmallMatrix small_matrix(int64_t n, int64_t k, int64_t group_n, int64_t group_k,
                                std::mt19937* rng, bool zeros = false) {
  SmallMatrix m{n, k, std::min(group_n, n), std::min(group_k, k), {}, {}, {}};
  const int64_t cells = (n + m.group_n - 1) / m.group_n * m.cells_k();
  static const float kScales[] = {0.5F, 1.0F, 2.0F};
  for (int64_t i = 0; i < cells; ++i) {
    m.scales.push_back(kScales[(*rng)() % 3]);
    if (zeros) m.zeros.push_back(static_cast<int>((*rng)() % 2) - 1);
  }
  // Whole numbers of two bits around the zero point, most of them 0: products stay small.
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const int zero = zeros ? m.zeros[m.cell(row, column)] : 0;
      static const int kDraw[] = {0, 0, 0, 1, -1, 0, 0, -2};
      m.codes.push_back(zero == 0 ? kDraw[(*rng)() % 8] : zero + ((*rng)() % 4 == 0 ? 1 : 0));
    }
  }
  return m;
}

// ---- Arrays -------------------------------------------------------------------------------------
inline StoredPart float_part(const std::string& suffix, const std::string& dtype,
                             std::vector<int64_t> shape, const std::vector<float>& values,
                             int rows_axis = 0) {
  std::vector<uint8_t> bytes;
  if (dtype == "F32") bytes = bytes_of(values);
  if (dtype == "BF16") bytes = bf16_bytes(values);
  if (dtype == "F16") bytes = f16_bytes(values);
  for (const float value : values) {
    if (dtype == "F8_E4M3") bytes.push_back(e4m3_code(value));
    if (dtype == "U8" || dtype == "F8_E8M0") {  // a power of two
      bytes.push_back(static_cast<uint8_t>(127 + std::ilogb(value)));
    }
  }
  return {suffix, dtype, std::move(shape), std::move(bytes), rows_axis};
}

inline StoredPart scalar_part(const std::string& suffix, float value,
                              std::vector<int64_t> shape = {}) {
  return float_part(suffix, "F32", std::move(shape), {value}, -1);
}

// Codes of `bits` bits, offset by their midpoint, in 32-bit words along the columns: dense, or with
// `per_word` codes in each word.
inline StoredPart word_part(const std::string& suffix, const std::vector<int>& codes, int64_t rows,
                            int64_t columns, int bits, int64_t per_word = 0) {
  const int64_t words =
      per_word == 0 ? (columns * bits + 31) / 32 : (columns + per_word - 1) / per_word;
  StoredPart part{suffix, "I32", {rows, words}, {}, 0};
  part.bytes.assign(static_cast<size_t>(rows * words * 4), 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t bit = per_word == 0 ? c * bits : c / per_word * 32 + c % per_word * bits;
      put_bits(&part.bytes, r * words * 32 + bit, bits,
               static_cast<uint32_t>(codes[static_cast<size_t>(r * columns + c)]));
    }
  }
  return part;
}

// Pairs of nibbles along the columns, the low one first.
inline StoredPart pair_part(const std::string& suffix, const std::string& dtype,
                            const std::vector<uint8_t>& codes, int64_t rows, int64_t columns) {
  StoredPart part{suffix, dtype, {rows, columns / 2}, {}, 0};
  for (size_t i = 0; i < codes.size(); i += 2) {
    part.bytes.push_back(static_cast<uint8_t>(codes[i] | codes[i + 1] << 4));
  }
  return part;
}

// Rows become columns.
inline std::vector<int> turned_codes(const std::vector<int>& codes, int64_t rows, int64_t columns) {
  std::vector<int> result;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r)
      result.push_back(codes[static_cast<size_t>(r * columns + c)]);
  }
  return result;
}

}  // namespace perch::test
