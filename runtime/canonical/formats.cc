// The table of formats, and those that are recognised and not read.
#include <fmt/format.h>

#include <array>

#include "canonical/format.h"

namespace perch {
namespace {

// The first that claims a projection reads it; none claims what another one reads.
constexpr std::array kFormats = {
    &kFloatFormat,         &kInt8Format, &kFp8Format, &kFp4PairsFormat,     &kMxfp4BlocksFormat,
    &kPackQuantizedFormat, &kGptqFormat, &kAwqFormat, &kModeloptInt4Format,
};

struct Recognised {
  std::string_view suffix;
  const char* name;
};

// Tensors that tell a format which is not read, so that the refusal can name it.
constexpr std::array kRecognised = {
    Recognised{"qweight", "GPTQ or AWQ in an order that is not read (GEMV, planar or Marlin)"},
    Recognised{"SCB", "bitsandbytes 8-bit"},
    Recognised{"weight.absmax", "bitsandbytes 4-bit"},
    Recognised{"trellis", "EXL3"},
    Recognised{"weight_packed", "compressed-tensors with words that are not I32 or U8"},
    Recognised{"weight_scale", "scaled weights of a type that is not read"},
    Recognised{"weight_scale_inv", "scaled weights of a type that is not read"},
    Recognised{"scale_inv", "scaled weights of a type that is not read"},
    Recognised{"scale", "scaled weights of a type that is not read"},
};

// Suffixes that quantized modules have. "scale" is DeepSeek-V4's, and others have one too:
// layout.cc takes it only beside a weight.
constexpr std::array<std::string_view, 12> kMarks = {"weight_packed",
                                                     "weight_scale",
                                                     "weight_scale_inv",
                                                     "scale_inv",
                                                     "scale",
                                                     "weight_scale_2",
                                                     "weight_global_scale",
                                                     "qweight",
                                                     "blocks",
                                                     "SCB",
                                                     "weight.absmax",
                                                     "trellis"};

}  // namespace

Result<const Format*> find_format(const Projection& projection) {
  for (const Format* format : kFormats) {
    if (format->claims(projection)) return format;
  }
  std::string names;
  for (const Format* format : kFormats) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", format->name);
  }
  for (const Recognised& row : kRecognised) {
    const RawView* view = projection.find(row.suffix);
    if (view == nullptr) continue;
    return unsupported(fmt::format("module {}: got tensors of {} ({} is {} {}); want one of: {}",
                                   quoted_name(projection.module), row.name, row.suffix,
                                   raw_dtype_name(view->tensor->dtype),
                                   print_shape(view->tensor->shape), names));
  }
  return invalid_argument(
      fmt::format("module \"{}\": weight: missing; want a weight tensor", projection.module));
}

bool is_quantized_suffix(std::string_view suffix) {
  for (const std::string_view mark : kMarks) {
    if (suffix == mark) return true;
  }
  return false;
}

}  // namespace perch
