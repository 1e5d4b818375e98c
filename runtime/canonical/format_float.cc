// Format: plain f32, f16 or bf16 weights.
//   weight [N,K], optional bias [N]
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/format.h"

namespace perch {
namespace {

bool claims(const Projection& projection) {
  const RawView* weight = projection.find("weight");
  if (weight == nullptr) return false;
  const RawDtype dtype = weight->tensor->dtype;
  return dtype == RawDtype::kF32 || dtype == RawDtype::kF16 || dtype == RawDtype::kBF16;
}

uint32_t weight_type(RawDtype dtype) {
  if (dtype == RawDtype::kF32) return PERCH_TYPE_F32;
  return dtype == RawDtype::kF16 ? PERCH_TYPE_F16 : PERCH_TYPE_BF16;
}

Result<MatrixPlan> plan(const nlohmann::json&, const Projection& projection) {
  const RawView& weight = *projection.find("weight");
  MatrixPlan result;
  result.format = &kFloatFormat;
  result.n = weight.rows;
  result.k = weight.columns;
  result.quant = make_quant(weight_type(weight.tensor->dtype));
  result.act = make_act_none();
  if (const RawView* bias = projection.find("bias")) {
    if (bias->rows != result.n || bias->columns != 1) {
      return wrong_shape(*bias, fmt::format("[{}] (N of {})", result.n, projection.module));
    }
    result.quant.flags |= PERCH_QUANT_HAS_BIAS;
  }
  return result;
}

Status read(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
            const MatrixTarget& target) {
  const RawView& weight = *projection.find("weight");
  const int64_t width = raw_dtype_bits(weight.tensor->dtype) / 8;
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    std::byte* row = target.codes + (n - slice.n0) * target.code_row_bytes;
    if (weight.column_stride == 1) {
      std::memcpy(row, weight.at(n, slice.k0), static_cast<size_t>((slice.k1 - slice.k0) * width));
      continue;
    }
    for (int64_t k = slice.k0; k < slice.k1; ++k) {
      std::memcpy(row + (k - slice.k0) * width, weight.at(n, k), static_cast<size_t>(width));
    }
  }
  return read_bias(projection, slice, target.bias);
}

std::vector<std::string_view> suffixes() { return {"weight", "bias"}; }

}  // namespace

const Format kFloatFormat = {"f32, f16 or bf16 weights", claims, plan, read, suffixes};

}  // namespace perch
