// Random canonical tensors of any layer, for the tests of backends.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/layer_config.h"
#include "numbers.h"

namespace perch::test {

// Codes that are neither NaN nor large.
inline uint32_t random_code(uint32_t type, std::mt19937& rng) {
  const uint32_t mask = (1u << type_bits(type)) - 1;
  for (;;) {
    const uint32_t code = static_cast<uint32_t>(rng()) & mask;
    const bool counts = type <= PERCH_TYPE_INT8 || type == PERCH_TYPE_LUT4;
    if (counts || std::fabs(decode(type, code)) <= 8) return code;
  }
}

inline Tensor random_codes(uint32_t type, int64_t n, int64_t k, std::mt19937& rng) {
  std::vector<uint32_t> codes;
  for (int64_t i = 0; i < n * k; ++i) codes.push_back(random_code(type, rng));
  return pack_codes(type_bits(type), n, k, codes);
}

inline Tensor random_floats(uint32_t type, const std::vector<int64_t>& shape, double low,
                            double high, std::mt19937& rng) {
  std::uniform_real_distribution<double> any(low, high);
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  std::vector<float> values;
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < numel; ++i) {
    const double value = any(rng);
    values.push_back(static_cast<float>(value));
    if (type_bits(type) != 8) continue;
    uint8_t best = 0;  // the nearest code, by looking at each
    for (uint32_t code = 0; code < 255; ++code) {
      if (std::fabs(decode(type, code) - value) < std::fabs(decode(type, best) - value)) {
        best = static_cast<uint8_t>(code);
      }
    }
    codes.push_back(best);
  }
  return type_bits(type) == 8 ? u8(shape, codes) : floats(type, shape, values);
}

inline Tensor random_tensor(const LayerConfig& config, const TensorSpec& spec, std::mt19937& rng) {
  const int index = spec.name.rfind("w2", 0) == 0 ? 1 : 0;
  const perch_quant& quant = index == 0 ? config.first() : config.second();
  const perch_act_quant& act = index == 0 ? config.act_first() : config.act_second();
  const size_t dot = spec.name.find('.');
  const std::string field = dot == std::string::npos ? "" : spec.name.substr(dot);
  const double unit = type_bits(quant.weight) <= 8 && quant.weight <= PERCH_TYPE_INT8
                          ? 2 / std::exp2(type_bits(quant.weight))
                          : 0.5;
  if (field.empty() && type_bits(quant.weight) <= 8) {
    return random_codes(quant.weight, config.rows(index), config.columns(index), rng);
  }
  if (field.empty()) return random_floats(quant.weight, spec.shape, -1, 1, rng);
  if (field == ".scale") {
    return random_floats(quant.scale_dtype, spec.shape, 0.5 * unit, 1.5 * unit, rng);
  }
  if (field == ".zero" && quant.zero_kind == PERCH_ZERO_INT) {
    std::vector<uint8_t> zeros;
    for (int64_t i = 0; i < spec.shape[0] * spec.shape[1]; ++i) {
      zeros.push_back(static_cast<uint8_t>(random_code(quant.weight, rng)));
    }
    return u8(spec.shape, zeros);
  }
  if (field == ".zero") return random_floats(PERCH_TYPE_F32, spec.shape, 0, 1 / unit, rng);
  if (field == ".g_idx") {
    std::vector<int32_t> groups;
    for (int64_t i = 0; i < spec.shape[0] * spec.shape[1]; ++i) {
      groups.push_back(static_cast<int32_t>(
          rng() % static_cast<uint32_t>(num_groups(quant, config.columns(index)))));
    }
    return i32(spec.shape, groups);
  }
  if (field == ".input_scale") {
    const double scale =
        act.dtype == PERCH_TYPE_E2M1 ? 0.002 : (act.dtype == PERCH_TYPE_INT8 ? 0.02 : 0.01);
    return random_floats(PERCH_TYPE_F32, spec.shape, scale, 2 * scale, rng);
  }
  const bool multiplies = field == ".scale2" || field == ".pre_scale";
  return random_floats(PERCH_TYPE_F32, spec.shape, multiplies ? 0.5 : -1, multiplies ? 1.5 : 1,
                       rng);
}

// Random tensors for every spec of the config; values of order 1. `seed` decides them.
inline TensorMap random_tensors(const LayerConfig& config, uint32_t seed) {
  std::mt19937 rng(seed);
  TensorMap tensors;
  for (const TensorSpec& spec : tensor_specs(config)) {
    tensors[spec.name] = random_tensor(config, spec, rng);
  }
  return tensors;
}

}  // namespace perch::test
