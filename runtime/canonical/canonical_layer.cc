#include "canonical/canonical_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "canonical/activation.h"
#include "canonical/scheme.h"

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
        fmt::format("{}: unexpected: got suffix \"{}\"; want one of {} ({})",
                    print_tensor(*view.tensor), suffix, fmt::join(known, ", "), format.name);
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
  PERCH_ASSIGN_OR_RETURN(const Scheme scheme, find_scheme(config, projection.module));
  return format->plan(scheme, projection);
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
    const ExpertSource& expert = layer.source.experts[0];
    const bool halves = what[0] != 'd' && expert.gate.module == expert.up.module;
    const int64_t rows = halves ? 2 * want.first : want.first;
    const bool stored_native = tensor.shape[1] == rows && tensor.shape[2] == want.second;
    const bool stored_turned = tensor.shape[2] == rows && tensor.shape[1] == want.second;
    const bool read_native = !layer.source.orientation.transposed;
    if ((read_native && stored_turned) || (!read_native && stored_native)) {
      hint = fmt::format("; hint: its dimensions fit the {} orientation",
                         read_native ? "transposed" : "native");
    }
  }
  return invalid_argument(
      fmt::format("{}: shape: got {}, read as {} [{}, {}] ({}, decided by {}); want [{}, {}]{}",
                  print_tensor(tensor), print_shape(tensor.shape), what, plan.n, plan.k,
                  orientation_name(layer.source.orientation), layer.source.orientation.decided_by,
                  want.first, want.second, hint));
}

