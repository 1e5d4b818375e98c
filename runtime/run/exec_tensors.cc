#include "run/exec_tensors.h"

#include <fmt/format.h>

namespace perch {
namespace {

constexpr const char* kFunction = "perch_layer_execute";

TensorWant want_for(const CallRules& rules, const char* argument, uint32_t elements,
                    const int64_t* shape, int32_t ndim) {
  TensorWant want;
  want.function = kFunction;
  want.argument = argument;
  want.elements = elements;
  want.shape = shape;
  want.ndim = ndim;
  want.device = rules.config.abi().device;
  return want;
}

Status named_layer(const CallRules& rules, const Status& status) {
  if (status.ok()) return {};
  return {status.code(), fmt::format("{} (layer '{}')", status.message(), rules.config.name())};
}

// x and y of a form, with the sizes that the config fixes.
Status check_x_and_y(const CallRules& rules, const perch_exec_args& args, ExecTensors* out) {
  const LayerConfig& config = rules.config;
  const bool batched = config.is_moe() && config.moe().form == PERCH_FORM_BATCHED;
  const int64_t in = config.is_moe() ? config.moe().hidden : config.linear().in_features;
  const int64_t width = config.is_moe() ? config.moe().hidden : config.linear().out_features;
  const int64_t experts = config.is_moe() ? config.moe().num_experts : 0;
  const int64_t x_shape[3] = {batched ? experts : -1, batched ? -1 : in, in};
  const int32_t ndim = batched ? 3 : 2;
  TensorWant want = want_for(rules, "x", element_of(config.abi().in_dtype), x_shape, ndim);
  if (args.x_scale != nullptr) want.elements = kElementU8 | kElementI8;
  want.align = rules.align;
  want.row_strided = (rules.caps & PERCH_CAP_ROW_STRIDED_ACT) != 0;
  PERCH_RETURN_IF_ERROR(check_tensor(args.x, 0, want, &out->x));
  out->num_tokens = out->x.shape[ndim - 2];
  const int64_t y_shape[3] = {batched ? experts : out->num_tokens,
                              batched ? out->num_tokens : width, width};
  want.argument = "y";
  want.elements = element_of(config.abi().out_dtype);
  want.shape = y_shape;
  want.written = true;
  return check_tensor(args.y, 0, want, &out->y);
}

Status refuse_given(const DLTensor* tensor, const char* argument, const char* form) {
  if (tensor == nullptr) return {};
  return invalid_argument(
      fmt::format("{}: {}: got a tensor; want NULL for {}", kFunction, argument, form));
}

Status check_standard(const CallRules& rules, const perch_exec_args& args, ExecTensors* out) {
  const perch_moe_config& moe = rules.config.moe();
  const int64_t shape[2] = {out->num_tokens, moe.topk};
  TensorWant want = want_for(rules, "topk_ids", kElementI32 | kElementI64, shape, 2);
  PERCH_RETURN_IF_ERROR(check_tensor(args.topk_ids, 0, want, &out->ids));
  want = want_for(rules, "topk_weights", kElementF32, shape, 2);
  PERCH_RETURN_IF_ERROR(check_tensor(args.topk_weights, 0, want, &out->weights));
  PERCH_RETURN_IF_ERROR(refuse_given(args.expert_counts, "expert_counts", "the standard form"));
  PERCH_RETURN_IF_ERROR(refuse_given(args.expert_offsets, "expert_offsets", "the standard form"));
  if (args.expert_map == nullptr) {
    if (moe.num_experts == moe.num_experts_global) return {};
    return invalid_argument(
        fmt::format("{}: expert_map: got NULL; want int32 [{}], as this layer holds {} of them",
                    kFunction, moe.num_experts_global, moe.num_experts));
  }
  const int64_t map_shape[1] = {moe.num_experts_global};
  want = want_for(rules, "expert_map", kElementI32, map_shape, 1);
  return check_tensor(args.expert_map, 0, want, &out->map);
}

Status check_sorted_forms(const CallRules& rules, const perch_exec_args& args, ExecTensors* out) {
  const perch_moe_config& moe = rules.config.moe();
  const bool batched = moe.form == PERCH_FORM_BATCHED;
  const char* form = batched ? "the batched form" : "the grouped form";
  PERCH_RETURN_IF_ERROR(refuse_given(args.topk_ids, "topk_ids", form));
  PERCH_RETURN_IF_ERROR(refuse_given(args.topk_weights, "topk_weights", form));
  PERCH_RETURN_IF_ERROR(refuse_given(args.expert_map, "expert_map", form));
  if (batched) {
    PERCH_RETURN_IF_ERROR(refuse_given(args.expert_offsets, "expert_offsets", form));
    const int64_t shape[1] = {moe.num_experts};
    const TensorWant want = want_for(rules, "expert_counts", kElementI32 | kElementI64, shape, 1);
    return check_tensor(args.expert_counts, 0, want, &out->counts);
  }
  PERCH_RETURN_IF_ERROR(refuse_given(args.expert_counts, "expert_counts", form));
  const int64_t shape[1] = {int64_t{moe.num_experts} + 1};
  const TensorWant want = want_for(rules, "expert_offsets", kElementI64, shape, 1);
  return check_tensor(args.expert_offsets, 0, want, &out->offsets);
}

const DLTensor* pointer_if(const DLTensor* given, const NormalTensor& normal) {
  return given == nullptr ? nullptr : &normal.tensor;
}

int64_t integer_at(const NormalTensor& tensor, int64_t index) {
  if (tensor.tensor.dtype.bits == 64) return static_cast<const int64_t*>(tensor.tensor.data)[index];
  return static_cast<const int32_t*>(tensor.tensor.data)[index];
}

}  // namespace

Status check_exec_tensors(const CallRules& rules, const perch_exec_args& args, ExecTensors* out) {
  const LayerConfig& config = rules.config;
  if (args.x_scale != nullptr && (rules.caps & PERCH_CAP_PREQUANTIZED_INPUT) == 0) {
    return unsupported(
        fmt::format("{}: x_scale: got a tensor; want NULL, as the chosen backend "
                    "does not promise prequantized_input (layer '{}')",
                    kFunction, config.name()));
  }
  PERCH_RETURN_IF_ERROR(named_layer(rules, check_x_and_y(rules, args, out)));
  if (config.is_moe()) {
    const bool standard = config.moe().form == PERCH_FORM_STANDARD;
    PERCH_RETURN_IF_ERROR(named_layer(
        rules, standard ? check_standard(rules, args, out) : check_sorted_forms(rules, args, out)));
  } else {
    for (const auto& [tensor, name] :
         {std::pair(args.topk_ids, "topk_ids"), std::pair(args.topk_weights, "topk_weights"),
          std::pair(args.expert_map, "expert_map"), std::pair(args.expert_counts, "expert_counts"),
          std::pair(args.expert_offsets, "expert_offsets")}) {
      PERCH_RETURN_IF_ERROR(refuse_given(tensor, name, "a linear layer"));
    }
  }
  out->args = args;
  out->args.struct_size = sizeof(perch_exec_args);
  out->args.x = &out->x.tensor;
  out->args.y = &out->y.tensor;
  out->args.topk_ids = pointer_if(args.topk_ids, out->ids);
  out->args.topk_weights = pointer_if(args.topk_weights, out->weights);
  out->args.expert_map = pointer_if(args.expert_map, out->map);
  out->args.expert_counts = pointer_if(args.expert_counts, out->counts);
  out->args.expert_offsets = pointer_if(args.expert_offsets, out->offsets);
  return {};
}

Status check_routing_values(const CallRules& rules, const ExecTensors& tensors) {
  if (!rules.config.is_moe() || rules.config.abi().device.device_type != kDLCPU) return {};
  const perch_moe_config& moe = rules.config.moe();
  const auto fail = [&](const char* argument, int64_t index, int64_t got, const std::string& want) {
    return invalid_argument(fmt::format("{}: {}[{}]: value: got {}; want {} (layer '{}')",
                                        kFunction, argument, index, got, want,
                                        rules.config.name()));
  };
  if (tensors.args.topk_ids != nullptr) {
    const int64_t count = tensors.num_tokens * moe.topk;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = integer_at(tensors.ids, i);
      if (id >= moe.num_experts_global) {
        return fail("topk_ids", i, id,
                    fmt::format("less than {} (negative: no expert)", moe.num_experts_global));
      }
    }
  }
  if (tensors.args.expert_map != nullptr) {
    for (int64_t i = 0; i < moe.num_experts_global; ++i) {
      const int64_t local = integer_at(tensors.map, i);
      if (local < -1 || local >= moe.num_experts) {
        return fail("expert_map", i, local, fmt::format("-1 to {}", moe.num_experts - 1));
      }
    }
  }
  if (tensors.args.expert_counts != nullptr) {
    for (int64_t e = 0; e < moe.num_experts; ++e) {
      const int64_t rows = integer_at(tensors.counts, e);
      if (rows < 0 || rows > tensors.num_tokens) {
        return fail("expert_counts", e, rows, fmt::format("0 to {}", tensors.num_tokens));
      }
    }
  }
  if (tensors.args.expert_offsets == nullptr) return {};
  int64_t previous = 0;
  for (int64_t e = 0; e <= moe.num_experts; ++e) {
    const int64_t offset = integer_at(tensors.offsets, e);
    if (offset < previous || offset > tensors.num_tokens || (e == 0 && offset != 0)) {
      return fail(
          "expert_offsets", e, offset,
          e == 0 ? std::string("0") : fmt::format("{} to {}", previous, tensors.num_tokens));
    }
    previous = offset;
  }
  return {};
}

