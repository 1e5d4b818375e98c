// A second reference for the tests, made apart from the backend: it takes weights one by one from
// the canonical tensors, in double, and follows contract.md §2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/layer_config.h"
#include "numbers.h"

namespace perch::test {

using Row = std::vector<double>;

inline double f32_of(double value) { return static_cast<double>(static_cast<float>(value)); }

// value(n,k) of matrix "w13", "w2" or "w" of one expert.
class MiniMatrix {
 public:
  MiniMatrix(const LayerConfig& config, int index, const TensorMap& tensors);
  double value(int64_t n, int64_t k) const;
  // W * q(x) + bias, rounded to f32 where the contract's arithmetic is f32.
  Row multiply(const Row& x) const;

 private:
  const Tensor& tensor(const std::string& suffix) const { return tensors_.at(name_ + suffix); }
  // Element (n, g) of a [rows, columns] tensor of numbers of a PERCH_TYPE_*.
  double number(const std::string& suffix, uint32_t type, int64_t i) const;
  Row quantize(const Row& x) const;
  void quantize_group(double* x, int64_t count) const;

  std::string name_;
  const TensorMap& tensors_;
  const perch_quant& quant_;
  const perch_act_quant& act_;
  int64_t n_, k_, groups_;
  bool gated_;
  uint32_t pre_scale_dtype_;
};

inline MiniMatrix::MiniMatrix(const LayerConfig& config, int index, const TensorMap& tensors)
    : name_(!config.is_moe() ? "w" : (index == 0 ? "w13" : "w2")),
      tensors_(tensors),
      quant_(index == 0 ? config.first() : config.second()),
      act_(index == 0 ? config.act_first() : config.act_second()),
      n_(config.rows(index)),
      k_(config.columns(index)),
      groups_(num_groups(quant_, k_)),
      gated_(config.is_moe() && index == 0 &&
             perch_activation_is_gated(config.moe().activation) != 0),
      pre_scale_dtype_(index == 0 ? config.abi().in_dtype : PERCH_TYPE_F32) {}

inline double MiniMatrix::number(const std::string& suffix, uint32_t type, int64_t i) const {
  const Tensor& numbers = tensor(suffix);
  const auto at = static_cast<size_t>(i);
  if (type == PERCH_TYPE_F32) return static_cast<double>(numbers.as<float>()[at]);
  if (numbers.dtype.bits == 16) return decode(type, numbers.as<uint16_t>()[at]);
  return decode(type, numbers.bytes[at]);
}

inline double MiniMatrix::value(int64_t n, int64_t k) const {
  const int bits = type_bits(quant_.weight);
  double result = 0;
  if (bits > 8) {
    result = number("", quant_.weight, n * k_ + k);
  } else {
    const uint32_t code = unpack_code(bits, tensor(""), n, k);
    result = decode(quant_.weight, code);
    if (quant_.weight == PERCH_TYPE_LUT4) result = number(".lut", PERCH_TYPE_F32, code);
  }
  int64_t g = quant_.group_k == 0 ? 0 : k / quant_.group_k;
  if (quant_.k_order == PERCH_K_G_IDX) {
    const int64_t half = gated_ && n >= n_ / 2 ? 1 : 0;
    g = tensor(".g_idx").as<int32_t>()[static_cast<size_t>(half * k_ + k)];
  }
  if (quant_.zero_kind == PERCH_ZERO_MIDPOINT) result -= std::exp2(bits - 1);
  if (quant_.zero_kind == PERCH_ZERO_INT) result -= tensor(".zero").bytes[size_t(n * groups_ + g)];
  if (quant_.zero_kind == PERCH_ZERO_FLOAT) {
    result -= number(".zero", PERCH_TYPE_F32, n * groups_ + g);
  }
  const uint32_t type = quant_.scale_dtype;
  if (quant_.scale_kind == PERCH_SCALE_TENSOR) result *= number(".scale", type, 0);
  if (quant_.scale_kind == PERCH_SCALE_CHANNEL) result *= number(".scale", type, n);
  if (quant_.scale_kind == PERCH_SCALE_GROUP) result *= number(".scale", type, n * groups_ + g);
  if (quant_.scale_kind == PERCH_SCALE_BLOCK) {
    result *= number(".scale", type, n / quant_.group_n * tensor(".scale").shape[1] + g);
  }
  if (quant_.scale2_kind == PERCH_SCALE2_TENSOR) result *= number(".scale2", PERCH_TYPE_F32, 0);
  if (quant_.scale2_kind == PERCH_SCALE2_CHANNEL) result *= number(".scale2", PERCH_TYPE_F32, n);
  if (quant_.offset_kind == PERCH_OFFSET_GROUP) {
    result += number(".offset", PERCH_TYPE_F32, n * groups_ + g);
  }
  return result;
}

inline Row MiniMatrix::multiply(const Row& x) const {
  Row input = x;
  if (quant_.flags & PERCH_QUANT_HAS_PRE_SCALE) {
    const uint32_t type = act_.mode == PERCH_ACT_NONE ? pre_scale_dtype_ : PERCH_TYPE_F32;
    for (int64_t k = 0; k < k_; ++k) {
      double& value = input[static_cast<size_t>(k)];
      value = round_to_format(type, f32_of(value * number(".pre_scale", PERCH_TYPE_F32, k)));
    }
  }
  input = quantize(input);
  Row result;
  for (int64_t n = 0; n < n_; ++n) {
    double sum = 0;
    for (int64_t k = 0; k < k_; ++k) sum += input[static_cast<size_t>(k)] * value(n, k);
    if (quant_.flags & PERCH_QUANT_HAS_BIAS) {
      sum = f32_of(sum) + number(".bias", PERCH_TYPE_F32, n);
    }
    result.push_back(f32_of(sum));
  }
  return result;
}

inline Row MiniMatrix::quantize(const Row& x) const {
  Row result = x;
  if (act_.mode == PERCH_ACT_NONE) return result;
  const int64_t group = act_.group == 0 ? k_ : act_.group;
  for (int64_t k = 0; k < k_; k += group) {
    quantize_group(result.data() + k, std::min(group, k_ - k));
  }
  return result;
}

inline void MiniMatrix::quantize_group(double* x, int64_t count) const {
  double absmax = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    absmax = std::max(absmax, std::fabs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  const bool integer = act_.dtype == PERCH_TYPE_INT8;
  const double limit = integer ? 127 : (act_.dtype == PERCH_TYPE_E4M3FN ? 448 : 6);
  const bool is_static = act_.mode == PERCH_ACT_STATIC || act_.mode == PERCH_ACT_STATIC_GROUP;
  const double given = is_static ? number(".input_scale", PERCH_TYPE_F32, 0) : 0;
  double scale = absmax == 0 ? 1 : f32_of(absmax / limit);
  if (act_.scale_dtype == PERCH_TYPE_E8M0 && absmax != 0) {
    scale = std::exp2(-127);
    while (scale * limit < absmax) scale *= 2;
  }
  if (act_.mode == PERCH_ACT_STATIC) scale = given;
  if (act_.mode == PERCH_ACT_STATIC_GROUP) {
    scale = round_to_format(PERCH_TYPE_E4M3FN, f32_of(absmax / f32_of(6 * given)));
    scale = f32_of(scale * given);
  }
  const double reciprocal = f32_of(1 / scale);
  for (int64_t i = 0; i < count; ++i) {
    const double scaled = scale == 0 ? 0 : f32_of(x[i] * reciprocal);
    double code = integer ? std::nearbyint(scaled) : round_to_format(act_.dtype, scaled);
    code = std::min(std::max(code, -limit), limit);
    x[i] = finite ? code * scale : std::nan("");
  }
}

inline double mini_activation(const perch_moe_config& moe, double g, double u) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  const auto clamp = [](double v, double limit) { return std::min(std::max(v, -limit), limit); };
  const auto tanh_gelu = [](double v) {
    return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
  };
  const double alpha = static_cast<double>(moe.act_alpha);
  const double beta = static_cast<double>(moe.act_beta);
  const double limit =
      moe.flags & PERCH_MOE_HAS_LIMIT ? static_cast<double>(moe.act_limit) : INFINITY;
  switch (moe.activation) {
    case PERCH_ACTIVATION_SILU:
      return std::min(g, limit) * sigmoid(std::min(g, limit)) * clamp(u, limit);
    case PERCH_ACTIVATION_GELU:
      return 0.5 * g * std::erfc(-g / std::sqrt(2)) * u;
    case PERCH_ACTIVATION_GELU_TANH:
      return tanh_gelu(g) * u;
    case PERCH_ACTIVATION_SWIGLUOAI:
      return std::min(g, limit) * sigmoid(alpha * std::min(g, limit)) * (clamp(u, limit) + beta);
    case PERCH_ACTIVATION_SWIGLUSTEP:
      return std::min(g * sigmoid(g), limit) * clamp(u, limit);
    case PERCH_ACTIVATION_RELU2:
      return std::pow(std::max(g, 0.0), 2) * u;
    case PERCH_ACTIVATION_SITU:
      if (moe.flags & PERCH_MOE_HAS_ALPHA) u = alpha * std::tanh(u / alpha);
      return beta * std::tanh(g / beta) * sigmoid(g) * u;
    case PERCH_ACTIVATION_SILU_NO_MUL:
      return g * sigmoid(g);
    case PERCH_ACTIVATION_GELU_NO_MUL:
      return 0.5 * g * std::erfc(-g / std::sqrt(2));
    case PERCH_ACTIVATION_GELU_TANH_NO_MUL:
      return tanh_gelu(g);
    default:
      return std::pow(std::max(g, 0.0), 2);
  }
}

// y_e of one row.
inline Row mini_expert(const LayerConfig& config, const TensorMap& tensors, const Row& x) {
  const Row h = MiniMatrix(config, 0, tensors).multiply(x);
  const perch_moe_config& moe = config.moe();
  const auto width = static_cast<size_t>(moe.intermediate);
  Row a;
  for (size_t i = 0; i < width; ++i) {
    a.push_back(f32_of(mini_activation(moe, h[i], h[h.size() > width ? width + i : i])));
  }
  return MiniMatrix(config, 1, tensors).multiply(a);
}

}  // namespace perch::test
