#include "canonical/read_matrix.h"

#include <fmt/format.h>

#include <cstring>

#include "base/checked.h"
#include "base/layer_config.h"
#include "canonical/format_parts.h"
#include "numeric/packed_codes.h"

namespace perch {
namespace {

// Under an act-order the columns of the scales are the groups themselves, all of them.
bool by_group_id(const perch_quant& quant) { return quant.k_order == PERCH_K_G_IDX; }

void read_scales(const Grid& grid, const perch_quant& quant, const MatrixSlice& slice,
                 const MatrixTarget& target, int64_t* bytes_read) {
  ScaleCells cells = scale_cells(quant, slice.n1 - slice.n0, slice.k1 - slice.k0);
  const int64_t width = raw_dtype_bits(grid.view.tensor->dtype) / 8;
  if (by_group_id(quant)) cells.columns = target.scale_row_bytes / width;
  // Groups as they are stored, which is the usual case: a row at a time.
  const bool whole_rows = grid.view.column_stride == 1 && !by_group_id(quant) &&
                          cells.group_k == grid.group_k && slice.k0 % grid.group_k == 0;
  for (int64_t r = 0; r < cells.rows; ++r) {
    const int64_t row = (slice.n0 + r * cells.group_n + grid.first_row) / grid.group_n;
    std::byte* to = target.scale + r * target.scale_row_bytes;
    if (whole_rows) {
      std::memcpy(to, grid.view.at(row, slice.k0 / grid.group_k),
                  static_cast<size_t>(cells.columns * width));
      continue;
    }
    for (int64_t c = 0; c < cells.columns; ++c) {
      const int64_t column = by_group_id(quant) ? c : (slice.k0 + c * cells.group_k) / grid.group_k;
      std::memcpy(to + c * width, grid.view.at(row, column), static_cast<size_t>(width));
    }
  }
  *bytes_read += cells.rows * cells.columns * width;
}

// Zero points lie on the same groups as scales. An expert with the midpoint in a layer with stored
// zero points gets the midpoint stored.
Status read_zeros(const Projection& projection, const MatrixPlan& plan, const perch_quant& quant,
                  const MatrixSlice& slice, const MatrixTarget& target, int64_t* bytes_read) {
  const int64_t rows = slice.n1 - slice.n0;
  const int64_t columns = target.zero_columns;
  if (plan.quant.zero_kind == PERCH_ZERO_MIDPOINT) {
    const int midpoint = 1 << (type_bits(quant.weight) - 1);
    std::memset(target.zero, midpoint, static_cast<size_t>(rows * columns));
    return {};
  }
  const int64_t stored_group = plan.scale->group_k;
  const int64_t group = quant.scale_kind == PERCH_SCALE_GROUP ? quant.group_k : slice.k1 - slice.k0;
  const int64_t first = by_group_id(quant) ? 0 : slice.k0 / stored_group;
  const int64_t last =
      by_group_id(quant) ? columns - 1 : (slice.k0 + (columns - 1) * group) / stored_group;
  std::vector<uint8_t> stored(static_cast<size_t>(last - first + 1));
  for (int64_t r = 0; r < rows; ++r) {
    PERCH_RETURN_IF_ERROR(plan.format->read_zeros(projection, plan, slice.n0 + r, first,
                                                  last - first + 1, stored.data()));
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = by_group_id(quant) ? c : (slice.k0 + c * group) / stored_group - first;
      target.zero[r * columns + c] = stored[static_cast<size_t>(at)];
    }
  }
  *bytes_read += ceil_div(rows * (last - first + 1) * type_bits(quant.weight), 8);
  return {};
}

// Group ids stay global: the scales of a K slice are whole.
Status read_g_idx(const Projection& projection, const MatrixPlan& plan, int64_t groups,
                  const MatrixSlice& slice, int32_t* out) {
  for (int64_t k = slice.k0; k < slice.k1; ++k) {
    int32_t group = static_cast<int32_t>(k / plan.scale->group_k);
    if (plan.g_idx) std::memcpy(&group, plan.g_idx->at(k, 0), sizeof(group));
    if (group < 0 || group >= groups) {
      return invalid_argument(fmt::format("{}: g_idx[{}]: got {}; want a group, 0 to {}",
                                          print_module(projection), k, group, groups - 1));
    }
    out[k - slice.k0] = group;
  }
  return {};
}

void read_floats(const RawView& view, int64_t first, int64_t end, float* out) {
  for (int64_t i = first; i < end; ++i) out[i - first] = float_at(view, i, 0);
}

}  // namespace

Status read_matrix(const Projection& projection, const MatrixPlan& plan, const perch_quant& quant,
                   const MatrixSlice& slice, const MatrixTarget& target, int64_t* bytes_read) {
  PERCH_RETURN_IF_ERROR(
      plan.format->read_codes(projection, plan, slice, target.codes, target.code_row_bytes));
  const int64_t rows = slice.n1 - slice.n0;
  *bytes_read +=
      rows * numeric::packed_row_bytes(slice.k1 - slice.k0, type_bits(plan.quant.weight));
  if (target.scale != nullptr) read_scales(*plan.scale, quant, slice, target, bytes_read);
  if (target.zero != nullptr) {
    PERCH_RETURN_IF_ERROR(read_zeros(projection, plan, quant, slice, target, bytes_read));
  }
  if (target.g_idx != nullptr) {
    const int64_t groups = plan.scale->view.columns;
    PERCH_RETURN_IF_ERROR(read_g_idx(projection, plan, groups, slice, target.g_idx));
  }
  if (target.scale2 != nullptr) {
    const int64_t count = quant.scale2_kind == PERCH_SCALE2_CHANNEL ? rows : 1;
    std::fill_n(target.scale2, count, *plan.scale2);
  }
  if (target.bias != nullptr) read_floats(*plan.bias, slice.n0, slice.n1, target.bias);
  if (target.pre_scale != nullptr) {
    read_floats(*plan.pre_scale, slice.k0, slice.k1, target.pre_scale);
  }
  if (target.input_scale != nullptr) *target.input_scale = *plan.input_scale;
  return {};
}

}  // namespace perch
