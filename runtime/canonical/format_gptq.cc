// Format: GPTQ, 2, 3, 4 and 8 bits.
//   qweight I32 [K*b/32, N], codes low bits first along K: a column of words is the canonical row
//   qzeros  I32 [G, N*b/32], zero points packed along N; may be absent where they are symmetric
//   scales  [G,N] floats
//   g_idx   I32 [K], the group of each column; may be absent where the order is natural
//   bias    [N]; optional
// Version 1 (checkpoint_format gptq) stores zero points less one, and its writers and readers add
// the one back to whole words: 0x11111111 for 4 bits. A zero point of 0 borrows from its neighbour
// that way, so that taking a field out and adding one to it would misread the neighbour. 3 bits do
// not tile a word and are handled code by code, modulo 8.
//
// Files whose label says the one version and whose values are the other exist. Symmetric ones
// betray themselves: all zero points are 2^(b-1) in one of the two readings, and that one is right.
#include <fmt/format.h>

#include <array>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

constexpr int kWordBits = 32;

// MatrixPlan::variant.
enum Zeros : uint32_t { kAsStored = 0, kLessOne = 1 };

bool claims(const Projection& projection) {
  const RawView* weight = projection.find("qweight");
  if (weight == nullptr || weight->tensor->dtype != RawDtype::kI32) return false;
  const RawView* scales = projection.find("scales");
  return projection.find("g_idx") != nullptr ||
         (scales != nullptr && scales->columns == weight->columns);
}

// The planes of other widths, low bits apart from high ones, are not read.
Status planar(const Projection& projection, int64_t bits) {
  return unsupported(fmt::format(
      "{}: got GPTQ with planar packing ({} bits), which Perch does not read; want 2, 3, 4 "
      "or 8 bits, checkpoint_format gptq or gptq_v2",
      print_module(projection), bits));
}

Result<int> bits_of(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("qweight");
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {}));
  int64_t bits = scheme.bits;
  if (bits == 0) {
    const RawView* g_idx = projection.find("g_idx");
    if (g_idx == nullptr || g_idx->rows < 1) {
      return missing_part(projection, "g_idx",
                          "it, or a configuration with bits: the shapes do not tell them");
    }
    bits = weight.rows * kWordBits / g_idx->rows;
  }
  if (scheme.format == "gptq_p" || bits == 5 || bits == 6 || bits == 7) {
    return planar(projection, bits);
  }
  if (!scheme.format.empty() && scheme.format != "gptq" && scheme.format != "gptq_v2") {
    return unsupported(
        fmt::format("{}: got checkpoint_format {} for module {}; want gptq or "
                    "gptq_v2",
                    scheme.where, scheme.format, quoted_name(projection.module)));
  }
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    return wrong_scheme(scheme, projection, fmt::format("{} bits", bits), "2, 3, 4 or 8 bits");
  }
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, weight, {bits, false}));
  return static_cast<int>(bits);
}

// What is added to each word of version 1: one in each field.
uint32_t ones(int bits) {
  if (bits == 2) return 0x55555555U;
  return bits == 4 ? 0x11111111U : 0x01010101U;
}

uint32_t zero_code(const RawView& zeros, int64_t group, int64_t n, int bits, bool less_one) {
  const uint32_t mask = (1U << bits) - 1;
  const int64_t bit = n * bits;
  const bool by_code = bits == 3;
  uint32_t word = word_at(zeros, group, bit / kWordBits);
  if (less_one && !by_code) word += ones(bits);
  uint32_t code = word >> bit % kWordBits;
  const int64_t held = kWordBits - bit % kWordBits;
  if (held < bits) code |= word_at(zeros, group, bit / kWordBits + 1) << held;
  if (less_one && by_code) ++code;
  return code & mask;
}

// `bits` words that hold 32 times the code, as a row of them repeats.
std::array<uint32_t, 8> repeated(uint32_t code, int bits) {
  std::array<uint32_t, 8> words{};
  for (int i = 0; i < kWordBits; ++i) {
    for (int b = 0; b < bits; ++b) {
      const int bit = i * bits + b;
      words[static_cast<size_t>(bit / kWordBits)] |= (code >> b & 1U) << bit % kWordBits;
    }
  }
  return words;
}

