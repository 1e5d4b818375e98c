#include "canonical/canonical_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "canonical/activation.h"

namespace perch {
namespace {

// Tensors of the module that its format does not know: an error, or a warning where that is
// allowed. A scale is never passed over: dropping one changes every number.
Status check_unexpected(const Projection& projection, const Format& format, bool allow,
                        std::vector<std::string>* warnings) {
  const std::vector<std::string_view> known = format.suffixes();
  for (const auto& [suffix, view] : projection.parts) {
    if (std::find(known.begin(), known.end(), suffix) != known.end()) continue;
    const std::string text =
        fmt::format("tensor \"{}\": unexpected: got suffix \"{}\"; want one of {} ({})",
                    view.tensor->name, suffix, fmt::join(known, ", "), format.name);
    const bool scale = suffix.find("scale") != std::string::npos;
    if (!allow || scale) return invalid_argument(text);
    warnings->push_back(text + "; ignored");
  }
  return {};
}

Result<MatrixPlan> plan_projection(const ModelConfig& config, const Projection& projection,
                                   const CanonicalOptions& options,
                                   std::vector<std::string>* warnings) {
  PERCH_ASSIGN_OR_RETURN(const Format* format, find_format(projection));
  PERCH_RETURN_IF_ERROR(check_unexpected(projection, *format, options.allow_unexpected, warnings));
  return format->plan(config.quantization, projection);
}

bool same_algebra(const MatrixPlan& a, const MatrixPlan& b) {
  const perch_quant& p = a.quant;
  const perch_quant& q = b.quant;
  return a.format == b.format && p.weight == q.weight && p.scale_kind == q.scale_kind &&
         p.scale_dtype == q.scale_dtype && p.group_k == q.group_k && p.group_n == q.group_n &&
         p.scale2_kind == q.scale2_kind && p.zero_kind == q.zero_kind &&
         p.offset_kind == q.offset_kind && p.k_order == q.k_order && p.flags == q.flags &&
         a.act.dtype == b.act.dtype && a.act.mode == b.act.mode && a.act.group == b.act.group;
}

struct Sizes {
  int64_t hidden = 0;
  int64_t intermediate = 0;
};

const RawTensor& first_tensor(const Projection& projection) {
  return *projection.parts.front().second.tensor;
}

Status wrong_size(const CanonicalLayer& layer, const Projection& projection, const MatrixPlan& plan,
                  std::pair<int64_t, int64_t> want, const char* what) {
  const RawTensor& tensor = first_tensor(projection);
  std::string hint;
  // A fused gate_up holds both halves, so its other reading is judged by the stored shape.
  const bool fused = tensor.shape.size() == 3;
  if (fused) {
    const bool halves = what[0] != 'd' && layer.source.gated;
    const int64_t rows = halves ? 2 * want.first : want.first;
    const bool stored_native = tensor.shape[1] == rows && tensor.shape[2] == want.second;
    const bool stored_turned = tensor.shape[2] == rows && tensor.shape[1] == want.second;
    const bool read_native = layer.source.orientation.value == Orientation::kNative;
    if ((read_native && stored_turned) || (!read_native && stored_native)) {
      hint = fmt::format("; hint: its dimensions fit the {} orientation",
                         read_native ? "transposed" : "native");
    }
  }
  return invalid_argument(fmt::format(
      "tensor \"{}\": shape: got {}, read as {} [{}, {}] ({}, decided by {}); want [{}, {}]{}",
      tensor.name, print_shape(tensor.shape), what, plan.n, plan.k,
      orientation_name(layer.source.orientation.value), layer.source.orientation.decided_by,
      want.first, want.second, hint));
}

Status check_projection(const CanonicalLayer& layer, const Projection& projection,
                        const MatrixPlan& plan, const MatrixPlan& model,
                        std::pair<int64_t, int64_t> want) {
  const char* what = &model == &layer.down ? "down" : (&model == &layer.up ? "up" : "gate");
  if (plan.n != want.first || plan.k != want.second) {
    return wrong_size(layer, projection, plan, want, what);
  }
  if (!same_algebra(plan, model)) {
    return unsupported(fmt::format(
        "module \"{}\": its number format differs from that of expert 0's {} projection; want all "
        "experts of a layer alike",
        projection.module, what));
  }
  return {};
}

// Plans every expert, and holds each to the first one's algebra and to the sizes.
Status plan_experts(const ModelConfig& config, const CanonicalOptions& options, const Sizes& sizes,
                    CanonicalLayer* layer, std::vector<std::string>* warnings) {
  const auto first_size = std::pair(sizes.intermediate, sizes.hidden);
  const auto second_size = std::pair(sizes.hidden, sizes.intermediate);
  for (size_t e = 0; e < layer->source.experts.size(); ++e) {
    const ExpertSource& expert = layer->source.experts[e];
    const auto handle = [&](const Projection& projection, MatrixPlan* model,
                            std::pair<int64_t, int64_t> want) -> Status {
      PERCH_ASSIGN_OR_RETURN(MatrixPlan plan,
                             plan_projection(config, projection, options, warnings));
      if (e == 0) *model = plan;
      return check_projection(*layer, projection, plan, *model, want);
    };
    if (layer->source.gated) PERCH_RETURN_IF_ERROR(handle(expert.gate, &layer->gate, first_size));
    PERCH_RETURN_IF_ERROR(handle(expert.up, &layer->up, first_size));
    PERCH_RETURN_IF_ERROR(handle(expert.down, &layer->down, second_size));
  }
  if (layer->source.gated && !same_algebra(layer->gate, layer->up)) {
    return unsupported(
        fmt::format("layer \"{}\": gate and up have different number formats; want "
                    "the same for both",
                    layer->source.name));
  }
  return {};
}

Result<Sizes> moe_sizes(const ModelConfig& config, const LayerSource& source,
                        const CanonicalOptions& options, std::vector<std::string>* warnings) {
  Sizes sizes;
  const auto experts = static_cast<int64_t>(source.experts.size());
  if (config.num_experts && *config.num_experts != experts) {
    return invalid_argument(
        fmt::format("layer \"{}\": got tensors of {} experts; want {} (config.json)", source.name,
                    experts, *config.num_experts));
  }
  if (!config.hidden) {
    return invalid_argument("config.json: hidden_size: missing; want the model's hidden size");
  }
  sizes.hidden = config.latent.value_or(*config.hidden);
  if (config.intermediate) {
    sizes.intermediate = *config.intermediate;
    return sizes;
  }
  PERCH_ASSIGN_OR_RETURN(const MatrixPlan down,
                         plan_projection(config, source.experts[0].down, options, warnings));
  sizes.intermediate = down.k;
  warnings->push_back(
      fmt::format("config.json: no expert intermediate size; layer \"{}\" takes {} "
                  "from its tensors",
                  source.name, down.k));
  return sizes;
}

void set_common(const ModelConfig& config, const CanonicalOptions& options, LayerConfig* layer) {
  perch_layer_config& plain = layer->layer();
  plain.device = options.device;
  plain.in_dtype = options.in_dtype != 0 ? options.in_dtype : config.dtype;
  plain.out_dtype = options.out_dtype != 0 ? options.out_dtype : config.dtype;
  plain.max_tokens = options.max_tokens;
  plain.require = options.require;
  plain.prefer = options.prefer;
  plain.flags = options.allow_nan ? PERCH_LAYER_ALLOW_NAN : 0;
}

// Slices of this rank, in units that cut no group and no byte of w2's K.
Status slice_moe(const Sizes& sizes, const Split& split, CanonicalLayer* layer) {
  const auto all = static_cast<int64_t>(layer->source.experts.size());
  const int64_t unit = std::max({layer->down.k_unit, layer->up.n_unit, layer->gate.n_unit});
  PERCH_ASSIGN_OR_RETURN(const Range part,
                         tensor_parallel_range(fmt::format("layer \"{}\": expert intermediate size",
                                                           layer->source.name),
                                               sizes.intermediate, unit, split));
  layer->first_slice = {part.begin, part.end, 0, sizes.hidden};
  layer->second_slice = {0, sizes.hidden, part.begin, part.end};
  layer->experts = expert_parallel_range(all, split);
  if (all < split.ep_size) {
    return invalid_argument(fmt::format(
        "layer \"{}\": got {} experts for ep {}; want at least one per rank: ep {} or less works",
        layer->source.name, all, split.ep_size, all));
  }
  if (split.ep_size > 1) layer->expert_map = expert_map(all, layer->experts);
  return {};
}

int64_t slice_bytes(const LayerConfig& config) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : tensor_specs(config)) bytes += spec.bytes();
  return config.is_moe() ? bytes * config.moe().num_experts : bytes;
}

