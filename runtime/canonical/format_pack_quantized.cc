// Format: compressed-tensors pack-quantized, 4 and 8 bits.
//   weight_packed I32 [N, ceil(K*b/32)]  codes u = q + 2^(b-1), low bits first along K
//   weight_scale  [N,1] (channel) or [N, K/g] (group), a 16- or 32-bit float
//   weight_zero_point I32 [ceil(N*b/32), G], zp + 2^(b-1), packed along N; asymmetric only
//   weight_shape  [2], the unpacked [N,K]
// A row of little-endian words is the canonical row, byte for byte, and (u - 2^(b-1) - zp) is
// (u - stored zero point): nothing is computed, so nothing is lost.
#include <fmt/format.h>

#include <numeric>

#include "base/checked.h"
#include "base/layer_config.h"
#include "canonical/format.h"
#include "canonical/format_compressed_tensors.h"

namespace perch {
namespace {

bool claims(const Projection& projection) {
  const RawView* packed = projection.find("weight_packed");
  return packed != nullptr && packed->tensor->dtype == RawDtype::kI32;
}

Status wrong_dtype(const RawView& view, const char* want) {
  return invalid_argument(fmt::format("tensor \"{}\": dtype: got {}; want {}", view.tensor->name,
                                      raw_dtype_name(view.tensor->dtype), want));
}

// [N,K] of weight_shape.
Result<std::pair<int64_t, int64_t>> stored_shape(const Projection& projection) {
  const RawView* shape = projection.find("weight_shape");
  if (shape == nullptr) {
    return invalid_argument(
        fmt::format("module \"{}\": weight_shape: missing; want [2] integers", projection.module));
  }
  if (shape->rows * shape->columns != 2) return wrong_shape(*shape, "[2]");
  int64_t size[2];
  for (size_t i = 0; i < 2; ++i) {
    if (shape->tensor->dtype == RawDtype::kI64) {
      std::memcpy(&size[i], shape->tensor->data + i * 8, 8);
    } else if (shape->tensor->dtype == RawDtype::kI32) {
      int32_t narrow = 0;
      std::memcpy(&narrow, shape->tensor->data + i * 4, 4);
      size[i] = narrow;
    } else {
      return wrong_dtype(*shape, "I64 or I32");
    }
  }
  if (size[0] <= 0 || size[1] <= 0 || size[0] > INT32_MAX || size[1] > INT32_MAX) {
    return invalid_argument(fmt::format("tensor \"{}\": got [{}, {}]; want positive sizes",
                                        shape->tensor->name, size[0], size[1]));
  }
  return std::pair(size[0], size[1]);
}

Status check_scheme(const CompressedScheme& scheme, const std::string& module) {
  const bool strategy = scheme.strategy == "group" || scheme.strategy == "channel";
  if (scheme.type == "int" && (scheme.bits == 4 || scheme.bits == 8) && strategy &&
      !scheme.actorder) {
    return {};
  }
  return unsupported(fmt::format(
      "config.json: quantization_config.config_groups.{}: got {} bits {}, strategy {}{} for module "
      "\"{}\"; want 4 or 8 bits int, strategy group or channel, no stored act-order",
      scheme.group, scheme.bits, scheme.type, scheme.strategy,
      scheme.actorder ? ", actorder group" : "", module));
}

Result<uint32_t> scale_type(const RawView& scale) {
  switch (scale.tensor->dtype) {
    case RawDtype::kF32:
      return PERCH_TYPE_F32;
    case RawDtype::kF16:
      return PERCH_TYPE_F16;
    case RawDtype::kBF16:
      return PERCH_TYPE_BF16;
    default:
      return wrong_dtype(scale, "F32, F16 or BF16");
  }
}

Status plan_scale(const Projection& projection, const CompressedScheme& scheme, MatrixPlan* plan) {
  const RawView* scale = projection.find("weight_scale");
  if (scale == nullptr) {
    return invalid_argument(
        fmt::format("module \"{}\": weight_scale: missing; want the scales of weight_packed",
                    projection.module));
  }
  const bool group = scheme.strategy == "group";
  if (group && (scheme.group_size <= 0 || scheme.group_size > INT32_MAX)) {
    return invalid_argument(
        fmt::format("config.json: config_groups.{}.weights.group_size: got {}; "
                    "want a positive size",
                    scheme.group, scheme.group_size));
  }
  const int64_t groups = group ? ceil_div(plan->k, scheme.group_size) : 1;
  if (scale->rows != plan->n || scale->columns != groups) {
    return wrong_shape(
        *scale, fmt::format("[{}, {}] (N of {}, {})", plan->n, groups, projection.module,
                            group ? fmt::format("K {} / group {}", plan->k, scheme.group_size)
                                  : std::string("one per channel")));
  }
  plan->quant.scale_kind = group ? PERCH_SCALE_GROUP : PERCH_SCALE_CHANNEL;
  plan->quant.group_k = group ? static_cast<uint32_t>(scheme.group_size) : 0;
  PERCH_ASSIGN_OR_RETURN(plan->quant.scale_dtype, scale_type(*scale));
  plan->k_unit = std::lcm(group ? scheme.group_size : 1, 8 / scheme.bits);

  const RawView* zero = projection.find("weight_zero_point");
  if (scheme.symmetric && zero != nullptr) {
    return invalid_argument(fmt::format(
        "tensor \"{}\": got a zero point; want none, as config_groups.{} says symmetric: true",
        zero->tensor->name, scheme.group));
  }
  if (scheme.symmetric) return {};
  if (zero == nullptr) {
    return invalid_argument(fmt::format(
        "module \"{}\": weight_zero_point: missing; want it, as config_groups.{} says symmetric: "
        "false",
        projection.module, scheme.group));
  }
  if (zero->tensor->dtype != RawDtype::kI32) return wrong_dtype(*zero, "I32");
  if (zero->rows != ceil_div(plan->n * scheme.bits, 32) || zero->columns != groups) {
    return wrong_shape(*zero, fmt::format("[{}, {}]", ceil_div(plan->n * scheme.bits, 32), groups));
  }
  plan->quant.zero_kind = PERCH_ZERO_INT;
  return {};
}

Result<MatrixPlan> plan(const nlohmann::json& quantization, const Projection& projection) {
  PERCH_ASSIGN_OR_RETURN(const CompressedScheme scheme,
                         find_compressed_scheme(quantization, projection.module));
  PERCH_RETURN_IF_ERROR(check_scheme(scheme, projection.module));
  PERCH_ASSIGN_OR_RETURN(const auto size, stored_shape(projection));
  MatrixPlan result;
  result.format = &kPackQuantizedFormat;
  result.n = size.first;
  result.k = size.second;
  result.quant = make_quant(PERCH_TYPE_INT1 + static_cast<uint32_t>(scheme.bits) - 1);
  result.act = scheme.act;
  const RawView& packed = *projection.find("weight_packed");
  const int64_t words = ceil_div(result.k * scheme.bits, 32);
  if (packed.rows != result.n || packed.columns != words) {
    return wrong_shape(packed, fmt::format("[{}, {}] (weight_shape [{}, {}], {} bits)", result.n,
                                           words, result.n, result.k, scheme.bits));
  }
  PERCH_RETURN_IF_ERROR(plan_scale(projection, scheme, &result));
  if (const RawView* bias = projection.find("bias")) {
    if (bias->rows != result.n || bias->columns != 1) {
      return wrong_shape(*bias, fmt::format("[{}] (N of {})", result.n, projection.module));
    }
    result.quant.flags |= PERCH_QUANT_HAS_BIAS;
  }
  return result;
}

void read_codes(const RawView& packed, int bits, const MatrixSlice& slice,
                const MatrixTarget& target) {
  const int64_t first = slice.k0 * bits / 8;
  const int64_t used_bits = (slice.k1 - slice.k0) * bits;
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    std::byte* row = target.codes + (n - slice.n0) * target.code_row_bytes;
    std::memcpy(row, packed.at(n, 0) + first, static_cast<size_t>(target.code_row_bytes));
    if (used_bits % 8 != 0) {
      row[target.code_row_bytes - 1] &= static_cast<std::byte>((1 << (used_bits % 8)) - 1);
    }
  }
}

void read_zeros(const RawView& zero, int bits, const MatrixSlice& slice, int64_t first_group,
                const MatrixTarget& target) {
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    for (int64_t g = 0; g < target.zero_columns; ++g) {
      uint32_t word = 0;
      std::memcpy(&word, zero.at(n * bits / 32, first_group + g), sizeof(word));
      const uint32_t code = (word >> (n * bits % 32)) & ((1U << bits) - 1);
      target.zero[(n - slice.n0) * target.zero_columns + g] = static_cast<uint8_t>(code);
    }
  }
}

Status read(const Projection& projection, const MatrixPlan& plan, const MatrixSlice& slice,
            const MatrixTarget& target) {
  const int bits = type_bits(plan.quant.weight);
  read_codes(*projection.find("weight_packed"), bits, slice, target);
  const int64_t first_group = plan.quant.group_k == 0 ? 0 : slice.k0 / plan.quant.group_k;
  const RawView& scale = *projection.find("weight_scale");
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    std::memcpy(target.scale + (n - slice.n0) * target.scale_row_bytes, scale.at(n, first_group),
                static_cast<size_t>(target.scale_row_bytes));
  }
  if (target.zero != nullptr) {
    read_zeros(*projection.find("weight_zero_point"), bits, slice, first_group, target);
  }
  return read_bias(projection, slice, target.bias);
}

std::vector<std::string_view> suffixes() {
  return {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "bias"};
}

}  // namespace

const Format kPackQuantizedFormat = {"compressed-tensors pack-quantized (4 and 8 bits)", claims,
                                     plan, read, suffixes};

}  // namespace perch
