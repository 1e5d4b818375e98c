// Format: compressed-tensors pack-quantized, 1 to 8 bits.
//   weight_packed     I32, codes u = q + 2^(b-1), low bits first along K, in one of two packings:
//                     dense [N, ceil(K*b/32)]: code i at bit b*i of the row (0.18.0 and later)
//                     by word [N, ceil(K/(32/b))]: 32/b codes a word, its other bits unused
//   weight_scale      [1], [N,1] or [N, K/g]
//   weight_zero_point asymmetric only: I32 [as weight_packed has it, of N; G], zp + 2^(b-1), packed
//                     along N; or I8 zp, shaped like the scale
//   weight_shape      [2], the unpacked [N,K]
//   weight_g_idx      I32 [K], the group of each column; under act-order
// The two packings have the same names and are the same for 1, 2, 4 and 8 bits; else the number of
// columns tells them apart, and where it does not, the package's version. A dense row is the
// canonical row, byte for byte, and (u - 2^(b-1) - zp) is (u - stored zero point).
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"
#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"
#include "numeric/packed_codes.h"

namespace perch {
namespace {

constexpr int kWordBits = 32;
constexpr int kBitsMax = 8;

// MatrixPlan::variant.
enum Layout : uint32_t { kDense = 0, kByWord = 1 };

struct Packing {
  bool dense = true;
  int bits = 0;

