// The table of formats, and which of them a projection's tensors are.
//
// Formats that are known and not read are refused here by name, so that a user learns what the
// file holds and not which tensor of it was odd.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "canonical/format_parts.h"

namespace perch {
namespace {

// kFp4PairsFormat and kModeloptInt4Format both take U8 weights and tell them apart themselves.
constexpr std::array<const Format*, 9> kFormats = {
    &kFloatFormat,        &kPackQuantizedFormat, &kFp8Format,  &kInt8Format, &kFp4PairsFormat,
    &kModeloptInt4Format, &kMxfp4BlocksFormat,   &kGptqFormat, &kAwqFormat};

struct Recognised {
  std::string_view suffix;
  const char* name;
};

// Tensors that only formats have which are not read.
constexpr std::array kRefused = {
    Recognised{"SCB", "bitsandbytes 8-bit"},
    Recognised{"weight.absmax", "bitsandbytes 4-bit"},
    Recognised{"weight.quant_map", "bitsandbytes 4-bit"},
    Recognised{"weight.quant_state.bitsandbytes__nf4", "bitsandbytes 4-bit (NF4)"},
    Recognised{"weight.quant_state.bitsandbytes__fp4", "bitsandbytes 4-bit (FP4)"},
    Recognised{"trellis", "EXL3"},
};

// Tensors that make their module a quantized one. "scale" is DeepSeek-V4's, and others have one
// too: layout.cc takes it only beside a weight.
constexpr std::array<std::string_view, 9> kQuantized = {
    "weight_packed",  "weight_scale",        "weight_scale_inv", "scale_inv", "scale",
    "weight_scale_2", "weight_global_scale", "qweight",          "blocks"};

Status refused(const Projection& projection, const std::string& name) {
  std::string known;
  for (const Format* format : kFormats)
    known += (known.empty() ? "" : ", ") + std::string(format->name);
  return unsupported(
      fmt::format("{}: got tensors of {}, which Perch does not read; want one of: {}",
                  print_module(projection), name, known));
}

// A qweight that is neither GPTQ nor AWQ GEMM, by the shapes that tell these apart.
Status refused_qweight(const Projection& projection, const RawView& weight) {
  if (weight.tensor->dtype == RawDtype::kI16)
    return refused(projection, "AWQ GEMV_FAST or llm-awq");
  if (weight.tensor->dtype != RawDtype::kI32) return wrong_dtype(weight, "I32");
  const RawView* scales = projection.find("scales");
  if (scales == nullptr) return missing_part(projection, "scales", "the scales of qweight");
  if (scales->rows == weight.rows && scales->columns <= weight.columns)
    return refused(projection, "AWQ GEMV");
  return wrong_shape(
      weight, fmt::format("as many columns as tensor {} {} has (GPTQ), or an eighth "
                          "(AWQ)",
                          quoted_name(scales->tensor->name), print_shape(scales->tensor->shape)));
}

}  // namespace

Result<const Format*> find_format(const Projection& projection) {
  for (const Recognised& row : kRefused) {
    if (projection.find(row.suffix) != nullptr) return refused(projection, row.name);
  }
  for (const Format* format : kFormats) {
    if (format->claims(projection)) return format;
  }
  if (const RawView* weight = projection.find("qweight")) {
    return refused_qweight(projection, *weight);
  }
  if (const RawView* packed = projection.find("weight_packed")) {
    return wrong_dtype(*packed, "I32 (integers) or U8 (FP4 pairs)");
  }
  const RawView* weight = projection.find("weight");
  if (weight == nullptr) return missing_part(projection, "weight", "a weight tensor");
  if (weight->tensor->dtype == RawDtype::kU8) {
    return refused(projection, "bitsandbytes 4-bit or another format of U8 without weight_scale");
  }
  return wrong_dtype(*weight, "F32, F16, BF16, F8_E4M3, F8_E5M2, I8, U8 or F4");
}

bool is_quantized_suffix(std::string_view suffix) {
  const auto refused_one = [&](const Recognised& row) { return row.suffix == suffix; };
  return std::find(kQuantized.begin(), kQuantized.end(), suffix) != kQuantized.end() ||
         std::any_of(kRefused.begin(), kRefused.end(), refused_one);
}

}  // namespace perch
