// Loading copies; decoding reads one row aloud.
#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace reference {
namespace {

constexpr size_t to_size(int64_t count) { return static_cast<size_t>(count); }

// `count` numbers of `type` at `data`, decoded to f32 (exact).
void decode_numbers(const FormatSet& formats, uint32_t type, const uint8_t* data,
                    Buffer<float>* out) {
  const Format& format = formats[type];
  const int bits = type_bits(type);
  for (size_t i = 0; i < out->size(); ++i) {
    if (bits == 32) {
      std::memcpy(&(*out)[i], data + 4 * i, 4);
    } else if (bits == 16) {
      uint16_t code = 0;
      std::memcpy(&code, data + 2 * i, 2);
      (*out)[i] = format.decode(code);
    } else {
      (*out)[i] = format.decode(data[i]);
    }
  }
}

struct PlaneSource {
  const char* suffix;
  uint32_t type;              // as it crosses
  std::vector<int64_t> dims;  // empty: there is no tensor, `otherwise` everywhere
  float otherwise;
};

Status load_plane(const std::string& name, const FormatSet& formats, const PlaneSource& source,
                  TensorSet* tensors, Plane* plane) {
  plane->values.assign(to_size(plane->shape.count()), source.otherwise);
  if (source.dims.empty()) return {};
  const uint8_t* data = nullptr;
  const std::string full_name = name + source.suffix;
  REFERENCE_RETURN_IF_BAD(tensors->take(full_name, dl_dtype(source.type), source.dims, &data));
  decode_numbers(formats, source.type, data, &plane->values);
  return {};
}

Status load_vector(const std::string& name, int64_t count, TensorSet* tensors, Buffer<float>* out) {
  const uint8_t* data = nullptr;
  REFERENCE_RETURN_IF_BAD(tensors->take(name, kF32, {count}, &data));
  out->resize(to_size(count));
  std::memcpy(out->data(), data, to_size(count) * sizeof(float));
  return {};
}

Status refuse_nan_in(const std::string& name, const Buffer<float>& values) {
  const auto is_nan = [](float value) { return std::isnan(value); };
  const auto found = std::find_if(values.begin(), values.end(), is_nan);
  if (found == values.end()) return {};
  return invalid(text("tensor '%s' holds NaN at element %td; set allow_nan to accept it",
                      name.c_str(), found - values.begin()));
}

std::vector<int64_t> scale_dims(const MatrixSpec& spec) {
  const PlaneShape shape = spec.scale_shape();
  switch (spec.quant.scale_kind) {
    case PERCH_SCALE_NONE:
      return {};
    case PERCH_SCALE_TENSOR:
    case PERCH_SCALE_CHANNEL:
      return {shape.rows};
    default:
      return {shape.rows, shape.columns};
  }
}

}  // namespace

Matrix::Matrix(const perch_host_api* host)
    : codes_(HostAllocator<uint8_t>(host)),
      group_of_(HostAllocator<int32_t>(host)),
      scale_(host),
      scale2_(host),
      zero_(host),
      offset_(host),
      lut_(HostAllocator<float>(host)),
      bias_(HostAllocator<float>(host)),
      pre_scale_(HostAllocator<float>(host)) {}

Status Matrix::load(const MatrixSpec& spec, const FormatSet& formats, bool allow_nan,
                    TensorSet* tensors) {
  const std::string name = spec.name;
  REFERENCE_RETURN_IF_BAD(load_codes(spec, tensors));
  REFERENCE_RETURN_IF_BAD(load_planes(spec, formats, tensors));
  if (spec.quant.weight == PERCH_TYPE_LUT4) {
    REFERENCE_RETURN_IF_BAD(load_vector(name + ".lut", 16, tensors, &lut_));
  }
  REFERENCE_RETURN_IF_BAD(load_group_indices(spec, tensors));
  bias_.assign(to_size(spec.n), 0.0f);
  if (spec.quant.flags & PERCH_QUANT_HAS_BIAS) {
    REFERENCE_RETURN_IF_BAD(load_vector(name + ".bias", spec.n, tensors, &bias_));
  }
  if (spec.quant.flags & PERCH_QUANT_HAS_PRE_SCALE) {
    REFERENCE_RETURN_IF_BAD(load_vector(name + ".pre_scale", spec.k, tensors, &pre_scale_));
  }
  REFERENCE_RETURN_IF_BAD(load_input_scale(spec, tensors));
  return allow_nan ? Status{} : refuse_nan(spec, formats);
}

