// The table of formats, and what the formats share.
#include <fmt/format.h>

#include <array>

#include "canonical/format.h"
#include "numeric/float_formats.h"

namespace perch {
namespace {

constexpr std::array<const Format*, 2> kFormats = {&kFloatFormat, &kPackQuantizedFormat};

struct Recognised {
  std::string_view suffix;
  const char* name;
};

// Tensors that tell a format which is recognised and not read, so that the refusal can name it.
constexpr std::array kRecognised = {
    Recognised{"qweight", "GPTQ or AWQ"},
    Recognised{"blocks", "MXFP4 blocks (gpt-oss)"},
    Recognised{"weight_global_scale", "compressed-tensors nvfp4-pack-quantized"},
    Recognised{"weight_scale_2", "modelopt NVFP4"},
    Recognised{"weight_scale_inv", "FP8 blocks (weight_scale_inv)"},
    Recognised{"scale_inv", "FP8 blocks (scale_inv)"},
    Recognised{"SCB", "bitsandbytes 8-bit"},
    Recognised{"weight.absmax", "bitsandbytes 4-bit"},
    Recognised{"trellis", "EXL3"},
    Recognised{"weight_scale", "weights with weight_scale but not weight_packed"},
    Recognised{"scale", "weights with a .scale tensor"},
};

}  // namespace

Result<const Format*> find_format(const Projection& projection) {
  for (const Format* format : kFormats) {
    if (format->claims(projection)) return format;
  }
  for (const Recognised& row : kRecognised) {
    if (projection.find(row.suffix) != nullptr) {
      return unsupported(fmt::format("module \"{}\": got tensors of {}; want one of: {}, {}",
                                     projection.module, row.name, kFloatFormat.name,
                                     kPackQuantizedFormat.name));
    }
  }
  return invalid_argument(
      fmt::format("module \"{}\": weight: missing; want a weight tensor", projection.module));
}

bool is_quantized_suffix(std::string_view suffix) {
  if (suffix == "weight_packed") return true;
  for (const Recognised& row : kRecognised) {
    if (suffix == row.suffix) return true;
  }
  return false;
}

Status wrong_shape(const RawView& view, const std::string& want) {
  return invalid_argument(fmt::format("tensor \"{}\": shape: got {}; want {}", view.tensor->name,
                                      print_shape(view.tensor->shape), want));
}

Status read_bias(const Projection& projection, const MatrixSlice& slice, float* bias) {
  const RawView* view = projection.find("bias");
  if (view == nullptr || bias == nullptr) return {};
  for (int64_t n = slice.n0; n < slice.n1; ++n) {
    const std::byte* element = view->at(n, 0);
    uint16_t half = 0;
    switch (view->tensor->dtype) {
      case RawDtype::kF32:
        std::memcpy(bias, element, sizeof(float));
        break;
      case RawDtype::kBF16:
        std::memcpy(&half, element, sizeof(half));
        *bias = numeric::f32_from_bf16(half);
        break;
      case RawDtype::kF16:
        std::memcpy(&half, element, sizeof(half));
        *bias = numeric::f32_from_f16(half);
        break;
      default:
        return invalid_argument(fmt::format("tensor \"{}\": dtype: got {}; want F32, F16 or BF16",
                                            view->tensor->name,
                                            raw_dtype_name(view->tensor->dtype)));
    }
    ++bias;
  }
  return {};
}

}  // namespace perch