  int64_t codes_per_word() const { return kWordBits / bits; }
  int64_t words(int64_t codes) const {
    return dense ? ceil_div(codes * bits, kWordBits) : ceil_div(codes, codes_per_word());
  }
};

Packing packing_of(const MatrixPlan& plan) {
  return {plan.variant == kDense, type_bits(plan.quant.weight)};
}

bool claims(const Projection& projection) {
  const RawView* packed = projection.find("weight_packed");
  return packed != nullptr && packed->tensor->dtype == RawDtype::kI32;
}

// [N,K] of weight_shape.
Result<std::pair<int64_t, int64_t>> stored_shape(const Projection& projection) {
  const RawView* shape = projection.find("weight_shape");
  if (shape == nullptr) return missing_part(projection, "weight_shape", "[2] integers, N and K");
  if (shape->rows != 2 || shape->columns != 1) return wrong_shape(*shape, "[2]");
  const bool wide = shape->tensor->dtype == RawDtype::kI64;
  if (!wide && shape->tensor->dtype != RawDtype::kI32) return wrong_dtype(*shape, "I64 or I32");
  int64_t size[2];
  for (int i = 0; i < 2; ++i) {
    if (wide) {
      std::memcpy(&size[i], shape->at(i, 0), sizeof(int64_t));
    } else {
      size[i] = static_cast<int32_t>(word_at(*shape, i, 0));
    }
  }
  if (size[0] <= 0 || size[1] <= 0 || size[0] > INT32_MAX || size[1] > INT32_MAX) {
    return invalid_argument(fmt::format("{}: got [{}, {}]; want positive sizes",
                                        print_tensor(*shape->tensor), size[0], size[1]));
  }
  return std::pair(size[0], size[1]);
}

// Where nothing is stated: the one width that gives so many columns.
Result<int> bits_of(const Scheme& scheme, const Projection& projection, int64_t k) {
  const RawView& packed = *projection.find("weight_packed");
  PERCH_RETURN_IF_ERROR(check_number(scheme, projection, packed, {}));
  if (!scheme.unstated) {
    if (scheme.bits < 1 || scheme.bits > kBitsMax) {
      return wrong_scheme(scheme, projection, fmt::format("{} bits", scheme.bits), "1 to 8 bits");
    }
    PERCH_RETURN_IF_ERROR(check_number(scheme, projection, packed, {scheme.bits, false}));
    return static_cast<int>(scheme.bits);
  }
  int found = 0;
  for (int bits = 1; bits <= kBitsMax; ++bits) {
    const bool fits = Packing{true, bits}.words(k) == packed.columns ||
                      Packing{false, bits}.words(k) == packed.columns;
    if (!fits) continue;
    if (found != 0) {
      return invalid_argument(fmt::format(
          "{}: got no quantization_config, and {} columns for K {} fit {} and {} bits; want "
          "the configuration",
          print_module(projection), packed.columns, k, found, bits));
    }
    found = bits;
  }
  if (found == 0) return wrong_shape(packed, fmt::format("columns for 1 to 8 bits of K {}", k));
  return found;
}

// "0.18.0", "0.17.1.a20260612": 0.18 packs densely; 0.17.1 and all before it by word.
enum class Age { kByWord, kDense, kUnknown };
Age age_of(const std::string& version) {
  int part[3] = {0, 0, 0};
  const char* at = version.c_str();
  for (int& number : part) {
    char* end = nullptr;
    number = static_cast<int>(std::strtol(at, &end, 10));
    if (end == at) return Age::kUnknown;
    at = *end == '.' ? end + 1 : end;
    if (*end != '.' && &number != &part[2]) return Age::kUnknown;
  }
  if (part[0] > 0 || part[1] >= 18) return Age::kDense;
  const bool by_word = part[0] == 0 && (part[1] < 17 || (part[1] == 17 && part[2] <= 1));
  return by_word ? Age::kByWord : Age::kUnknown;
}

// `packed_zero`: zero points that are packed along N, or null.
Result<Packing> find_packing(const Scheme& scheme, const RawView& packed,
                             const RawView* packed_zero, const MatrixPlan& plan, int bits) {
  const auto fits = [&](const RawView* view, int64_t stored, int64_t codes, bool dense) {
    return view == nullptr || stored == Packing{dense, bits}.words(codes);
  };
  const Packing dense{true, bits};
  const Packing by_word{false, bits};
  const bool weight_dense = fits(&packed, packed.columns, plan.k, true);
  const bool weight_by_word = fits(&packed, packed.columns, plan.k, false);
  if (packed.rows != plan.n || (!weight_dense && !weight_by_word)) {
    const int64_t words = dense.words(plan.k);
    const int64_t others = by_word.words(plan.k);
    return wrong_shape(
        packed, fmt::format("[{}, {}]{} (weight_shape [{}, {}], {} bits)", plan.n, words,
                            others == words ? "" : fmt::format(" or [{}, {}]", plan.n, others),
                            plan.n, plan.k, bits));
  }
  const int64_t zero_rows = packed_zero == nullptr ? 0 : packed_zero->rows;
  const bool is_dense = weight_dense && fits(packed_zero, zero_rows, plan.n, true);
  const bool is_by_word = weight_by_word && fits(packed_zero, zero_rows, plan.n, false);
  if (!is_dense && !is_by_word) {
    return wrong_shape(*packed_zero,
                       fmt::format("{} rows (N {} of {} bits, packed as tensor {} is)",
                                   (weight_dense ? dense : by_word).words(plan.n), plan.n, bits,
                                   quoted_name(packed.tensor->name)));
  }
  const int64_t longest = packed_zero == nullptr ? plan.k : std::max(plan.k, plan.n);
  const bool alike = kWordBits % bits == 0 || longest <= dense.codes_per_word();
  if (is_dense != is_by_word || alike) return Packing{is_dense, bits};
  const Age age = age_of(scheme.version);
  if (age != Age::kUnknown) return Packing{age == Age::kDense, bits};
  return invalid_argument(fmt::format(
      "{}: got {}, which fits two packings of {} bits with different codes, and version {}; want "
      "quantization_config.version, up to 0.17.1 or from 0.18.0",
      print_tensor(*packed.tensor), print_shape(packed.tensor->shape), bits,
      quoted_name(scheme.version)));
}

// Zero points of a byte each must be codes once the midpoint is added.
Status check_byte_zeros(const RawView& zero, int bits) {
  const int midpoint = 1 << (bits - 1);
  for (int64_t r = 0; r < zero.rows; ++r) {
    for (int64_t c = 0; c < zero.columns; ++c) {
      const auto value = std::to_integer<int8_t>(*zero.at(r, c));
      if (value >= -midpoint && value < midpoint) continue;
      return invalid_argument(fmt::format("{}: element [{}, {}]: got {}; want {} to {}",
                                          print_tensor(*zero.tensor), r, c, value, -midpoint,
                                          midpoint - 1));
    }
  }
  return {};
}

Status plan_zeros(const Scheme& scheme, const Projection& projection, int bits, MatrixPlan* plan) {
  const RawView* zero = projection.find("weight_zero_point");
  if (zero == nullptr) {
    if (scheme.symmetric) return {};
    return missing_part(projection, "weight_zero_point",
                        fmt::format("it, as {} says asymmetric", scheme.where));
  }
  if (scheme.symmetric && !scheme.unstated) {
    return wrong_scheme(
        scheme, projection, "symmetric weights",
        fmt::format("asymmetric, as there is a tensor {}", quoted_name(zero->tensor->name)));
  }
  if (plan->quant.scale_kind == PERCH_SCALE_BLOCK) {
    return unsupported(
        fmt::format("{}: got zero points of blocks; want them by group, "
                    "row or tensor",
                    print_tensor(*zero->tensor)));
  }
  const RawView& scale = plan->scale->view;
  const bool bytes = zero->tensor->dtype == RawDtype::kI8;
  const bool per_row = plan->quant.scale_kind != PERCH_SCALE_TENSOR;
  if (!bytes && zero->tensor->dtype != RawDtype::kI32) return wrong_dtype(*zero, "I32 or I8");
  if (!bytes && !per_row) return wrong_dtype(*zero, "I8, as there is one scale");
  if (zero->columns != scale.columns || (bytes && zero->rows != scale.rows)) {
    return wrong_shape(
        *zero, fmt::format("[{}, {}], as tensor {} is [{}, {}]",
                           bytes ? fmt::format("{}", scale.rows) : "N packed", scale.columns,
                           quoted_name(scale.tensor->name), scale.rows, scale.columns));
  }
  if (bytes) PERCH_RETURN_IF_ERROR(check_byte_zeros(*zero, bits));
  plan->quant.zero_kind = PERCH_ZERO_INT;
  widen_to_channel(plan);
  return {};
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& packed = *projection.find("weight_packed");
  PERCH_RETURN_IF_ERROR(check_method(scheme, projection, packed, "compressed-tensors"));
  PERCH_RETURN_IF_ERROR(check_dimensions(packed));
  PERCH_ASSIGN_OR_RETURN(const auto size, stored_shape(projection));
  MatrixPlan result;
  result.format = &kPackQuantizedFormat;
  result.n = size.first;
  result.k = size.second;
  PERCH_ASSIGN_OR_RETURN(const int bits, bits_of(scheme, projection, result.k));
  result.quant = make_quant(PERCH_TYPE_INT1 + static_cast<uint32_t>(bits) - 1);
  const RawView* scale = projection.find("weight_scale");
  if (scale == nullptr) {
    return missing_part(projection, "weight_scale", "the scales of weight_packed");
  }
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, *scale, false, &result));
  PERCH_RETURN_IF_ERROR(plan_zeros(scheme, projection, bits, &result));
  const RawView* zero = projection.find("weight_zero_point");
  const bool packed_zero = zero != nullptr && zero->tensor->dtype == RawDtype::kI32;
  PERCH_ASSIGN_OR_RETURN(const Packing packing,
                         find_packing(scheme, packed, packed_zero ? zero : nullptr, result, bits));
  result.variant = packing.dense ? kDense : kByWord;
  PERCH_RETURN_IF_ERROR(plan_g_idx(scheme, projection, "weight_g_idx", &result));
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

void read_by_word(const RawView& packed, const Packing& packing, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    auto* row = reinterpret_cast<uint8_t*>(codes + (n - slice.n0) * row_bytes);
    for (int64_t k = slice.k0; k < slice.k1;) {
      const int64_t place = k % packing.codes_per_word();
      uint32_t word = word_at(packed, n, k / packing.codes_per_word()) >> place * packing.bits;
      for (int64_t i = place; i < packing.codes_per_word() && k < slice.k1; ++i, ++k) {
        numeric::put_code(row, k - slice.k0, packing.bits, word);
        word >>= packing.bits;
      }
    }
  }
}

