// Format: AWQ GEMM, 4 bits.
//   qweight I32 [K, N/8]  eight rows to a word, in the order 0 2 4 6 1 3 5 7 of its nibbles
//   qzeros  I32 [G, N/8] in the same order, scales F16 [G, N], optional bias [N]
#include <fmt/format.h>

#include <array>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"
#include "numeric/packed_codes.h"

namespace perch {
namespace {

// Row 8c + j of the matrix lies in this nibble of word c.
constexpr std::array<int, 8> kNibble = {0, 4, 1, 5, 2, 6, 3, 7};

bool claims(const Projection& projection) {
  const RawView* qweight = projection.find("qweight");
  const RawView* scales = projection.find("scales");
  return qweight != nullptr && qweight->tensor->dtype == RawDtype::kI32 && scales != nullptr &&
         qweight->columns * 8 == scales->columns;
}

uint32_t code_of(uint32_t word, int64_t row) {
  return word >> (4 * kNibble[static_cast<size_t>(row % 8)]) & 15U;
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& qweight = *projection.find("qweight");
  PERCH_RETURN_IF_ERROR(check_method(scheme, projection, qweight, "awq"));
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, qweight, {4, false}));
  PERCH_RETURN_IF_ERROR(check_dimensions(qweight));
  MatrixPlan result;
  result.format = &kAwqFormat;
  result.quant = make_quant(PERCH_TYPE_INT4);
  PERCH_RETURN_IF_ERROR(set_size(qweight, qweight.columns * 8, qweight.rows, &result));
  Scheme groups = scheme;
  groups.strategy = Strategy::kGroup;
  const RawView scales = turned(*projection.find("scales"));
  if (groups.group <= 0 && scales.columns == 1) groups.group = result.k;
  PERCH_RETURN_IF_ERROR(plan_scale(groups, projection, scales, false, &result));
  const RawView* qzeros = projection.find("qzeros");
  if (qzeros == nullptr) {
    if (!scheme.symmetric) return missing_part(projection, "qzeros", "the zero points");
  } else {
    if (qzeros->tensor->dtype != RawDtype::kI32) return wrong_dtype(*qzeros, "I32");
    if (qzeros->rows != scales.columns || qzeros->columns != qweight.columns) {
      return wrong_shape(*qzeros, fmt::format("[{}, {}]", scales.columns, qweight.columns));
    }
    result.quant.zero_kind = PERCH_ZERO_INT;
  }
  result.act = scheme.act;
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

// A word has eight rows, so eight are read together.
Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  const RawView& qweight = *projection.find("qweight");
  for (int64_t column = slice.n0 / 8; column * 8 < slice.n1; ++column) {
    const int64_t first = std::max(slice.n0, column * 8);
    const int64_t last = std::min(slice.n1, column * 8 + 8);
    for (int64_t k = slice.k0; k < slice.k1; ++k) {
      const uint32_t word = word_at(qweight, k, column);
      for (int64_t n = first; n < last; ++n) {
        numeric::put_code(reinterpret_cast<uint8_t*>(codes + (n - slice.n0) * row_bytes),
                          k - slice.k0, 4, code_of(word, n));
      }
    }
  }
  return {};
}

Status read_zeros(const Projection& projection, const MatrixPlan&, int64_t n, int64_t g0,
                  int64_t count, uint8_t* zeros) {
  const RawView& qzeros = *projection.find("qzeros");
  for (int64_t g = 0; g < count; ++g) {
    zeros[g] = static_cast<uint8_t>(code_of(word_at(qzeros, g0 + g, n / 8), n));
  }
  return {};
}

std::vector<std::string_view> suffixes() { return {"qweight", "qzeros", "scales", "bias"}; }

}  // namespace

const Format kAwqFormat = {"AWQ GEMM", claims, plan, read_codes, read_zeros, suffixes};

}  // namespace perch