// Plans every expert of the layer and holds each to the sizes.
Status plan_experts(const ModelConfig& config, const CanonicalOptions& options, const Sizes& sizes,
                    CanonicalLayer* layer, std::vector<std::string>* warnings) {
  const auto first_size = std::pair(sizes.intermediate, sizes.hidden);
  const auto second_size = std::pair(sizes.hidden, sizes.intermediate);
  for (const ExpertSource& expert : layer->source.experts) {
    ExpertPlan& plans = layer->plans.emplace_back();
    const auto handle = [&](const Projection& projection, const char* what,
                            std::pair<int64_t, int64_t> want, MatrixPlan* plan) -> Status {
      PERCH_ASSIGN_OR_RETURN(*plan, plan_projection(config, projection, options, warnings));
      if (plan->n == want.first && plan->k == want.second) return {};
      return wrong_size(*layer, projection, *plan, want, what);
    };
    if (layer->source.gated) {
      PERCH_RETURN_IF_ERROR(handle(expert.gate, "gate", first_size, &plans.gate));
    }
    PERCH_RETURN_IF_ERROR(handle(expert.up, "up", first_size, &plans.up));
    PERCH_RETURN_IF_ERROR(handle(expert.down, "down", second_size, &plans.down));
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

// Where K of a matrix may be cut: not inside a group of weights that share a scale, unless the
// scale may be repeated, and never inside one of inputs that are quantized together. A kernel for
// scales of 8 bits has its group size built in, so those stay as they are.
Grain grain_of(const perch_quant& quant, const perch_act_quant& act) {
  Grain grain;
  const bool grouped =
      quant.scale_kind == PERCH_SCALE_GROUP || quant.scale_kind == PERCH_SCALE_BLOCK;
  if (grouped && quant.k_order == PERCH_K_NATURAL) {
    constexpr int64_t kFinest = 16;  // finer scales cost more than the balance that they buy
    grain.group = quant.group_k;
    const bool repeatable = type_bits(quant.scale_dtype) > 8 && grain.group % kFinest == 0;
    grain.finest = repeatable ? kFinest : grain.group;
  }
  if (act.group != 0) {
    grain.group = std::lcm(grain.group, int64_t{act.group});
    grain.finest = std::lcm(grain.finest, int64_t{act.group});
  }
  return grain;
}

// Under an act-order a part of K keeps the scales of all groups.
void keep_all_groups(const MatrixPlan& plan, const MatrixSlice& slice, perch_quant* quant) {
  const bool part = slice.k0 > 0 || slice.k1 < plan.k;
  if (quant->k_order == PERCH_K_G_IDX && part) {
    quant->num_groups = static_cast<uint32_t>(plan.scale->view.columns);
  }
}

// "w2.scale": made finer for the cuts of tensor parallelism.
void note_finer(const char* name, const perch_quant& quant, std::vector<DerivedTensor>* derived) {
  derived->push_back(
      {name,
       fmt::format("repeated for groups of {}{} that the cut needs",
                   quant.group_n == 0 ? "" : fmt::format("{} x ", quant.group_n), quant.group_k)});
}

// This rank's part of the intermediate dimension, and its experts. The algebra is fitted to the
// cuts of all ranks, so that all ranks have the same.
Status slice_moe(const Sizes& sizes, const Split& split, LayerAlgebra* algebra,
                 CanonicalLayer* layer) {
  const auto all = static_cast<int64_t>(layer->source.experts.size());
  PERCH_ASSIGN_OR_RETURN(
      const std::vector<int64_t> edges,
      tensor_parallel_edges(
          fmt::format("layer \"{}\": expert intermediate size", layer->source.name),
          sizes.intermediate, grain_of(algebra->w2, algebra->act2), split.tp_size));
  const int64_t begin = edges[split.tp_rank];
  const int64_t end = edges[split.tp_rank + 1];
  layer->first_slice = {begin, end, 0, sizes.hidden};
  layer->second_slice = {0, sizes.hidden, begin, end};
  // Rows of w13 begin at a rank's edge, in the middle of the fused matrix, and up begins after
  // gate.
  std::vector<int64_t> cuts(edges.begin(), edges.end() - 1);
  for (size_t r = 0; r + 1 < edges.size() && layer->source.gated; ++r) {
    cuts.push_back(edges[r + 1] - edges[r]);
  }
  if (layer->source.gated) cuts.push_back(layer->source.experts[0].up.fused_rows_before);
  if (fit_groups(cuts, {}, &algebra->w13)) note_finer("w13.scale", algebra->w13, &algebra->derived);
  if (fit_groups({}, {edges.begin(), edges.end() - 1}, &algebra->w2)) {
    note_finer("w2.scale", algebra->w2, &algebra->derived);
  }
  keep_all_groups(layer->plans[0].down, layer->second_slice, &algebra->w2);
  layer->experts = expert_parallel_ids(all, split);
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
  PERCH_ASSIGN_OR_RETURN(LayerAlgebra algebra, join_experts(source, layer->plans));
  PERCH_RETURN_IF_ERROR(slice_moe(sizes, options.split, &algebra, layer));

  // The bias of a K-split matrix belongs to the sum over ranks: one rank adds it.
  if (options.split.tp_rank != 0) algebra.w2.flags &= ~PERCH_QUANT_HAS_BIAS;
  layer->config = LayerConfig::make_moe(source.name, algebra.w13, algebra.w2);
  layer->config.act_first() = algebra.act13;
  layer->config.act_second() = algebra.act2;
  layer->derived = std::move(algebra.derived);
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
  const MatrixPlan& plan = layer->linear;
  layer->first_slice = {0, plan.n, 0, plan.k};
  perch_quant weight = plan.quant;
  if (options.split.tp_size > 1) {
    const bool by_k = splits_k(source.name);
    const Grain grain = by_k ? grain_of(weight, plan.act) : Grain{};
    PERCH_ASSIGN_OR_RETURN(
        const std::vector<int64_t> edges,
        tensor_parallel_edges(fmt::format("layer \"{}\": {}", source.name, by_k ? "K" : "N"),
                              by_k ? plan.k : plan.n, grain, options.split.tp_size));
    const int64_t begin = edges[options.split.tp_rank];
    const int64_t end = edges[options.split.tp_rank + 1];
    const std::vector<int64_t> cuts(edges.begin(), edges.end() - 1);
    layer->first_slice =
        by_k ? MatrixSlice{0, plan.n, begin, end} : MatrixSlice{begin, end, 0, plan.k};
    if (by_k && options.split.tp_rank != 0) weight.flags &= ~PERCH_QUANT_HAS_BIAS;
    const bool finer = by_k ? fit_groups({}, cuts, &weight) : fit_groups(cuts, {}, &weight);
    if (finer) note_finer("w.scale", weight, &layer->derived);
    keep_all_groups(plan, layer->first_slice, &weight);
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

}  // namespace perch
