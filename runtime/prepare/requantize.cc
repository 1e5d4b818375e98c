#include "prepare/requantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "numeric/decode.h"

namespace perch {
namespace {

using numeric::MatrixTensors;

// The value that is left of `value` in that type.
float rounded(uint32_t type, float value) {
  std::byte code[sizeof(float)];
  numeric::store_float(type, value, code, 0);
  return numeric::load_float(type, code, 0);
}

bool is_integer(uint32_t type) { return type >= PERCH_TYPE_INT1 && type <= PERCH_TYPE_INT8; }

float largest_value(uint32_t type) {
  float largest = 0.0F;
  const int bits = type_bits(type);
  const float* values = numeric::code_values(type);
  for (int code = 0; code < (1 << bits); ++code) {
    if (std::isfinite(values[code])) largest = std::max(largest, values[code]);
  }
  return largest;
}

uint32_t float_code(uint32_t type, float value) {
  switch (type) {
    case PERCH_TYPE_E4M3FN:
      return numeric::e4m3_from_f32(std::clamp(value, -448.0F, 448.0F));
    case PERCH_TYPE_E5M2:
      return numeric::e5m2_from_f32(std::clamp(value, -57344.0F, 57344.0F));
    case PERCH_TYPE_E3M2:
      return numeric::e3m2_from_f32(value);
    case PERCH_TYPE_E2M3:
      return numeric::e2m3_from_f32(value);
    default:
      return numeric::e2m1_from_f32(value);
  }
}

// Smallest and largest of a set of weights that share a scale.
struct Extent {
  float low = 0.0F;
  float high = 0.0F;
  void add(float value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  float absmax() const { return std::max(-low, high); }
};

struct Step {
  float scale = 1.0F;
  uint8_t zero = 0;
};

Step integer_step(const perch_quant& quant, const Extent& extent) {
  const int bits = type_bits(quant.weight);
  Step step;
  if (extent.absmax() == 0.0F) {
    if (quant.zero_kind == PERCH_ZERO_MIDPOINT) step.zero = static_cast<uint8_t>(1 << (bits - 1));
    return step;
  }
  if (quant.zero_kind == PERCH_ZERO_MIDPOINT) {
    const float top = static_cast<float>((1 << (bits - 1)) - 1);
    const bool low_side = -extent.low >= extent.high;
    const float other = low_side ? extent.high : -extent.low;
    const float size = std::max(extent.absmax() / (top + 1.499F), other / (top + 0.499F));
    step.scale = rounded(quant.scale_dtype, low_side ? size : -size);
    step.zero = static_cast<uint8_t>(1 << (bits - 1));
    return step;
  }
  const float codes = static_cast<float>((1 << bits) - 1);
  step.scale = rounded(quant.scale_dtype, (extent.high - extent.low) / codes);
  if (step.scale == 0.0F) step.scale = 1.0F;
  step.zero =
      static_cast<uint8_t>(std::clamp(std::nearbyint(-extent.low / step.scale), 0.0F, codes));
  return step;
}

// scale2 is 1 unless the format has one.
Step float_step(const perch_quant& quant, const Extent& extent, float scale2) {
  Step step;
  if (extent.absmax() == 0.0F) return step;
  const float wanted = extent.absmax() / (largest_value(quant.weight) * scale2);
  step.scale = rounded(quant.scale_dtype, wanted);
  // A group far below the matrix' largest: its scale rounds to 0 and so do its weights.
  return step;
}

std::byte* data_of(CanonicalExpert* expert, const std::string& name) {
  CanonicalTensor* tensor = expert->find(name);
  return tensor == nullptr ? nullptr : tensor->data.data();
}

// One matrix on its way from one format to the other.
struct Conversion {
  const perch_quant& from;
  const perch_quant& to;
  int64_t n;
  int64_t k;
  std::vector<float> values;  // [n,k]
};

Conversion decode(const CanonicalExpert& expert, const std::string& name, const perch_quant& from,
                  const perch_quant& to, std::pair<int64_t, int64_t> size, bool gated) {
  Conversion result{from, to, size.first, size.second, {}};
  const auto find = [&](const char* suffix) -> const void* {
    const CanonicalTensor* tensor = expert.find(name + suffix);
    return tensor == nullptr ? nullptr : tensor->data.data();
  };
  MatrixTensors tensors = numeric::matrix_tensors(find);
  const int32_t* g_idx = tensors.g_idx;
  result.values.resize(static_cast<size_t>(result.n * result.k));
  for (int64_t row = 0; row < result.n; ++row) {
    const bool up = gated && row >= result.n / 2;
    tensors.g_idx = g_idx == nullptr ? nullptr : g_idx + (up ? result.k : 0);
    numeric::decode_weight_row(from, tensors, result.k, row, result.values.data() + row * result.k);
  }
  return result;
}

void measure(float weight, float kept, RequantError* error) {
  const double lost = double{weight} - double{kept};
  error->sum_squares += double{weight} * double{weight};
  error->sum_error_squares += lost * lost;
  error->largest = std::max(error->largest, std::abs(lost));
}

// 16- and 32-bit targets: one rounding each.
void encode_floats(const Conversion& matrix, std::byte* codes, RequantError* error) {
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    numeric::store_float(matrix.to.weight, matrix.values[i], codes, at);
    measure(matrix.values[i], numeric::load_float(matrix.to.weight, codes, at), error);
  }
}

// One cell: its weights share a scale.
void encode_cell(const Conversion& matrix, const Step& step, float scale2,
                 std::pair<int64_t, int64_t> rows, std::pair<int64_t, int64_t> columns,
                 uint8_t* codes, RequantError* error) {
  const int bits = type_bits(matrix.to.weight);
  const int64_t row_bytes = numeric::packed_row_bytes(matrix.k, bits);
  const float scale = step.scale * scale2;
  const float* table = numeric::code_values(matrix.to.weight);
  for (int64_t n = rows.first; n < rows.second; ++n) {
    for (int64_t k = columns.first; k < columns.second; ++k) {
      const float weight = matrix.values[static_cast<size_t>(n * matrix.k + k)];
      const float ratio = scale == 0.0F ? 0.0F : weight / scale;
      uint32_t code = 0;
      float kept = 0.0F;
      if (is_integer(matrix.to.weight)) {
        const float last = static_cast<float>((1 << bits) - 1);
        const float zero = static_cast<float>(step.zero);
        const float whole = std::clamp(std::nearbyint(ratio) + zero, 0.0F, last);
        code = static_cast<uint32_t>(whole);
        kept = (whole - zero) * scale;
      } else {
        code = float_code(matrix.to.weight, ratio);
        kept = table[code] * scale;
      }
      numeric::put_code(codes + n * row_bytes, k, bits, code);
      measure(weight, kept, error);
    }
  }
}

void encode(const Conversion& matrix, const std::string& name, CanonicalExpert* out,
            RequantError* error) {
  if (type_bits(matrix.to.weight) > 8) return encode_floats(matrix, data_of(out, name), error);
  float scale2 = 1.0F;
  if (matrix.to.scale2_kind == PERCH_SCALE2_TENSOR) {
    Extent whole;
    for (const float value : matrix.values) whole.add(value);
    const float range = largest_value(matrix.to.weight) * 448.0F;
    if (whole.absmax() > 0.0F) scale2 = whole.absmax() / range;
    std::memcpy(data_of(out, name + ".scale2"), &scale2, sizeof(scale2));
  }
  const ScaleCells cells = scale_cells(matrix.to, matrix.n, matrix.k);
  auto* codes = reinterpret_cast<uint8_t*>(data_of(out, name));
  std::byte* scales = data_of(out, name + ".scale");
  auto* zeros = reinterpret_cast<uint8_t*>(data_of(out, name + ".zero"));
  for (int64_t r = 0; r < cells.rows; ++r) {
    const std::pair rows(r * cells.group_n, std::min(matrix.n, (r + 1) * cells.group_n));
    for (int64_t c = 0; c < cells.columns; ++c) {
      const std::pair columns(c * cells.group_k, std::min(matrix.k, (c + 1) * cells.group_k));
      Extent extent;
      for (int64_t n = rows.first; n < rows.second; ++n) {
        for (int64_t k = columns.first; k < columns.second; ++k) {
          extent.add(matrix.values[static_cast<size_t>(n * matrix.k + k)]);
        }
      }
      const Step step = is_integer(matrix.to.weight) ? integer_step(matrix.to, extent)
                                                     : float_step(matrix.to, extent, scale2);
      numeric::store_float(matrix.to.scale_dtype, step.scale, scales, r * cells.columns + c);
      if (zeros != nullptr) zeros[r * cells.columns + c] = step.zero;
      encode_cell(matrix, step, scale2, rows, columns, codes, error);
    }
  }
}

bool stays(const std::string& name) {
  for (const char* suffix : {".bias", ".pre_scale", ".input_scale"}) {
    if (name.ends_with(suffix)) return true;
  }
  return false;
}

}  // namespace

double RequantError::relative() const {
  return sum_squares > 0 ? std::sqrt(sum_error_squares / sum_squares) : 0.0;
}

Result<CanonicalExpert> requantize(const CanonicalExpert& expert, const LayerConfig& from,
                                   const LayerConfig& to, RequantError* error) {
  CanonicalExpert result;
  result.bytes_read = expert.bytes_read;
  for (TensorSpec& spec : tensor_specs(to)) {
    const auto bytes = static_cast<size_t>(spec.bytes());
    CanonicalTensor tensor{std::move(spec), std::vector<std::byte>(bytes)};
    if (stays(tensor.spec.name)) tensor.data = expert.find(tensor.spec.name)->data;
    result.tensors.push_back(std::move(tensor));
  }
  const auto convert = [&](const char* name, int index, const perch_quant& old_format,
                           const perch_quant& new_format, bool gated) -> Status {
    const Conversion matrix = decode(expert, name, old_format, new_format,
                                     {from.rows(index), from.columns(index)}, gated);
    for (const float value : matrix.values) {
      if (!std::isfinite(value)) {
        return invalid_argument(
            fmt::format("layer \"{}\": requant: {}: got a weight that is {}; want numbers",
                        from.name(), name, value));
      }
    }
    encode(matrix, name, &result, error);
    return {};
  };
  if (!from.is_moe()) {
    PERCH_RETURN_IF_ERROR(convert("w", 0, from.first(), to.first(), false));
    return result;
  }
  const bool gated = perch_activation_is_gated(from.moe().activation) != 0;
  PERCH_RETURN_IF_ERROR(convert("w13", 0, from.first(), to.first(), gated));
  PERCH_RETURN_IF_ERROR(convert("w2", 1, from.second(), to.second(), false));
  return result;
}

}  // namespace perch