Status Matrix::load_codes(const MatrixSpec& spec, TensorSet* tensors) {
  const uint32_t type = spec.quant.weight;
  const int64_t row_bytes = spec.code_row_bytes();
  const uint8_t* data = nullptr;
  REFERENCE_RETURN_IF_BAD(tensors->take(
      spec.name, dl_dtype(type), {spec.n, type_bits(type) <= 8 ? row_bytes : spec.k}, &data));
  const size_t bytes = to_size(spec.n * row_bytes);
  codes_.resize(bytes + 1);  // one byte more: decode_codes reads two at a time
  std::memcpy(codes_.data(), data, bytes);
  codes_[bytes] = 0;
  return {};
}

Status Matrix::load_planes(const MatrixSpec& spec, const FormatSet& formats, TensorSet* tensors) {
  const perch_quant& quant = spec.quant;
  const std::vector<int64_t> per_group{spec.n, spec.groups};
  scale_.shape = spec.scale_shape();
  scale2_.shape = spec.scale2_shape();
  zero_.shape = spec.zero_shape();
  offset_.shape = spec.offset_shape();

  const PlaneSource scale{".scale", quant.scale_dtype, scale_dims(spec), 1};
  PlaneSource scale2{".scale2", PERCH_TYPE_F32, {scale2_.shape.rows}, 1};
  if (quant.scale2_kind == PERCH_SCALE2_NONE) scale2.dims.clear();
  PlaneSource zero{".zero", PERCH_TYPE_INT8, per_group, 0};
  if (quant.zero_kind == PERCH_ZERO_FLOAT) zero.type = PERCH_TYPE_F32;
  if (quant.zero_kind == PERCH_ZERO_NONE) zero.dims.clear();
  if (quant.zero_kind == PERCH_ZERO_MIDPOINT) {
    zero.dims.clear();
    zero.otherwise = static_cast<float>(1 << (type_bits(quant.weight) - 1));
  }
  PlaneSource offset{".offset", PERCH_TYPE_F32, per_group, 0};
  if (quant.offset_kind == PERCH_OFFSET_NONE) offset.dims.clear();

  REFERENCE_RETURN_IF_BAD(load_plane(spec.name, formats, scale, tensors, &scale_));
  REFERENCE_RETURN_IF_BAD(load_plane(spec.name, formats, scale2, tensors, &scale2_));
  REFERENCE_RETURN_IF_BAD(load_plane(spec.name, formats, zero, tensors, &zero_));
  REFERENCE_RETURN_IF_BAD(load_plane(spec.name, formats, offset, tensors, &offset_));
  if (quant.zero_kind != PERCH_ZERO_INT) return {};
  const float limit = static_cast<float>(1 << type_bits(quant.weight));
  for (size_t i = 0; i < zero_.values.size(); ++i) {
    if (zero_.values[i] >= limit) {
      return invalid(text("tensor '%s.zero': %g at element %zu is no code of %s", spec.name,
                          static_cast<double>(zero_.values[i]), i, type_name(quant.weight)));
    }
  }
  return {};
}

Status Matrix::load_group_indices(const MatrixSpec& spec, TensorSet* tensors) {
  if (spec.quant.k_order == PERCH_K_NATURAL) {
    group_of_.resize(to_size(spec.k));
    for (int64_t k = 0; k < spec.k; ++k) {
      const int64_t group = spec.quant.group_k == 0 ? 0 : k / spec.quant.group_k;
      group_of_[to_size(k)] = static_cast<int32_t>(group);
    }
    return {};
  }
  const std::string name = std::string(spec.name) + ".g_idx";
  const int64_t rows = spec.gate_and_up ? 2 : 1;
  const uint8_t* data = nullptr;
  REFERENCE_RETURN_IF_BAD(tensors->take(name, kInt32, {rows, spec.k}, &data));
  group_of_.resize(to_size(rows * spec.k));
  std::memcpy(group_of_.data(), data, group_of_.size() * sizeof(int32_t));
  for (size_t i = 0; i < group_of_.size(); ++i) {
    if (group_of_[i] < 0 || group_of_[i] >= spec.groups) {
      return invalid(text("tensor '%s': group %d at element %zu, want 0..%lld", name.c_str(),
                          group_of_[i], i, static_cast<long long>(spec.groups - 1)));
    }
  }
  return {};
}