// The first word that is not the midpoint, in the reading that fits better; none where one fits.
struct MidpointCheck {
  bool holds = false;
  int64_t group = 0;
  int64_t word = 0;
};
MidpointCheck check_midpoint(const RawView& zeros, int bits) {
  const uint32_t midpoint = 1U << (bits - 1);
  const std::array<uint32_t, 8> plain = repeated(midpoint, bits);
  const std::array<uint32_t, 8> less_one = repeated(midpoint - 1, bits);
  bool all_plain = true;
  bool all_less_one = true;
  for (int64_t g = 0; g < zeros.rows; ++g) {
    for (int64_t c = 0; c < zeros.columns; ++c) {
      const uint32_t word = word_at(zeros, g, c);
      const auto at = static_cast<size_t>(c % bits);
      all_plain = all_plain && word == plain[at];
      all_less_one = all_less_one && word == less_one[at];
      if (!all_plain && !all_less_one) return {false, g, c};
    }
  }
  return {true};
}

Status plan_zeros(const Scheme& scheme, const Projection& projection, int bits, MatrixPlan* plan) {
  const RawView* zeros = projection.find("qzeros");
  if (zeros == nullptr) {
    if (scheme.symmetric && !scheme.unstated) return {};
    return missing_part(projection, "qzeros", "the zero points of qweight");
  }
  if (zeros->tensor->dtype != RawDtype::kI32) return wrong_dtype(*zeros, "I32");
  const int64_t groups = plan->scale->view.columns;
  if (plan->n * bits % kWordBits != 0 || zeros->rows != groups ||
      zeros->columns != plan->n * bits / kWordBits) {
    return wrong_shape(
        *zeros, fmt::format("[{}, N {} * {} / 32] (groups x whole words)", groups, plan->n, bits));
  }
  if (!scheme.symmetric) {
    plan->quant.zero_kind = PERCH_ZERO_INT;
    return {};
  }
  const MidpointCheck check = check_midpoint(*zeros, bits);
  if (check.holds) return {};
  const auto found = fmt::format("{}: element [{}, {}]: got {:#010x}", print_tensor(*zeros->tensor),
                                 check.group, check.word, word_at(*zeros, check.group, check.word));
  const int midpoint = 1 << (bits - 1);
  if (scheme.unstated) {
    return invalid_argument(
        fmt::format("{}; want all zero points {} (or {}, less one), or a configuration whose "
                    "checkpoint_format tells what they are",
                    found, midpoint, midpoint - 1));
  }
  return invalid_argument(
      fmt::format("{}; want all zero points {} (or all {}, less one), as {} says symmetric", found,
                  midpoint, midpoint - 1, scheme.where));
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& weight = *projection.find("qweight");
  PERCH_RETURN_IF_ERROR(check_method(scheme, projection, weight, "gptq"));
  PERCH_RETURN_IF_ERROR(check_dimensions(weight));
  PERCH_ASSIGN_OR_RETURN(const int bits, bits_of(scheme, projection));
  MatrixPlan result;
  result.format = &kGptqFormat;
  result.variant = scheme.zeros_less_one ? kLessOne : kAsStored;
  result.n = weight.columns;
  result.k = weight.rows * kWordBits / bits;
  result.quant = make_quant(PERCH_TYPE_INT1 + static_cast<uint32_t>(bits) - 1);
  if (weight.rows * kWordBits % bits != 0) {
    return wrong_shape(weight, fmt::format("[K * {} / 32, N] with whole codes", bits));
  }
  const RawView* scales = projection.find("scales");
  if (scales == nullptr) return missing_part(projection, "scales", "the scales of qweight");
  if (!is_float_dtype(scales->tensor->dtype)) return wrong_dtype(*scales, "F16, BF16 or F32");
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, turned(*scales), false, &result));
  PERCH_RETURN_IF_ERROR(plan_zeros(scheme, projection, bits, &result));
  PERCH_RETURN_IF_ERROR(plan_g_idx(scheme, projection, "g_idx", &result));
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
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
  const RawView& stored = *projection.find("qzeros");
  const int bits = type_bits(plan.quant.weight);
  const bool less_one = plan.variant == kLessOne;
  for (int64_t g = 0; g < count; ++g) {
    zeros[g] = static_cast<uint8_t>(zero_code(stored, g0 + g, n, bits, less_one));
  }
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"qweight", "qzeros", "scales", "g_idx", "input_scale", "bias"};
}

}  // namespace

const Format kGptqFormat = {"GPTQ", claims, plan, read_codes, read_zeros, suffixes};

}  // namespace perch
