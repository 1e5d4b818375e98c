// Projections of tensors made by hand, and what a format reads from them, for the tests of
// runtime/canonical's formats.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/layer_config.h"
#include "canonical/format_parts.h"
#include "canonical/read_matrix.h"
#include "numeric/decode.h"
#include "numeric/packed_codes.h"

namespace perch_unit {

using perch::Format;
using perch::MatrixPlan;
using perch::MatrixSlice;
using perch::Projection;
using perch::RawDtype;
using perch::RawTensor;
using perch::RawView;
using perch::Scheme;
using perch::Strategy;

// Tensors named "m.<suffix>". Their data lies at odd addresses, in blocks of exactly their size: a
// sanitizer sees every read that assumes an alignment or goes past the end.
class ProjectionRig {
 public:
  template <typename T>
  ProjectionRig& add(const std::string& suffix, RawDtype dtype, std::vector<int64_t> shape,
                     const std::vector<T>& values) {
    auto tensor = std::make_unique<RawTensor>();
    tensor->name = "m." + suffix;
    tensor->dtype = dtype;
    tensor->shape = std::move(shape);
    tensor->bytes = static_cast<int64_t>(values.size() * sizeof(T));
    int64_t count = 1;
    for (const int64_t dim : tensor->shape) count *= dim;
    EXPECT_EQ(count * perch::raw_dtype_bits(dtype), tensor->bytes * 8) << suffix << ": wrong size";
    blocks_.push_back(std::make_unique<std::byte[]>(values.size() * sizeof(T) + 1));
    if (!values.empty()) {
      std::memcpy(blocks_.back().get() + 1, values.data(), values.size() * sizeof(T));
    }
    tensor->data = blocks_.back().get() + 1;
    drop(suffix);
    projection.parts.emplace_back(suffix, perch::whole_view(*tensor));
    tensors_.push_back(std::move(tensor));
    return *this;
  }

  ProjectionRig& drop(const std::string& suffix) {
    std::erase_if(projection.parts, [&](const auto& part) { return part.first == suffix; });
    return *this;
  }

  RawView& view(const std::string& suffix) {
    for (auto& [name, view] : projection.parts) {
      if (name == suffix) return view;
    }
    ADD_FAILURE() << suffix << ": no such part";
    return projection.parts.front().second;
  }

  // Seen as the transpose of how it is stored.
  ProjectionRig& turn(const std::string& suffix) {
    RawView& one = view(suffix);
    std::swap(one.rows, one.columns);
    std::swap(one.row_stride, one.column_stride);
    return *this;
  }

  Projection projection{"m", 0, {}};

