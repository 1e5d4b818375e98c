// Format: AWQ as its GEMM kernels have it, 4 bits.
//   qweight I32 [K, N/8], packed along N, rows of the matrix in the order 0 2 4 6 1 3 5 7
//   qzeros  I32 [G, N/8], the same; zero points as they are
//   scales  [G,N] floats
//   bias    [N]; optional
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

constexpr int kBits = 4;
constexpr int64_t kPerWord = 8;
// Nibble i of word c holds the row 8c + kOrder[i].
constexpr std::array<int64_t, kPerWord> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
// The bit at which a word holds the row 8c + j.
constexpr std::array<int, kPerWord> kShift = {0, 16, 4, 20, 8, 24, 12, 28};

// A tile of so many words and columns of K: a cache line of words is read whole, and the rows that
// it makes stay in the cache while they are written.
constexpr int64_t kTileWords = 16;
constexpr int64_t kTileColumns = 128;

bool claims(const Projection& projection) {
  const RawView* weight = projection.find("qweight");
  const RawView* scales = projection.find("scales");
  if (weight == nullptr || scales == nullptr || weight->tensor->dtype != RawDtype::kI32) {
    return false;
  }
  return scales->columns / kPerWord == weight->columns && scales->columns % kPerWord == 0 &&
         projection.find("g_idx") == nullptr;
}

Status check_version(const Scheme& scheme, const Projection& projection) {
  if (scheme.format.empty() || scheme.format == "gemm") return {};
  return unsupported(
      fmt::format("{}: got AWQ version {} for module {}, which Perch does not read; "
                  "want gemm",
                  scheme.where, scheme.format, quoted_name(projection.module)));
}

Status plan_zeros(const Scheme& scheme, const Projection& projection, MatrixPlan* plan) {
  const RawView* zeros = projection.find("qzeros");
  const bool symmetric = scheme.symmetric && !scheme.unstated;
  if (zeros == nullptr) {
    if (symmetric) return {};
    return missing_part(projection, "qzeros", "the zero points of qweight");
  }
  if (zeros->tensor->dtype != RawDtype::kI32) return wrong_dtype(*zeros, "I32");
  const int64_t groups = plan->scale->view.columns;
  if (zeros->rows != groups || zeros->columns != plan->n / kPerWord) {
    return wrong_shape(
        *zeros, fmt::format("[{}, {}] (groups x N {} / 8)", groups, plan->n / kPerWord, plan->n));
  }
  if (!symmetric) {
    plan->quant.zero_kind = PERCH_ZERO_INT;
    return {};
  }
  // Kernels differ in whether they read what should not be there, so it must not matter.
  constexpr uint32_t kMidpoints = 0x88888888U;
  for (int64_t g = 0; g < zeros->rows; ++g) {
    for (int64_t c = 0; c < zeros->columns; ++c) {
      if (word_at(*zeros, g, c) == kMidpoints) continue;
      return invalid_argument(fmt::format(
          "{}: element [{}, {}]: got {:#010x}; want {:#010x} (zero points 8), as {} says "
          "symmetric",
          print_tensor(*zeros->tensor), g, c, word_at(*zeros, g, c), kMidpoints, scheme.where));
    }
  }
  return {};
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("qweight");
  PERCH_RETURN_IF_ERROR(check_method(scheme, projection, weight, "awq"));
  PERCH_RETURN_IF_ERROR(check_version(scheme, projection));
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {kBits, false}));
  MatrixPlan result;
  result.format = &kAwqFormat;
  result.n = weight.columns * kPerWord;
  result.k = weight.rows;
  result.quant = make_quant(PERCH_TYPE_INT4);
  const RawView& scales = *projection.find("scales");
  if (!is_float_dtype(scales.tensor->dtype)) return wrong_dtype(scales, "F16, BF16 or F32");
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, turned(scales), false, &result));
  PERCH_RETURN_IF_ERROR(plan_zeros(scheme, projection, &result));
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

struct Tile {
  int64_t word_begin = 0;
  int64_t word_end = 0;
  int64_t k_begin = 0;
  int64_t k_end = 0;
};

using Square = std::array<uint32_t, kPerWord>;

// Nibble j of word i changes places with nibble i of word j: halves first, then quarters of those.
// Eight columns of eight rows at once, which code by code takes five times as long.
void transpose_nibbles(Square* words) {
  const auto swap_between = [&](size_t distance, uint32_t mask) {
    for (size_t i = 0; i < kPerWord; ++i) {
      if ((i & distance) != 0) continue;
      uint32_t& low = (*words)[i];
      uint32_t& high = (*words)[i + distance];
      const uint32_t changed = (low >> kBits * distance ^ high) & mask;
      high ^= changed;
      low ^= changed << kBits * distance;
    }
  };
  swap_between(4, 0x0000FFFFU);
  swap_between(2, 0x00FF00FFU);
  swap_between(1, 0x0F0F0F0FU);
}

// k_begin - slice.k0 is a multiple of 8, so that each eight columns are bytes of their own.
void read_tile(const RawView& weight, const Tile& tile, const MatrixSlice& slice, std::byte* codes,
               int64_t row_bytes) {
  for (int64_t k = tile.k_begin; k < tile.k_end; k += kPerWord) {
    const int64_t columns = std::min(kPerWord, tile.k_end - k);
    const auto bytes = static_cast<size_t>((columns + 1) / 2);
    const int64_t first_byte = (k - slice.k0) / 2;
    for (int64_t c = tile.word_begin; c < tile.word_end; ++c) {
      Square square{};
      for (int64_t i = 0; i < columns; ++i) {
        square[static_cast<size_t>(i)] = word_at(weight, k + i, c);
      }
      transpose_nibbles(&square);
      for (size_t i = 0; i < kPerWord; ++i) {
        const int64_t n = c * kPerWord + kOrder[i];
        if (n < slice.n0 || n >= slice.n1) continue;
        std::memcpy(codes + (n - slice.n0) * row_bytes + first_byte, &square[i], bytes);
      }
    }
  }
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  const RawView& weight = *projection.find("qweight");
  const int64_t last_word = (slice.n1 + kPerWord - 1) / kPerWord;
  for (int64_t c = slice.n0 / kPerWord; c < last_word; c += kTileWords) {
    for (int64_t k = slice.k0; k < slice.k1; k += kTileColumns) {
      const Tile tile = {c, std::min(c + kTileWords, last_word), k,
                         std::min(k + kTileColumns, slice.k1)};
      read_tile(weight, tile, slice, codes, row_bytes);
    }
  }
  return {};
}

Status read_zeros(const Projection& projection, const MatrixPlan&, int64_t n, int64_t g0,
                  int64_t count, uint8_t* zeros) {
  const RawView& stored = *projection.find("qzeros");
  const int shift = kShift[static_cast<size_t>(n % kPerWord)];
  for (int64_t g = 0; g < count; ++g) {
    zeros[g] = static_cast<uint8_t>(word_at(stored, g0 + g, n / kPerWord) >> shift & 15U);
  }
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"qweight", "qzeros", "scales", "input_scale", "bias"};
}

}  // namespace

const Format kAwqFormat = {"AWQ (GEMM)", claims, plan, read_codes, read_zeros, suffixes};

}  // namespace perch
