// What a format reads from a projection made by hand, for the tests of runtime/canonical's formats.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <stdexcept>
#include <string>
#include <vector>

#include "canonical/format_parts.h"
#include "canonical/read_matrix.h"
#include "forged_projection.h"
#include "numeric/decode.h"
#include "numeric/packed_codes.h"

namespace perch_unit {

using perch::Format;
using perch::MatrixPlan;
using perch::MatrixSlice;

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