Status Matrix::load_input_scale(const MatrixSpec& spec, TensorSet* tensors) {
  if (!spec.has_input_scale()) return {};
  const std::string name = std::string(spec.name) + ".input_scale";
  const uint8_t* data = nullptr;
  REFERENCE_RETURN_IF_BAD(tensors->take(name, kF32, {1}, &data));
  std::memcpy(&input_scale_, data, sizeof(float));
  // The smallest and the largest scale that it can lead to: itself, or g * t with g = 2^-9 .. 448.
  const bool grouped = spec.act.mode == PERCH_ACT_STATIC_GROUP;
  const float smallest = grouped ? std::ldexp(input_scale_, -9) : input_scale_;
  const float largest = grouped ? 448.0f * input_scale_ : input_scale_;
  const bool usable = smallest > 0 && std::isfinite(1.0f / smallest) && std::isfinite(largest);
  if (usable) return {};
  return invalid(text("tensor '%s': want a positive scale with a finite reciprocal, got %g",
                      name.c_str(), static_cast<double>(input_scale_)));
}

Status Matrix::refuse_nan(const MatrixSpec& spec, const FormatSet& formats) const {
  const std::string name = spec.name;
  REFERENCE_RETURN_IF_BAD(refuse_nan_in(name + ".scale", scale_.values));
  REFERENCE_RETURN_IF_BAD(refuse_nan_in(name + ".scale2", scale2_.values));
  REFERENCE_RETURN_IF_BAD(refuse_nan_in(name + ".zero", zero_.values));
  REFERENCE_RETURN_IF_BAD(refuse_nan_in(name + ".offset", offset_.values));
  REFERENCE_RETURN_IF_BAD(refuse_nan_in(name + ".lut", lut_));
  REFERENCE_RETURN_IF_BAD(refuse_nan_in(name + ".bias", bias_));
  REFERENCE_RETURN_IF_BAD(refuse_nan_in(name + ".pre_scale", pre_scale_));
  if (spec.quant.weight != PERCH_TYPE_F32 && !formats[spec.quant.weight].has_nan()) return {};
  std::vector<float> row(to_size(spec.k));
  for (int64_t n = 0; n < spec.n; ++n) {
    decode_codes(spec, formats, n, row.data());
    for (int64_t k = 0; k < spec.k; ++k) {
      if (!std::isnan(row[to_size(k)])) continue;
      return invalid(
          text("tensor '%s' holds the NaN code of %s at [%lld,%lld]; set allow_nan to "
               "accept it",
               spec.name, type_name(spec.quant.weight), static_cast<long long>(n),
               static_cast<long long>(k)));
    }
  }
  return {};
}

// Codes as numbers, before zero and scale.
void Matrix::decode_codes(const MatrixSpec& spec, const FormatSet& formats, int64_t n,
                          float* row) const {
  const int bits = type_bits(spec.quant.weight);
  const uint8_t* bytes = codes_.data() + n * spec.code_row_bytes();
  if (bits == 32) {
    std::memcpy(row, bytes, to_size(spec.k) * sizeof(float));
    return;
  }
  const bool has_lut = spec.quant.weight == PERCH_TYPE_LUT4;
  const float* value_of = has_lut ? lut_.data() : formats[spec.quant.weight].values().data();
  if (bits == 16) {
    for (int64_t k = 0; k < spec.k; ++k) {
      uint16_t code = 0;
      std::memcpy(&code, bytes + 2 * k, 2);
      row[k] = value_of[code];
    }
    return;
  }
  // A dense stream of codes, low bits first: one may lie across two bytes.
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t k = 0; k < spec.k; ++k) {
    const int64_t first_bit = k * bits;
    const uint8_t* at = bytes + (first_bit >> 3);
    const uint32_t window = at[0] | static_cast<uint32_t>(at[1]) << 8;
    row[k] = value_of[(window >> (first_bit & 7)) & mask];
  }
}

void Matrix::decode_row(const MatrixSpec& spec, const FormatSet& formats, int64_t n,
                        float* row) const {
  decode_codes(spec, formats, n, row);
  const bool second_half = spec.gate_and_up && n >= spec.n / 2;
  const bool own_order = second_half && spec.quant.k_order == PERCH_K_G_IDX;
  const int32_t* group_of = group_of_.data() + (own_order ? spec.k : 0);
  const float* scale = scale_.row(n);
  const float* scale2 = scale2_.row(n);
  const float* zero = zero_.row(n);
  const float* offset = offset_.row(n);
  for (int64_t k = 0; k < spec.k;) {
    const int32_t g = group_of[k];
    const float group_zero = zero_.at(zero, g);
    const float group_scale = scale_.at(scale, g);
    const float group_offset = offset_.at(offset, g);
    for (; k < spec.k && group_of[k] == g; ++k) {
      row[k] = (row[k] - group_zero) * group_scale * scale2[0] + group_offset;
    }
  }
}

}  // namespace reference