Status canonicalize_moe(const ModelConfig& config, const CanonicalOptions& options,
                        std::vector<std::string>* warnings, CanonicalLayer* layer) {
  const ModelTypeRow& row = find_model_type(config.model_type);
  const LayerSource& source = layer->source;
  PERCH_ASSIGN_OR_RETURN(const Sizes sizes, moe_sizes(config, source, options, warnings));
  PERCH_RETURN_IF_ERROR(plan_experts(config, options, sizes, layer, warnings));
  PERCH_RETURN_IF_ERROR(slice_moe(sizes, options.split, layer));

  perch_quant w13 = layer->up.quant;
  perch_quant w2 = layer->down.quant;
  // The bias of a K-split matrix belongs to the sum over ranks: one rank adds it.
  if (options.split.tp_rank != 0) w2.flags &= ~PERCH_QUANT_HAS_BIAS;
  layer->config = LayerConfig::make_moe(source.name, w13, w2);
  layer->config.act_first() = layer->up.act;
  layer->config.act_second() = layer->down.act;
  set_common(config, options, &layer->config);
  perch_moe_config& moe = layer->config.moe();
  const auto topk = static_cast<uint32_t>(config.topk.value_or(1));
  moe.num_experts = static_cast<uint32_t>(layer->experts.size());
  moe.num_experts_global = static_cast<uint32_t>(source.experts.size());
  moe.topk = topk;
  moe.hidden = sizes.hidden;
  moe.intermediate = layer->first_slice.n1 - layer->first_slice.n0;
  if (row.route == Route::kTopkSigmoid) {
    if (topk != 1) {
      return unsupported(fmt::format(
          "config.json: num_experts_per_tok: got {}; want 1, as model_type {} puts the router's "
          "weight on the input",
          topk, config.model_type));
    }
    moe.flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
  }
  return set_activation(config, row, source.gated, &moe);
}

