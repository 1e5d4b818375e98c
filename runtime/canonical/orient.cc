#include "canonical/orient.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "perch/runtime.h"

namespace perch {

std::string print_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

const char* orientation_name(Orientation orientation) {
  switch (orientation) {
    case Orientation::kNative:
      return "native";
    case Orientation::kTransposed:
      return "transposed";
    case Orientation::kInterleaved:
      return "transposed, interleaved";
  }
  return "unknown";
}

OrientationChoice choose_orientation(const ModelConfig& config, const ModelTypeRow& row,
                                     uint32_t override_value) {
  if (override_value == PERCH_ORIENTATION_NATIVE) return {Orientation::kNative, "option"};
  if (override_value == PERCH_ORIENTATION_TRANSPOSED) {
    const bool interleaved = row.fused == Fused::kInterleaved;
    return {interleaved ? Orientation::kInterleaved : Orientation::kTransposed, "option"};
  }
  if (row.model_type.empty()) {
    return {Orientation::kNative,
            fmt::format("default: model_type \"{}\" is not in the table", config.model_type)};
  }
  const std::string by_type = fmt::format("model_type {}", config.model_type);
  switch (row.fused) {
    case Fused::kNone:
    case Fused::kNative:
      return {Orientation::kNative, by_type};
    case Fused::kTransposed:
      return {Orientation::kTransposed, by_type};
    case Fused::kInterleaved:
      return {Orientation::kInterleaved, by_type};
    case Fused::kByVersion:
      break;
  }
  // transformers 5 writes its in-memory layout back; 4 and the hub's files are transposed.
  const bool resaved = std::atoi(config.transformers_version.c_str()) >= 5;
  return {resaved ? Orientation::kNative : Orientation::kTransposed,
          fmt::format("{}, transformers_version \"{}\"", by_type, config.transformers_version)};
}

Result<FusedView> orient(const RawTensor& tensor, FusedRole role, Orientation orientation) {
  const size_t rank = tensor.shape.size();
  if (rank == 0 || rank > 3 || (role != FusedRole::kOther && rank != 3)) {
    return invalid_argument(fmt::format("tensor \"{}\": shape: got {}; want {}", tensor.name,
                                        print_shape(tensor.shape),
                                        role == FusedRole::kOther ? "rank 1 to 3" : "rank 3"));
  }
  FusedView view;
  view.tensor = &tensor;
  view.experts = tensor.shape[0];
  view.rows = rank > 1 ? tensor.shape[1] : 1;
  view.columns = rank > 2 ? tensor.shape[2] : 1;
  view.row_stride = view.columns;
  view.column_stride = 1;
  view.expert_stride = view.rows * view.columns;
  if (role != FusedRole::kOther && orientation != Orientation::kNative) {
    std::swap(view.rows, view.columns);
    std::swap(view.row_stride, view.column_stride);
  }
  return view;
}

RawView expert_view(const FusedView& fused, int64_t expert) {
  return {fused.tensor,     expert * fused.expert_stride, fused.rows, fused.columns,
          fused.row_stride, fused.column_stride};
}

namespace {
RawView half_view(const FusedView& fused, int64_t expert, Orientation orientation, int64_t half) {
  RawView view = expert_view(fused, expert);
  if (fused.rows == 1) return view;
  view.rows = fused.rows / 2;
  if (orientation == Orientation::kInterleaved) {
    view.offset += half * fused.row_stride;
    view.row_stride = 2 * fused.row_stride;
  } else {
    view.offset += half * view.rows * fused.row_stride;
  }
  return view;
}
}  // namespace

RawView gate_view(const FusedView& fused, int64_t expert, Orientation orientation) {
  return half_view(fused, expert, orientation, 0);
}

RawView up_view(const FusedView& fused, int64_t expert, Orientation orientation) {
  return half_view(fused, expert, orientation, 1);
}

}  // namespace perch
