// Format: GPTQ, 2, 3, 4 and 8 bits.
//   qweight I32 [K*b/32, N]  codes down the columns, low bits first; 3 bits: 32 codes in 3 words
//   qzeros  I32 [G, N*b/32], scales F16 [G, N], g_idx I32 [K], optional bias [N]
// Version 1 (checkpoint_format "gptq") stores zero points less one. Its writers subtract a word of
// ones, so a zero point of 0 borrows from its neighbour: the word of ones is added back before a
// code is taken out, and only 3 bits are put right one by one.
#include <fmt/format.h>

#include "base/checked.h"
#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

enum Zeros { kAsStored = 0, kLessOne = 1 };

bool claims(const Projection& projection) {
  const RawView* qweight = projection.find("qweight");
  const RawView* scales = projection.find("scales");
  if (qweight == nullptr || qweight->tensor->dtype != RawDtype::kI32 || scales == nullptr) {
    return false;
  }
  // AWQ packs along N: its qweight has an eighth of the columns that its scales have.
  return qweight->columns == scales->columns;
}

uint32_t word_of_ones(int bits) {
  return bits == 2 ? 0x55555555U : (bits == 4 ? 0x11111111U : 0x01010101U);
}

uint32_t zero_at(const RawView& qzeros, int bits, bool less_one, int64_t n, int64_t g) {
  const uint32_t mask = (1U << bits) - 1;
  const int64_t bit = n * bits;
  uint32_t word = word_at(qzeros, g, bit / 32);
  if (bits != 3) {
    if (less_one) word += word_of_ones(bits);
    return word >> (bit % 32) & mask;
  }
  uint64_t window = word;
  if (bit % 32 + bits > 32) window |= uint64_t{word_at(qzeros, g, bit / 32 + 1)} << 32;
  return (static_cast<uint32_t>(window >> (bit % 32)) + (less_one ? 1U : 0U)) & mask;
}

// Symmetric files hold the midpoint in every zero point, and many are labelled with the wrong
// version: the stored value tells. All of them are looked at, so that none is taken for granted.
Result<uint32_t> symmetric_zeros(const Scheme& scheme, const RawView& qzeros, int bits, int64_t n,
                                 int64_t groups) {
  const uint32_t middle = 1U << (bits - 1);
  const uint32_t first = zero_at(qzeros, bits, false, 0, 0);
  const bool less_one = first == middle - 1;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t row = 0; row < n; ++row) {
      if (zero_at(qzeros, bits, less_one, row, g) == middle) continue;
      return invalid_argument(fmt::format(
          "tensor {}: [{}, {}]: got zero point {}; want {} everywhere, as {} says sym: true",
          quoted_name(qzeros.tensor->name), g, row, zero_at(qzeros, bits, less_one, row, g), middle,
          scheme.where));
    }
  }
  return less_one ? uint32_t{kLessOne} : uint32_t{kAsStored};
}

Result<int> width_of(const Scheme& scheme, const Projection& projection, const RawView& qzeros,
                     int64_t n) {
  const int64_t bits =
      scheme.bits != 0 ? scheme.bits : qzeros.columns * 32 / std::max<int64_t>(1, n);
  if (bits == 2 || bits == 3 || bits == 4 || bits == 8) return static_cast<int>(bits);
  return wrong_scheme(scheme, projection, fmt::format("{} bits", bits), "2, 3, 4 or 8");
}

Result<const RawView*> words(const Projection& projection, const char* suffix) {
  const RawView* view = projection.find(suffix);
  if (view == nullptr) return missing_part(projection, suffix, "I32 words");
  if (view->tensor->dtype != RawDtype::kI32) return wrong_dtype(*view, "I32");
  PERCH_RETURN_IF_ERROR(check_dimensions(*view));
  return view;
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  PERCH_ASSIGN_OR_RETURN(const RawView* qweight, words(projection, "qweight"));
  PERCH_ASSIGN_OR_RETURN(const RawView* qzeros, words(projection, "qzeros"));
  PERCH_RETURN_IF_ERROR(check_method(scheme, projection, *qweight, "gptq"));
  PERCH_ASSIGN_OR_RETURN(const int bits, width_of(scheme, projection, *qzeros, qweight->columns));
  MatrixPlan result;
  result.format = &kGptqFormat;
  result.quant = make_quant(PERCH_TYPE_INT1 + static_cast<uint32_t>(bits) - 1);
  if (qweight->rows * 32 % bits != 0) {
    return wrong_shape(*qweight, fmt::format("rows that hold whole codes of {} bits", bits));
  }
  PERCH_RETURN_IF_ERROR(set_size(*qweight, qweight->columns, qweight->rows * 32 / bits, &result));
  Scheme groups = scheme;
  groups.strategy = Strategy::kGroup;
  // One group over all of K, also where the configuration says -1.
  const RawView scales = turned(*projection.find("scales"));
  if (groups.group <= 0 && scales.columns == 1) groups.group = result.k;
  PERCH_RETURN_IF_ERROR(plan_scale(groups, projection, scales, false, &result));
  const int64_t zero_words = ceil_div(result.n * bits, 32);
  if (qzeros->rows != scales.columns || qzeros->columns != zero_words) {
    return wrong_shape(*qzeros, fmt::format("[{}, {}]", scales.columns, zero_words));
  }
  if (scheme.symmetric && !scheme.unstated) {
    PERCH_ASSIGN_OR_RETURN(result.variant,
                           symmetric_zeros(scheme, *qzeros, bits, result.n, scales.columns));
  } else {
    result.quant.zero_kind = PERCH_ZERO_INT;
    result.variant = scheme.zeros_less_one || scheme.unstated ? kLessOne : kAsStored;
  }
  PERCH_RETURN_IF_ERROR(plan_g_idx(scheme, projection, "g_idx", &result));
  result.act = scheme.act;
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan& plan, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(turned(*projection.find("qweight")), type_bits(plan.quant.weight), slice, codes,
                 row_bytes);
  return {};
}

Status read_zeros(const Projection& projection, const MatrixPlan& plan, int64_t n, int64_t g0,
                  int64_t count, uint8_t* zeros) {
  const RawView& qzeros = *projection.find("qzeros");
  for (int64_t g = 0; g < count; ++g) {
    zeros[g] = static_cast<uint8_t>(
        zero_at(qzeros, type_bits(plan.quant.weight), plan.variant == kLessOne, n, g0 + g));
  }
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"qweight", "qzeros", "scales", "g_idx", "bias"};
}

}  // namespace

const Format kGptqFormat = {"GPTQ", claims, plan, read_codes, read_zeros, suffixes};

}  // namespace perch