 private:
  std::vector<std::unique_ptr<RawTensor>> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

using Words = std::vector<uint32_t>;
using Code = std::function<int(int, int)>;  // of row n, column k

inline std::vector<int> grid(int rows, int columns, const Code& code) {
  std::vector<int> out;
  for (int n = 0; n < rows; ++n) {
    for (int k = 0; k < columns; ++k) out.push_back(code(n, k));
  }
  return out;
}

// Codes as a stream from bit 0, in whole words.
inline Words stream(const std::vector<int>& codes, int bits) {
  Words words((codes.size() * static_cast<size_t>(bits) + 31) / 32);
  for (size_t i = 0; i < codes.size() * static_cast<size_t>(bits); ++i) {
    const auto width = static_cast<size_t>(bits);
    const uint32_t bit = static_cast<uint32_t>(codes[i / width]) >> (i % width) & 1U;
    words[i / 32] |= bit << (i % 32);
  }
  return words;
}

// No configuration.
inline Scheme unstated() {
  Scheme scheme;
  scheme.unstated = true;
  scheme.act = perch::make_act_none();
  return scheme;
}

inline Scheme quantized(const std::string& method, int64_t bits, bool is_float, Strategy strategy,
                        int64_t group = 0) {
  Scheme scheme;
  scheme.quantized = true;
  scheme.method = method;
  scheme.where = "config.json: q";
  scheme.bits = bits;
  scheme.is_float = is_float;
  scheme.strategy = strategy;
  scheme.group = group;
  scheme.act = perch::make_act_none();
  return scheme;
}

inline Scheme block_scheme(int64_t block_n, int64_t block_k) {
  Scheme scheme = quantized("fp8", 8, true, Strategy::kBlock);
  scheme.block_n = block_n;
  scheme.block_k = block_k;
  return scheme;
}

inline perch_act_quant static_act(uint32_t dtype) {
  perch_act_quant act = perch::make_act_none();
  act.dtype = dtype;
  act.mode = dtype == PERCH_TYPE_E2M1 ? PERCH_ACT_STATIC_GROUP : PERCH_ACT_STATIC;
  act.group = dtype == PERCH_TYPE_E2M1 ? 16 : 0;
  act.scale_dtype = dtype == PERCH_TYPE_E2M1 ? PERCH_TYPE_E4M3FN : PERCH_TYPE_F32;
  return act;
}

inline std::vector<uint16_t> f16(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float value : values) out.push_back(perch::numeric::f16_from_f32(value));
  return out;
}

// The plan of whatever format claims the projection.
inline perch::Result<MatrixPlan> plan_of(const ProjectionRig& rig, const Scheme& scheme) {
  PERCH_ASSIGN_OR_RETURN(const Format* format, perch::find_format(rig.projection));
  return format->plan(scheme, rig.projection);
}

// "" or the refusal.
inline std::string refusal(const ProjectionRig& rig, const Scheme& scheme) {
  return plan_of(rig, scheme).status().message();
}

// The test fails with the refusal where there is one.
inline MatrixPlan must_plan(const ProjectionRig& rig, const Scheme& scheme) {
  perch::Result<MatrixPlan> plan = plan_of(rig, scheme);
  if (!plan.ok()) throw std::runtime_error(plan.status().message());
  return *plan;
}

inline MatrixSlice whole(const MatrixPlan& plan) { return {0, plan.n, 0, plan.k}; }

// The slice's packed rows, without anything between them. Bytes between rows must stay as they are.
inline std::vector<uint8_t> packed_rows(const ProjectionRig& rig, const MatrixPlan& plan,
                                        const MatrixSlice& slice) {
  constexpr int64_t kGap = 3;
  const int bits = perch::type_bits(plan.quant.weight);
  const int64_t width = perch::numeric::packed_row_bytes(slice.k1 - slice.k0, bits);
  const int64_t rows = slice.n1 - slice.n0;
  std::vector<std::byte> all(static_cast<size_t>(rows * (width + kGap)));
  const perch::Status status =
      plan.format->read_codes(rig.projection, plan, slice, all.data(), width + kGap);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<uint8_t> out;
  for (int64_t i = 0; i < rows * (width + kGap); ++i) {
    const auto byte = std::to_integer<uint8_t>(all[static_cast<size_t>(i)]);
    if (i % (width + kGap) < width) {
      out.push_back(byte);
    } else {
      EXPECT_EQ(byte, 0) << "written between rows";
    }
  }
  return out;
}

// The slice's codes, [n1 - n0, k1 - k0], of types of 8 bits and less.
inline std::vector<int> codes_of(const ProjectionRig& rig, const MatrixPlan& plan,
                                 const MatrixSlice& slice) {
  const int bits = perch::type_bits(plan.quant.weight);
  const int64_t columns = slice.k1 - slice.k0;
  const std::vector<uint8_t> rows = packed_rows(rig, plan, slice);
  const int64_t width = perch::numeric::packed_row_bytes(columns, bits);
  std::vector<int> out;
  for (int64_t n = 0; n < slice.n1 - slice.n0; ++n) {
    for (int64_t k = 0; k < columns; ++k) {
      out.push_back(static_cast<int>(perch::numeric::get_code(rows.data() + n * width, k, bits)));
    }
  }
  return out;
}

inline std::vector<int> zeros_of(const ProjectionRig& rig, const MatrixPlan& plan, int64_t n) {
  std::vector<uint8_t> zeros(static_cast<size_t>(plan.scale->view.columns));
  const perch::Status status = plan.format->read_zeros(
      rig.projection, plan, n, 0, static_cast<int64_t>(zeros.size()), zeros.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return {zeros.begin(), zeros.end()};
}

// Row n of the matrix as f32: its canonical tensors, decoded by the formula of layer.h.
inline std::vector<float> row_of(const ProjectionRig& rig, const MatrixPlan& plan, int64_t n) {
  perch_quant quant = plan.quant;
  const int64_t groups = plan.scale ? plan.scale->view.columns : 1;
  if (plan.g_idx) quant.num_groups = static_cast<uint32_t>(groups);
  std::vector<std::byte> codes(static_cast<size_t>(
      perch::numeric::packed_row_bytes(plan.k, perch::type_bits(quant.weight))));
  std::vector<std::byte> scale(static_cast<size_t>(groups * 4));
  std::vector<uint8_t> zero(static_cast<size_t>(groups));
  std::vector<int32_t> g_idx(static_cast<size_t>(plan.k));
  float scale2 = 1;
  perch::MatrixTarget target;
  target.codes = codes.data();
  target.code_row_bytes = static_cast<int64_t>(codes.size());
  target.scale = plan.scale ? scale.data() : nullptr;
  target.scale_row_bytes = groups * perch::type_bits(quant.scale_dtype) / 8;
  target.scale2 = plan.scale2 ? &scale2 : nullptr;
  target.zero = quant.zero_kind == PERCH_ZERO_INT ? zero.data() : nullptr;
  target.zero_columns = groups;
  target.g_idx = plan.g_idx ? g_idx.data() : nullptr;
  int64_t bytes_read = 0;
  const perch::Status status =
      perch::read_matrix(rig.projection, plan, quant, {n, n + 1, 0, plan.k}, target, &bytes_read);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<float> row(static_cast<size_t>(plan.k));
  perch::numeric::decode_weight_row(
      quant, {codes.data(), scale.data(), &scale2, zero.data(), nullptr, nullptr, g_idx.data()},
      plan.k, 0, row.data());
  return row;
}

}  // namespace perch_unit
