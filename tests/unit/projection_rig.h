// A projection in memory and what its format makes of it: codes, zero points, values.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/layer_config.h"
#include "canonical/read_matrix.h"
#include "numeric/decode.h"

namespace perch {

class ProjectionRig {
 public:
  // Elements of type T, in C order.
  template <typename T>
  ProjectionRig& add(const std::string& suffix, RawDtype dtype, std::vector<int64_t> shape,
                     const std::vector<T>& values) {
    auto held = std::make_unique<Held>();
    held->bytes.resize(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(held->bytes.data(), values.data(), held->bytes.size());
    held->tensor.name = "m." + suffix;
    held->tensor.dtype = dtype;
    held->tensor.shape = std::move(shape);
    held->tensor.data = held->bytes.data();
    held->tensor.bytes = static_cast<int64_t>(held->bytes.size());
    projection_.module = "m";
    projection_.parts.emplace_back(suffix, whole_view(held->tensor));
    held_.push_back(std::move(held));
    return *this;
  }
  const Projection& projection() const { return projection_; }

 private:
  struct Held {
    RawTensor tensor;
    std::vector<std::byte> bytes;
  };
  std::vector<std::unique_ptr<Held>> held_;
  Projection projection_;
};

struct ReadBack {
  MatrixPlan plan;
  std::vector<uint32_t> codes;  // [N,K]
  std::vector<uint8_t> zeros;   // [N,G]
  std::vector<float> values;    // [N,K]
};

// The whole of it, or of `slice`.
inline ReadBack read_back(const ProjectionRig& rig, const Scheme& scheme,
                          const MatrixSlice* part = nullptr) {
  ReadBack result;
  const Projection& projection = rig.projection();
  const Result<const Format*> format = find_format(projection);
  EXPECT_TRUE(format.ok()) << format.status().message();
  if (!format.ok()) return result;
  Result<MatrixPlan> plan = (*format)->plan(scheme, projection);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return result;
  result.plan = *plan;
  const MatrixSlice slice = part != nullptr ? *part : MatrixSlice{0, plan->n, 0, plan->k};
  LayerConfig config =
      LayerConfig::make_linear("m", slice.n1 - slice.n0, slice.k1 - slice.k0, plan->quant);
  if (plan->g_idx) config.first().num_groups = static_cast<uint32_t>(plan->scale->view.columns);
  std::vector<std::pair<std::string, std::vector<std::byte>>> tensors;
  MatrixTarget target;
  for (const TensorSpec& spec : tensor_specs(config)) {
    tensors.emplace_back(spec.name, std::vector<std::byte>(static_cast<size_t>(spec.bytes())));
    std::byte* data = tensors.back().second.data();
    const int64_t row = spec.bytes() / spec.shape[0];
    if (spec.name == "w") target.codes = data, target.code_row_bytes = row;
    if (spec.name == "w.scale") target.scale = data, target.scale_row_bytes = row;
    if (spec.name == "w.scale2") target.scale2 = reinterpret_cast<float*>(data);
    if (spec.name == "w.g_idx") target.g_idx = reinterpret_cast<int32_t*>(data);
    if (spec.name == "w.zero") {
      target.zero = reinterpret_cast<uint8_t*>(data);
      target.zero_columns = spec.shape[1];
    }
  }
  int64_t bytes_read = 0;
  const Status status = read_matrix(projection, *plan, config.first(), slice, target, &bytes_read);
  EXPECT_TRUE(status.ok()) << status.message();
  const numeric::MatrixTensors decoded{target.codes, target.scale, target.scale2, target.zero,
                                       nullptr,      nullptr,      target.g_idx};
  const int bits = type_bits(plan->quant.weight);
  const int64_t columns = config.columns(0);
  for (int64_t n = 0; n < config.rows(0); ++n) {
    std::vector<float> row(static_cast<size_t>(columns));
    numeric::decode_weight_row(config.first(), decoded, columns, n, row.data());
    result.values.insert(result.values.end(), row.begin(), row.end());
    for (int64_t k = 0; k < columns && bits <= 8; ++k) {
      const auto* codes = reinterpret_cast<const uint8_t*>(target.codes);
      result.codes.push_back(numeric::get_code(codes + n * target.code_row_bytes, k, bits));
    }
  }
  if (target.zero != nullptr) {
    result.zeros.assign(target.zero, target.zero + config.rows(0) * target.zero_columns);
  }
  return result;
}

}  // namespace perch
