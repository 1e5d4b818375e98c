// Format: compressed-tensors pack-quantized, integers of 1 to 8 bits.
//   weight_packed I32 [N, words]  codes u = q + 2^(b-1), low bits first along K
//   weight_scale  by tensor, channel or group, a 16- or 32-bit float
//   weight_zero_point  I32 [ceil(N*b/32), G], zp + 2^(b-1), packed along N; or I8 of the scale's
//   shape weight_shape  [2], the unpacked [N,K]; weight_g_idx I32 [K] with act-order "group"
// Two packings have the same names: since 0.18.0 codes are a dense stream of bits, before that each
// word holds floor(32/b) whole ones. For 1, 2, 4 and 8 bits they are one; for the others the number
// of words tells, and where it does not the version does.
#include <fmt/format.h>

#include <cstdlib>

#include "base/checked.h"
#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"
#include "numeric/packed_codes.h"

namespace perch {
namespace {

bool claims(const Projection& projection) {
  const RawView* packed = projection.find("weight_packed");
  return packed != nullptr && packed->tensor->dtype == RawDtype::kI32;
}

// [N,K] of weight_shape.
Result<std::pair<int64_t, int64_t>> stored_shape(const Projection& projection) {
  const RawView* shape = projection.find("weight_shape");
  if (shape == nullptr) return missing_part(projection, "weight_shape", "[2] integers");
  if (shape->rows * shape->columns != 2) return wrong_shape(*shape, "[2]");
  int64_t size[2];
  for (int64_t i = 0; i < 2; ++i) {
    const bool wide = shape->tensor->dtype == RawDtype::kI64;
    if (!wide && shape->tensor->dtype != RawDtype::kI32) return wrong_dtype(*shape, "I64 or I32");
    int32_t narrow = 0;
    std::memcpy(wide ? static_cast<void*>(&size[i]) : &narrow,
                shape->tensor->data + i * (wide ? 8 : 4), wide ? 8 : 4);
    if (!wide) size[i] = narrow;
  }
  return std::pair(size[0], size[1]);
}

int64_t floor_words(int64_t k, int64_t bits) { return ceil_div(k, 32 / bits); }
int64_t dense_words(int64_t k, int64_t bits) { return ceil_div(k * bits, 32); }

// Whether words hold whole codes only. "0.17.1" and earlier wrote so.
bool is_before_dense(const std::string& version) {
  char* rest = nullptr;
  const long major = std::strtol(version.c_str(), &rest, 10);
  const long minor = *rest == '.' ? std::strtol(rest + 1, nullptr, 10) : 0;
  return major == 0 && minor < 18;
}

// The bits that a code takes along a row, counted from the row's first word.
Status check_packing(const Scheme& scheme, const RawView& packed, int64_t bits, int64_t k) {
  const int64_t dense = dense_words(k, bits);
  const int64_t floor = floor_words(k, bits);
  if (packed.columns != dense && packed.columns != floor) {
    return wrong_shape(
        packed, fmt::format("[N, {}]{} (K {}, {} bits)", dense,
                            floor == dense ? "" : fmt::format(" or [N, {}]", floor), k, bits));
  }
  if (dense == floor && 32 % bits != 0 && k > 32 / bits && scheme.version.empty()) {
    return wrong_scheme(
        scheme, Projection{packed.tensor->name, 0, {}},
        fmt::format("no version, and {} words for {} codes of {} bits", packed.columns, k, bits),
        "the version of compressed-tensors that wrote it: two packings fit");
  }
  return {};
}

bool is_floor_packed(const Scheme& scheme, const RawView& packed, int64_t bits, int64_t k) {
  if (32 % bits == 0) return false;
  const int64_t dense = dense_words(k, bits);
  if (dense != floor_words(k, bits)) return packed.columns != dense;
  return is_before_dense(scheme.version);
}

Status plan_zero(const Scheme& scheme, const Projection& projection, MatrixPlan* plan) {
  const RawView* zero = projection.find("weight_zero_point");
  if (scheme.unstated && zero == nullptr) return {};
  if (scheme.symmetric && !scheme.unstated) {
    if (zero == nullptr) return {};
    return wrong_scheme(scheme, projection,
                        fmt::format("tensor {}", quoted_name(zero->tensor->name)),
                        "no zero points, as symmetric is true");
  }
  if (zero == nullptr) {
    return missing_part(projection, "weight_zero_point",
                        fmt::format("it, as {} says symmetric: false", scheme.where));
  }
  const RawView& scale = plan->scale->view;
  const int64_t bits = type_bits(plan->quant.weight);
  const bool packed = zero->tensor->dtype == RawDtype::kI32;
  if (!packed && zero->tensor->dtype != RawDtype::kI8) return wrong_dtype(*zero, "I32 or I8");
  const int64_t rows = packed ? ceil_div(plan->n * bits, 32) : scale.rows;
  if (zero->rows != rows || zero->columns != scale.columns) {
    return wrong_shape(*zero, fmt::format("[{}, {}]", rows, scale.columns));
  }
  widen_to_channel(plan);
  plan->quant.zero_kind = PERCH_ZERO_INT;
  return {};
}

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& packed = *projection.find("weight_packed");
  PERCH_RETURN_IF_ERROR(check_method(scheme, projection, packed, "compressed-tensors"));
  PERCH_ASSIGN_OR_RETURN(const auto size, stored_shape(projection));
  MatrixPlan result;
  result.format = &kPackQuantizedFormat;
  PERCH_RETURN_IF_ERROR(check_dimensions(packed));
  PERCH_RETURN_IF_ERROR(set_size(packed, size.first, size.second, &result));
  // Without a configuration the words tell the width, where whole words are filled.
  const int64_t bits = scheme.bits != 0 ? scheme.bits : packed.columns * 32 / result.k;
  if (bits < 1 || bits > 8 || scheme.is_float) {
    return wrong_scheme(scheme, projection,
                        fmt::format("{} bits {}", bits, scheme.is_float ? "float" : "int"),
                        "1 to 8 bits int, as weight_packed is I32");
  }
  result.quant = make_quant(PERCH_TYPE_INT1 + static_cast<uint32_t>(bits) - 1);
  if (packed.rows != result.n) {
    return wrong_shape(packed, fmt::format("[{}, {}]", result.n, dense_words(result.k, bits)));
  }
  PERCH_RETURN_IF_ERROR(check_packing(scheme, packed, bits, result.k));
  if (is_floor_packed(scheme, packed, bits, result.k)) result.variant = 1;
  const RawView* scale = projection.find("weight_scale");
  if (scale == nullptr) return missing_part(projection, "weight_scale", "its scales");
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, *scale, false, &result));
  if (result.quant.scale_kind == PERCH_SCALE_BLOCK) {
    return wrong_scheme(scheme, projection, "packed integers in blocks",
                        "scales by tensor, channel or group");
  }
  PERCH_RETURN_IF_ERROR(plan_zero(scheme, projection, &result));
  PERCH_RETURN_IF_ERROR(plan_g_idx(scheme, projection, "weight_g_idx", &result));
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan& plan, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  const RawView& packed = *projection.find("weight_packed");
  const int bits = type_bits(plan.quant.weight);
  if (plan.variant == 0) {
    copy_code_rows(packed, bits, slice, codes, row_bytes);
    return {};
  }
  const int64_t per_word = 32 / bits;
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    auto* row = reinterpret_cast<uint8_t*>(codes + (n - slice.n0) * row_bytes);
    for (int64_t k = slice.k0; k < slice.k1; ++k) {
      const uint32_t code = word_at(packed, n, k / per_word) >> (k % per_word * bits);
      numeric::put_code(row, k - slice.k0, bits, code);
    }
  }
  return {};
}

Status read_zeros(const Projection& projection, const MatrixPlan& plan, int64_t n, int64_t g0,
                  int64_t count, uint8_t* zeros) {
  const RawView& zero = *projection.find("weight_zero_point");
  const int bits = type_bits(plan.quant.weight);
  const uint32_t mask = (1U << bits) - 1;
  for (int64_t g = 0; g < count; ++g) {
    if (zero.tensor->dtype == RawDtype::kI8) {
      const int64_t row = zero.rows == plan.n ? n : 0;
      const auto signed_zero = static_cast<int8_t>(*zero.at(row, g0 + g));
      zeros[g] = static_cast<uint8_t>((signed_zero + (1 << (bits - 1))) & static_cast<int>(mask));
      continue;
    }
    // A dense stream of bits down the column: a code may lie over two words.
    const int64_t bit = n * bits;
    uint64_t window = word_at(zero, bit / 32, g0 + g);
    if (bit % 32 + bits > 32) window |= uint64_t{word_at(zero, bit / 32 + 1, g0 + g)} << 32;
    zeros[g] = static_cast<uint8_t>(static_cast<uint32_t>(window >> (bit % 32)) & mask);
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