// Down and output projections contract over the split dimension, all others produce it.
bool splits_k(const std::string& module) {
  for (const char* name : {"o_proj", "out_proj", "down_proj", "dense", "w2", "wo"}) {
    if (module.ends_with(std::string(".") + name)) return true;
  }
  return false;
}

Status canonicalize_linear(const ModelConfig& config, const CanonicalOptions& options,
                           std::vector<std::string>* warnings, CanonicalLayer* layer) {
  const LayerSource& source = layer->source;
  PERCH_ASSIGN_OR_RETURN(layer->linear, plan_projection(config, source.linear, options, warnings));
  MatrixPlan& plan = layer->linear;
  layer->first_slice = {0, plan.n, 0, plan.k};
  perch_quant weight = plan.quant;
  if (options.split.tp_size > 1) {
    const bool by_k = splits_k(source.name);
    PERCH_ASSIGN_OR_RETURN(
        const Range part,
        tensor_parallel_range(fmt::format("layer \"{}\": {}", source.name, by_k ? "K" : "N"),
                              by_k ? plan.k : plan.n, by_k ? plan.k_unit : plan.n_unit,
                              options.split));
    if (by_k) {
      layer->first_slice = {0, plan.n, part.begin, part.end};
      if (options.split.tp_rank != 0) weight.flags &= ~PERCH_QUANT_HAS_BIAS;
    } else {
      layer->first_slice = {part.begin, part.end, 0, plan.k};
    }
  }
  const MatrixSlice& slice = layer->first_slice;
  layer->config =
      LayerConfig::make_linear(source.name, slice.n1 - slice.n0, slice.k1 - slice.k0, weight);
  layer->config.act_first() = plan.act;
  set_common(config, options, &layer->config);
  return {};
}

}  // namespace

