#include "canonical/orient.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "perch/runtime.h"

namespace perch {

const char* orientation_name(const OrientationChoice& orientation) {
  if (orientation.interleaved) {
    return orientation.transposed ? "transposed, interleaved" : "native, interleaved";
  }
  return orientation.transposed ? "transposed" : "native";
}

OrientationChoice choose_orientation(const ModelConfig& config, const ModelTypeRow& row,
                                     uint32_t override_value) {
  const bool interleaved = row.fused == Fused::kInterleaved;
  if (override_value == PERCH_ORIENTATION_NATIVE) return {false, interleaved, "option"};
  if (override_value == PERCH_ORIENTATION_TRANSPOSED) return {true, interleaved, "option"};
  if (row.model_type.empty()) {
    return {false, false,
            fmt::format("default: model_type \"{}\" is not in the table", config.model_type)};
  }
  const std::string by_type = fmt::format("model_type {}", config.model_type);
  if (row.fused != Fused::kByVersion) {
    return {interleaved || row.fused == Fused::kTransposed, interleaved, by_type};
  }
  // transformers 5 writes its in-memory layout back; 4 and the hub's files are transposed.
  const bool resaved = std::strtol(config.transformers_version.c_str(), nullptr, 10) >= 5;
  return {!resaved, false,
          fmt::format("{}, transformers_version \"{}\"", by_type, config.transformers_version)};
}

namespace {

Status wrong_rank(const RawTensor& tensor, const char* want) {
  return invalid_argument(fmt::format("{}: shape: got {}; want {}", print_tensor(tensor),
                                      print_shape(tensor.shape), want));
}

// One value per row or fewer. Which of the inner axes is the rows is no question: the other is 1.
Result<FusedView> orient_rows(const RawTensor& tensor, int64_t experts) {
  const std::vector<int64_t>& shape = tensor.shape;
  FusedView view;
  view.tensor = &tensor;
  view.experts = experts;
  view.rows = 1;
  view.columns = 1;
  view.row_stride = 1;
  view.column_stride = 1;
  int64_t values = 1;
  for (const int64_t dim : shape) values *= dim;
  if (values == 1) return view;  // one for all experts, or there is one expert
  if (shape[0] != experts || shape.size() > 3)
    return wrong_rank(tensor, "[], [1] or [experts, ...]");
  if (shape.size() == 3 && shape[1] != 1 && shape[2] != 1) {
    return wrong_rank(tensor, "[experts, rows, 1]: one value per row");
  }
  view.rows = values / std::max<int64_t>(1, experts);
  view.expert_stride = view.rows;
  return view;
}

}  // namespace

Result<FusedView> orient(const RawTensor& tensor, FusedRole role, int64_t experts,
                         const OrientationChoice& orientation) {
  if (role == FusedRole::kRows) return orient_rows(tensor, experts);
  const size_t rank = tensor.shape.size();
  if (rank != 3 && rank != 4) return wrong_rank(tensor, "rank 3");
  if (rank == 4 && orientation.transposed) return wrong_rank(tensor, "rank 3: it is transposed");
  FusedView view;
  view.tensor = &tensor;
  view.experts = tensor.shape[0];
  view.rows = tensor.shape[1];
  view.columns = tensor.shape[2] * (rank == 4 ? tensor.shape[3] : 1);
  view.row_stride = view.columns;
  view.column_stride = 1;
  view.expert_stride = view.rows * view.columns;
  if (orientation.transposed) {
    std::swap(view.rows, view.columns);
    std::swap(view.row_stride, view.column_stride);
  }
  return view;
}

RawView expert_view(const FusedView& fused, int64_t expert) {
  return {fused.tensor,     expert * fused.expert_stride, fused.rows, fused.columns,
          fused.row_stride, fused.column_stride};
}

RawView half_view(const FusedView& fused, int64_t expert, const OrientationChoice& orientation,
                  int64_t half) {
  RawView view = expert_view(fused, expert);
  if (fused.rows <= 1) return view;
  view.rows = fused.rows / 2;
  if (orientation.interleaved) {
    view.offset += half * fused.row_stride;
    view.row_stride = 2 * fused.row_stride;
  } else {
    view.offset += half * view.rows * fused.row_stride;
  }
  return view;
}

}  // namespace perch
