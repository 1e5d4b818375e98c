#include "canonical/format_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/layer_config.h"
#include "canonical/format_checks.h"
#include "numeric/float_formats.h"

namespace perch {
namespace {

constexpr int64_t kGroupMax = std::numeric_limits<int32_t>::max();
// Blocks of FP8 weights where no configuration says their size.
constexpr int64_t kUsualBlock = 128;

// How an array of scales lies over the matrix.
struct Cells {
  uint32_t kind = PERCH_SCALE_NONE;
  int64_t group_n = 1;
  int64_t group_k = 1;
};

Cells one_cell(const MatrixPlan& plan) { return {PERCH_SCALE_TENSOR, plan.n, plan.k}; }
Cells cell_per_row(const MatrixPlan& plan) { return {PERCH_SCALE_CHANNEL, 1, plan.k}; }
Cells cells_by_group(int64_t group) { return {PERCH_SCALE_GROUP, 1, group}; }
// Blocks of one row are groups.
Cells cells_by_block(int64_t block_n, int64_t block_k) {
  return {block_n == 1 ? PERCH_SCALE_GROUP : PERCH_SCALE_BLOCK, block_n, block_k};
}

bool fits(const RawView& scale, int64_t rows, int64_t columns) {
  return scale.rows == rows && scale.columns == columns;
}

Result<Cells> group_cells(const Scheme& scheme, const Projection& projection, const RawView& scale,
                          const MatrixPlan& plan) {
  if (scheme.group < 0 || scheme.group > kGroupMax) {
    return wrong_scheme(scheme, projection, fmt::format("groups of {}", scheme.group),
                        fmt::format("groups of 1 to {}", kGroupMax));
  }
  if (scheme.group > 0) {
    const int64_t groups = ceil_div(plan.k, scheme.group);
    if (fits(scale, plan.n, groups)) return cells_by_group(scheme.group);
    return wrong_shape(scale, fmt::format("[{}, {}] (N x K {} in groups of {}, {})", plan.n, groups,
                                          plan.k, scheme.group, scheme.where));
  }
  if (scale.rows == plan.n && scale.columns > 0 && plan.k % scale.columns == 0) {
    return cells_by_group(plan.k / scale.columns);
  }
  return wrong_shape(scale,
                     fmt::format("[{}, groups] (N x groups that divide K {})", plan.n, plan.k));
}

// A grid may be padded, which is never read; one of twice as many cells has smaller blocks.
bool covers(int64_t cells, int64_t needed, int64_t with_other_half) {
  return cells >= needed && cells < 2 * needed + (with_other_half - needed);
}

Result<Cells> block_cells(const Scheme& scheme, const Projection& projection, const RawView& scale,
                          const MatrixPlan& plan) {
  if (scheme.block_n < 1 || scheme.block_n > kGroupMax || scheme.block_k < 1 ||
      scheme.block_k > kGroupMax) {
    return wrong_scheme(scheme, projection,
                        fmt::format("blocks of {} x {}", scheme.block_n, scheme.block_k),
                        fmt::format("blocks of 1 to {} each way", kGroupMax));
  }
  const int64_t end = projection.fused_rows_before + plan.n;
  const int64_t rows = ceil_div(end, scheme.block_n);
  const int64_t columns = ceil_div(plan.k, scheme.block_k);
  // The first half of a fused tensor sees the grid of both.
  const bool fused = scale.tensor->shape.size() > 2;
  const int64_t most_rows = fused ? std::max(rows, ceil_div(2 * plan.n, scheme.block_n)) : rows;
  if (covers(scale.rows, rows, most_rows) && covers(scale.columns, columns, columns)) {
    return cells_by_block(scheme.block_n, scheme.block_k);
  }
  return wrong_shape(
      scale, fmt::format("[{}, {}] or a little padding more (rows {} to {} x K {} in blocks of {} "
                         "x {}, {})",
                         rows, columns, projection.fused_rows_before, end, plan.k, scheme.block_n,
                         scheme.block_k, scheme.where));
}

// Nothing is stated, so the shape decides, from the plainest meaning to the finest.
Result<Cells> cells_by_shape(const Scheme& scheme, const Projection& projection,
                             const RawView& scale, const MatrixPlan& plan) {
  if (fits(scale, 1, 1)) return one_cell(plan);
  if (fits(scale, plan.n, 1)) return cell_per_row(plan);
  Result<Cells> group = group_cells(scheme, projection, scale, plan);
  if (group.ok()) return group;
  const int64_t block_n = scheme.block_n > 0 ? scheme.block_n : kUsualBlock;
  const int64_t block_k = scheme.block_k > 0 ? scheme.block_k : kUsualBlock;
  // A half of a fused tensor sees the grid of both.
  const int64_t rows = ceil_div(projection.fused_rows_before + plan.n, block_n);
  const int64_t rows_of_both = ceil_div(2 * plan.n, block_n);
  const bool tall = scale.rows == rows || scale.rows == rows_of_both;
  if (tall && scale.columns == ceil_div(plan.k, block_k)) return cells_by_block(block_n, block_k);
  return wrong_shape(
      scale, fmt::format("one scale, [{0}], [{0}, groups that divide {1}] or "
                         "[{2}, {3}] (blocks of {4} x {5}), as N is {0} and K {1}",
                         plan.n, plan.k, rows, ceil_div(plan.k, block_k), block_n, block_k));
}

Result<Cells> cells_of(const Scheme& scheme, const Projection& projection, const RawView& scale,
                       const MatrixPlan& plan) {
  switch (scheme.strategy) {
    case Strategy::kTensor:
      if (fits(scale, 1, 1)) return one_cell(plan);
      return wrong_shape(scale, fmt::format("[], [1] or [1, 1] (one scale, {})", scheme.where));
    case Strategy::kChannel:
      if (fits(scale, plan.n, 1)) return cell_per_row(plan);
      return wrong_shape(scale, fmt::format("[{0}] or [{0}, 1] (N, one scale per row, {1})", plan.n,
                                            scheme.where));
    case Strategy::kGroup:
      return group_cells(scheme, projection, scale, plan);
    case Strategy::kBlock:
      return block_cells(scheme, projection, scale, plan);
    case Strategy::kUnstated:
      break;
  }
  return cells_by_shape(scheme, projection, scale, plan);
}

// Of a fused or turned tensor a message shows the part that was looked at too.
std::string print_view(const RawView& view) {
  const std::vector<int64_t>& shape = view.tensor->shape;
  const RawView whole = whole_view(*view.tensor);
  if (shape.size() < 3 && fits(view, whole.rows, whole.columns)) return print_shape(shape);
  return fmt::format("{}, read as [{}, {}]", print_shape(shape), view.rows, view.columns);
}

}  // namespace

Status wrong_shape(const RawView& view, const std::string& want) {
  return invalid_argument(fmt::format("{}: shape: got {}; want {}", print_tensor(*view.tensor),
                                      print_view(view), want));
}

Status wrong_dtype(const RawView& view, std::string_view want) {
  return invalid_argument(fmt::format("{}: dtype: got {}; want {}", print_tensor(*view.tensor),
                                      raw_dtype_name(view.tensor->dtype), want));
}

Status missing_part(const Projection& projection, std::string_view suffix,
                    const std::string& want) {
  return invalid_argument(
      fmt::format("{}: {}: missing; want {}", print_module(projection), suffix, want));
}

Status wrong_scheme(const Scheme& scheme, const Projection& projection, const std::string& got,
                    const std::string& want) {
  return invalid_argument(fmt::format("{}: got {} for module {}; want {}", scheme.where, got,
                                      quoted_name(projection.module), want));
}

std::optional<uint32_t> scale_type(RawDtype dtype, bool u8_is_e8m0) {
  switch (dtype) {
    case RawDtype::kF32:
      return PERCH_TYPE_F32;
    case RawDtype::kF16:
      return PERCH_TYPE_F16;
    case RawDtype::kBF16:
      return PERCH_TYPE_BF16;
    case RawDtype::kF8E4M3:
      return PERCH_TYPE_E4M3FN;
    case RawDtype::kF8E5M2:
      return PERCH_TYPE_E5M2;
    case RawDtype::kF8E8M0:
      return PERCH_TYPE_E8M0;
    case RawDtype::kU8:
      if (u8_is_e8m0) return PERCH_TYPE_E8M0;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

Status plan_scale(const Scheme& scheme, const Projection& projection, const RawView& scale,
                  bool u8_is_e8m0, MatrixPlan* plan) {
  const std::optional<uint32_t> type = scale_type(scale.tensor->dtype, u8_is_e8m0);
  if (!type) {
    return wrong_dtype(scale, u8_is_e8m0 ? "F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0 or U8 (E8M0)"
                                         : "F32, F16, BF16, F8_E4M3, F8_E5M2 or F8_E8M0");
  }
  PERCH_ASSIGN_OR_RETURN(const Cells cells, cells_of(scheme, projection, scale, *plan));
  const bool block = cells.kind == PERCH_SCALE_BLOCK;
  const bool grouped = block || cells.kind == PERCH_SCALE_GROUP;
  plan->quant.scale_kind = cells.kind;
  plan->quant.scale_dtype = *type;
  plan->quant.group_k = grouped ? static_cast<uint32_t>(cells.group_k) : 0;
  plan->quant.group_n = block ? static_cast<uint32_t>(cells.group_n) : 0;
  const bool shared_grid = scheme.strategy == Strategy::kBlock || block;
  plan->scale =
      Grid{scale, cells.group_n, cells.group_k, shared_grid ? projection.fused_rows_before : 0};
  return {};
}

Status plan_bias(const Projection& projection, MatrixPlan* plan) {
  const RawView* bias = projection.find("bias");
  if (bias == nullptr) return {};
  PERCH_RETURN_IF_ERROR(check_floats(*bias, plan->n, "N"));
  plan->bias = *bias;
  plan->quant.flags |= PERCH_QUANT_HAS_BIAS;
  return {};
}

Status plan_act(const Scheme& scheme, const Projection& projection, std::string_view suffix,
                bool inverted, MatrixPlan* plan) {
  plan->act = scheme.act;
  if (scheme.act.mode != PERCH_ACT_STATIC && scheme.act.mode != PERCH_ACT_STATIC_GROUP) return {};
  const RawView* scale = projection.find(suffix);
  if (scale == nullptr) {
    return missing_part(projection, suffix,
                        fmt::format("it, as the input's scale is static ({})", scheme.where));
  }
  PERCH_ASSIGN_OR_RETURN(const float value, positive_scalar(*scale, inverted));
  plan->input_scale = value;
  return {};
}

Result<float> read_scalar(const RawView& view) {
  if (!fits(view, 1, 1)) return wrong_shape(view, "[], [1] or [1, 1] (one value)");
  if (!is_float_dtype(view.tensor->dtype)) return wrong_dtype(view, "F32, F16 or BF16");
  return float_at(view, 0, 0);
}

float float_at(const RawView& view, int64_t row, int64_t column) {
  const std::byte* element = view.at(row, column);
  if (view.tensor->dtype == RawDtype::kF32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, element, sizeof(half));
  return view.tensor->dtype == RawDtype::kBF16 ? numeric::f32_from_bf16(half)
                                               : numeric::f32_from_f16(half);
}

bool is_float_dtype(RawDtype dtype) {
  return dtype == RawDtype::kF32 || dtype == RawDtype::kF16 || dtype == RawDtype::kBF16;
}

}  // namespace perch