Result<CanonicalLayer> canonicalize_layer(const ModelConfig& config, LayerSource source,
                                          const CanonicalOptions& options,
                                          std::vector<std::string>* warnings) {
  CanonicalLayer layer;
  layer.source = std::move(source);
  const Status status = layer.source.moe ? canonicalize_moe(config, options, warnings, &layer)
                                         : canonicalize_linear(config, options, warnings, &layer);
  if (!status.ok()) return status;
  layer.checkpoint_bytes = slice_bytes(layer.config);
  return layer;
}

namespace {

// The tensor of that name, or null.
CanonicalTensor* find_tensor(std::vector<CanonicalTensor>* tensors, const std::string& name) {
  for (CanonicalTensor& tensor : *tensors) {
    if (tensor.spec.name == name) return &tensor;
  }
  return nullptr;
}

int64_t row_bytes(const CanonicalTensor& tensor) {
  return tensor.spec.bytes() / std::max<int64_t>(1, tensor.spec.shape[0]);
}

// The target of one projection: row `first_row` of the matrix called `name`.
MatrixTarget make_target(std::vector<CanonicalTensor>* tensors, const std::string& name,
                         int64_t first_row) {
  MatrixTarget target;
  CanonicalTensor* codes = find_tensor(tensors, name);
  target.code_row_bytes = row_bytes(*codes);
  target.codes = codes->data.data() + first_row * target.code_row_bytes;
  if (CanonicalTensor* scale = find_tensor(tensors, name + ".scale")) {
    target.scale_row_bytes = row_bytes(*scale);
    target.scale = scale->data.data() + first_row * target.scale_row_bytes;
  }
  if (CanonicalTensor* zero = find_tensor(tensors, name + ".zero")) {
    target.zero_columns = zero->spec.shape[1];
    target.zero = reinterpret_cast<uint8_t*>(zero->data.data()) + first_row * target.zero_columns;
  }
  if (CanonicalTensor* bias = find_tensor(tensors, name + ".bias")) {
    target.bias = reinterpret_cast<float*>(bias->data.data()) + first_row;
  }
  return target;
}

Status read_moe(const CanonicalLayer& layer, int64_t expert, std::vector<CanonicalTensor>* out) {
  const auto global = static_cast<size_t>(layer.experts.begin + expert);
  const ExpertSource& source = layer.source.experts[global];
  const int64_t half = layer.first_slice.n1 - layer.first_slice.n0;
  if (layer.source.gated) {
    PERCH_RETURN_IF_ERROR(layer.gate.format->read(source.gate, layer.gate, layer.first_slice,
                                                  make_target(out, "w13", 0)));
  }
  PERCH_RETURN_IF_ERROR(
      layer.up.format->read(source.up, layer.up, layer.first_slice,
                            make_target(out, "w13", layer.source.gated ? half : 0)));
  return layer.down.format->read(source.down, layer.down, layer.second_slice,
                                 make_target(out, "w2", 0));
}

}  // namespace

Result<std::vector<CanonicalTensor>> read_expert(const CanonicalLayer& layer, int64_t expert) {
  const int64_t count = layer.config.is_moe() ? layer.experts.size() : 0;
  if (layer.config.is_moe() ? (expert < 0 || expert >= count) : expert != -1) {
    return invalid_argument(fmt::format(
        "layer \"{}\": expert: got {}; want {}", layer.source.name, expert,
        layer.config.is_moe() ? fmt::format("0 to {}", count - 1) : std::string("-1 (linear)")));
  }
  std::vector<CanonicalTensor> tensors;
  for (TensorSpec& spec : tensor_specs(layer.config)) {
    const auto bytes = static_cast<size_t>(spec.bytes());
    tensors.push_back({std::move(spec), std::vector<std::byte>(bytes)});
  }
  const Status status =
      layer.config.is_moe()
          ? read_moe(layer, expert, &tensors)
          : layer.linear.format->read(layer.source.linear, layer.linear, layer.first_slice,
                                      make_target(&tensors, "w", 0));
  if (!status.ok()) return status;
  return tensors;
}

}  // namespace perch