Status check_overlap(const CallRules& rules, const ExecTensors& tensors) {
  const auto fail = [&](const char* other, const char* hint) {
    return invalid_argument(
        fmt::format("{}: y: overlap: shares memory with {}; want memory of its "
                    "own{} (layer '{}')",
                    kFunction, other, hint, rules.config.name()));
  };
  const NormalTensor& y = tensors.y;
  if (overlaps(y, tensors.x)) {
    const bool exact = y.begin == tensors.x.begin && y.end == tensors.x.end &&
                       y.tensor.dtype.bits == tensors.x.tensor.dtype.bits;
    if (!exact || (rules.caps & PERCH_CAP_INPLACE) == 0) {
      return fail("x", exact ? ", or a backend that promises inplace" : "");
    }
  }
  for (const auto& [other, name] :
       {std::pair(&tensors.ids, "topk_ids"), std::pair(&tensors.weights, "topk_weights"),
        std::pair(&tensors.map, "expert_map"), std::pair(&tensors.counts, "expert_counts"),
        std::pair(&tensors.offsets, "expert_offsets")}) {
    if (overlaps(y, *other)) return fail(name, "");
  }
  for (const auto& [other, name] : {std::pair(&tensors.x, "x"), std::pair(&tensors.ids, "topk_ids"),
                                    std::pair(&tensors.weights, "topk_weights")}) {
    if (other->begin < tensors.workspace_end && tensors.workspace_begin < other->end) {
      return invalid_argument(
          fmt::format("{}: workspace: overlap: shares memory with {}; want "
                      "memory of its own (layer '{}')",
                      kFunction, name, rules.config.name()));
    }
  }
  const bool in_workspace = y.begin < tensors.workspace_end && tensors.workspace_begin < y.end;
  if (in_workspace && (rules.caps & PERCH_CAP_Y_MAY_ALIAS_WORKSPACE) == 0) {
    return fail("workspace", ", or a backend that promises y_may_alias_workspace");
  }
  return {};
}

}  // namespace perch
