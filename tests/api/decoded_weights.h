// The numbers that canonical tensors stand for.
#pragma once

#include <string>
#include <vector>

#include "api_rig.h"
#include "numeric/decode.h"

namespace perch::test {

// Of tensors "<name>.*", [rows, columns] of that matrix: 0 is w13 or w, 1 is w2.
inline std::vector<float> decoded(const TensorMap& tensors, const std::string& name,
                                  const LayerConfig& config, int matrix, bool gated) {
  const perch_quant& quant = matrix == 0 ? config.first() : config.second();
  const auto find = [&](const char* suffix) -> const void* {
    const auto found = tensors.find(name + suffix);
    return found == tensors.end() ? nullptr : found->second.bytes.data();
  };
  numeric::MatrixTensors parts = numeric::matrix_tensors(find);
  const int32_t* g_idx = parts.g_idx;
  const int64_t n = config.rows(matrix);
  const int64_t k = config.columns(matrix);
  std::vector<float> values(static_cast<size_t>(n * k));
  for (int64_t row = 0; row < n; ++row) {
    const bool up = matrix == 0 && gated && row >= n / 2;
    parts.g_idx = g_idx == nullptr ? nullptr : g_idx + (up ? k : 0);
    numeric::decode_weight_row(quant, parts, k, row, values.data() + row * k);
  }
  return values;
}

}  // namespace perch::test
