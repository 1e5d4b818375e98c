#include "canonical/fused_experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "canonical/scheme.h"

namespace perch {
namespace {

bool holds_codes(const FusedTensor& tensor) {
  return tensor.suffix == "weight" || tensor.suffix == "weight_packed" || tensor.suffix == "blocks";
}

// Which axes a tensor has. The scheme says what its scales are; where nothing is stated, a grid
// with a row for each of the weight's is by group, and a smaller one by block.
FusedRole role_of(const FusedTensor& tensor, const Scheme& scheme, int64_t weight_rows,
                  bool transposed) {
  const std::vector<int64_t>& shape = tensor.tensor->shape;
  if (holds_codes(tensor) || tensor.suffix == "scales") return FusedRole::kMatrix;
  const auto has = [&](const char* part) { return tensor.suffix.find(part) != std::string::npos; };
  const bool of_weight = (has("scale") || has("zero")) && !has("input") && !has("activation");
  if (!of_weight || shape.size() != 3) return FusedRole::kRows;
  if (scheme.strategy == Strategy::kBlock) return FusedRole::kBlocks;
  if (shape[1] == 1 || shape[2] == 1) return FusedRole::kRows;
  if (scheme.strategy == Strategy::kGroup) return FusedRole::kMatrix;
  if (scheme.strategy != Strategy::kUnstated) return FusedRole::kRows;
  return shape[transposed ? 2 : 1] == weight_rows ? FusedRole::kMatrix : FusedRole::kBlocks;
}

Status missing_fused(const LayerSource& layer, const char* part) {
  return invalid_argument(fmt::format(
      "layer \"{}\": {}: missing; want its fused tensor, as the layer's other experts are fused",
      layer.name, part));
}

struct Weights {
  int64_t experts = 0;
  int64_t rows[4] = {0, 0, 0, 0};  // by Part
};

// The tensors of codes come first: they tell how many experts and rows there are.
Result<Weights> find_weights(const std::vector<FusedTensor>& tensors,
                             const OrientationChoice& orientation) {
  Weights weights;
  for (const FusedTensor& tensor : tensors) {
    if (!holds_codes(tensor)) continue;
    PERCH_ASSIGN_OR_RETURN(const FusedView view,
                           orient(*tensor.tensor, FusedRole::kMatrix, 0, orientation));
    if (weights.experts != 0 && view.experts != weights.experts) {
      return invalid_argument(fmt::format(
          "{}: shape: got {}; want {} experts as in "
          "the layer's other tensors",
          print_tensor(*tensor.tensor), print_shape(tensor.tensor->shape), weights.experts));
    }
    weights.experts = view.experts;
    weights.rows[static_cast<int>(tensor.part)] = view.rows;
  }
  return weights;
}

Status add_tensor(const FusedTensor& tensor, const FusedView& view, FusedRole role, int64_t rows,
                  LayerSource* layer) {
  const OrientationChoice& orientation = layer->orientation;
  if (role == FusedRole::kBlocks && orientation.interleaved && tensor.part == Part::kGateUp) {
    return unsupported(
        fmt::format("{}: got scales by block of interleaved gate and up rows; want halves",
                    print_tensor(*tensor.tensor)));
  }
  if (tensor.part == Part::kGateUp && role != FusedRole::kBlocks && view.rows > 1 &&
      view.rows % 2 != 0) {
    const bool other_fits = view.columns % 2 == 0;
    return invalid_argument(
        fmt::format("{}: shape: got {}, read as {} rows ({}, decided by {}); want an even number, "
                    "gate and up{}",
                    print_tensor(*tensor.tensor), print_shape(tensor.tensor->shape), view.rows,
                    orientation_name(orientation), orientation.decided_by,
                    other_fits ? fmt::format("; hint: its dimensions fit the {} orientation",
                                             orientation.transposed ? "native" : "transposed")
                               : ""));
  }
  for (int64_t e = 0; e < static_cast<int64_t>(layer->experts.size()); ++e) {
    ExpertSource& expert = layer->experts[static_cast<size_t>(e)];
    const auto add = [&](Projection* projection, const RawView& part, int64_t rows_before) {
      projection->module = tensor.module;
      projection->fused_rows_before = rows_before;
      projection->parts.emplace_back(tensor.suffix, part);
    };
    if (tensor.part == Part::kGateUp) {
      const auto half = [&](int64_t which) {
        return role == FusedRole::kBlocks ? expert_view(view, e)
                                          : half_view(view, e, orientation, which);
      };
      add(&expert.gate, half(0), 0);
      add(&expert.up, half(1), rows / 2);
    } else {
      Projection* whole = tensor.part == Part::kGate ? &expert.gate
                          : tensor.part == Part::kUp ? &expert.up
                                                     : &expert.down;
      add(whole, expert_view(view, e), 0);
    }
  }
  return {};
}

}  // namespace

Status fill_fused(const ModelConfig& config, const std::vector<FusedTensor>& tensors,
                  const OrientationChoice& chosen, LayerSource* layer) {
  layer->orientation = chosen;
  const auto has = [&](Part part) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const FusedTensor& tensor) { return tensor.part == part; });
  };
  // gpt-oss: only its 16-bit form is transposed; its MXFP4 blocks are stored by row.
  if (std::any_of(tensors.begin(), tensors.end(),
                  [](const FusedTensor& tensor) { return tensor.suffix == "blocks"; })) {
    layer->orientation.transposed = false;
    layer->orientation.decided_by += ", blocks of MXFP4 (native)";
  }
  layer->gated = has(Part::kGateUp) || has(Part::kGate);
  if (!has(Part::kGateUp) && !has(Part::kUp)) return missing_fused(*layer, "gate_up_proj");
  if (!has(Part::kDown)) return missing_fused(*layer, "down_proj");
  PERCH_ASSIGN_OR_RETURN(const Weights weights, find_weights(tensors, layer->orientation));
  if (weights.experts == 0) {
    return invalid_argument(
        fmt::format("layer \"{}\": got fused tensors and none of them holds weights; want weight, "
                    "weight_packed or blocks, with at least one expert",
                    layer->name));
  }
  layer->experts.resize(static_cast<size_t>(weights.experts));
  for (const FusedTensor& tensor : tensors) {
    const int64_t rows = weights.rows[static_cast<int>(tensor.part)];
    PERCH_ASSIGN_OR_RETURN(const Scheme scheme, find_scheme(config, tensor.module));
    const FusedRole role = role_of(tensor, scheme, rows, layer->orientation.transposed);
    PERCH_ASSIGN_OR_RETURN(const FusedView view,
                           orient(*tensor.tensor, role, weights.experts, layer->orientation));
    if (view.experts != weights.experts) {
      return invalid_argument(fmt::format("{}: shape: got {}; want {} experts",
                                          print_tensor(*tensor.tensor),
                                          print_shape(tensor.tensor->shape), weights.experts));
    }
    PERCH_RETURN_IF_ERROR(add_tensor(tensor, view, role, rows, layer));
  }
  return {};
}

}  // namespace perch