Status read_codes(const Projection& projection, const MatrixPlan& plan, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  const RawView& packed = *projection.find("weight_packed");
  const Packing packing = packing_of(plan);
  if (packing.dense) {
    copy_code_rows(packed, packing.bits, slice, codes, row_bytes);
  } else {
    read_by_word(packed, packing, slice, codes, row_bytes);
  }
  return {};
}

Status read_zeros(const Projection& projection, const MatrixPlan& plan, int64_t n, int64_t g0,
                  int64_t count, uint8_t* zeros) {
  const RawView& zero = *projection.find("weight_zero_point");
  const Packing packing = packing_of(plan);
  const uint32_t mask = (1U << packing.bits) - 1;
  const int64_t bit = packing.dense ? n * packing.bits
                                    : n / packing.codes_per_word() * kWordBits +
                                          n % packing.codes_per_word() * packing.bits;
  for (int64_t g = g0; g < g0 + count; ++g) {
    uint32_t code = 0;
    if (zero.tensor->dtype == RawDtype::kI8) {
      const auto stored = std::to_integer<uint32_t>(*zero.at(n / plan.scale->group_n, g));
      code = stored + (1U << (packing.bits - 1));
    } else {
      code = word_at(zero, bit / kWordBits, g) >> bit % kWordBits;
      const int64_t held = kWordBits - bit % kWordBits;
      if (held < packing.bits) code |= word_at(zero, bit / kWordBits + 1, g) << held;
    }
    zeros[g - g0] = static_cast<uint8_t>(code & mask);
  }
  return {};
}

std::vector<std::string_view> suffixes() {
  return {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
          "input_scale",   "bias"};
}

}  // namespace

const Format kPackQuantizedFormat = {
    "compressed-tensors pack-quantized", claims, plan, read_codes, read_zeros, suffixes};

}  // namespace perch
