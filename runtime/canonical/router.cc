#include "canonical/router.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "canonical/format_parts.h"

namespace perch {
namespace {

// Names that models have for one thing, in no order: a model has one of them.
constexpr std::array kRenormalizeKeys = {"norm_topk_prob", "moe_renormalize", "norm_expert_weight"};
constexpr std::array kScaleKeys = {"routed_scaling_factor", "router_scaling_factor",
                                   "moe_router_scaling_factor"};
constexpr std::array kScoringKeys = {"scoring_func", "moe_router_activation_func",
                                     "moe_router_activation"};

const char* formula_text(const ModelTypeRow& row, const perch_route_config& config) {
  const bool renormalize = (config.flags & PERCH_ROUTE_RENORMALIZE) != 0;
  switch (row.route) {
    case Route::kSoftmax:
    case Route::kSoftmaxRenorm:
    case Route::kSoftmaxConfig:
      return renormalize ? "softmax, topk, renormalized (R1)" : "softmax, topk (R1n)";
    case Route::kTopkSoftmax:
      return "topk, softmax (R2)";
    case Route::kSigmoidGroups:
      return renormalize ? "sigmoid with correction bias, topk, renormalized (R3)"
                         : "sigmoid with correction bias, topk (R3)";
    case Route::kSoftmaxGroups:
      return renormalize ? "softmax, groups by maximum, topk, renormalized (R3g)"
                         : "softmax, groups by maximum, topk (R3g)";
    case Route::kTopkSigmoid:
      return "topk, sigmoid, weight on input (R4)";
    case Route::kSparsemixer:
      return "sparsemixer, one expert after the other (R5)";
    case Route::kSoftmaxFloor:
      return "softmax with correction bias, topk, renormalized with a floor (R6)";
    case Route::kSoftmaxBias:
      return "softmax with correction bias, topk";
    case Route::kSqrtSoftplus:
      return "square root of softplus with correction bias, topk, renormalized (R9)";
    case Route::kSigmoidBias:
      return "sigmoid with correction bias, topk, 1e-6 added to the sum";
    case Route::kSoftmaxScaled:
      return "softmax of the normed and scaled input, topk, renormalized, a factor per expert";
    case Route::kUnknown:
      break;
  }
  return "";
}

std::string config_text(const ModelConfig& config, const char* key) {
  const auto found = config.text.find(key);
  return found != config.text.end() && found->is_string() ? found->get<std::string>() : "";
}

// The scoring function that a formula stands for, by the names that configs use.
std::string_view scoring_name(Route route) {
  if (route == Route::kSigmoidGroups) return "sigmoid";
  return route == Route::kSqrtSoftplus ? "sqrtsoftplus" : "softmax";
}

// Why the routing of a layer whose formula is known is not offered all the same; "" when it is.
std::string refusal(const ModelConfig& config, const ModelTypeRow& row, const std::string& parent,
                    const Checkpoint& checkpoint) {
  for (const char* key : kScoringKeys) {
    const std::string scoring = config_text(config, key);
    if (scoring.empty() || scoring == scoring_name(row.route)) continue;
    return fmt::format("config.json: {}: got \"{}\"; want \"{}\" for this model_type", key, scoring,
                       scoring_name(row.route));
  }
  const std::string method = config_text(config, "topk_method");
  if (row.route == Route::kSoftmaxGroups && method != "greedy" &&
      method != "group_limited_greedy") {
    return fmt::format("config.json: topk_method: got \"{}\"; want greedy or group_limited_greedy",
                       method);
  }
  const int64_t identities = config_int(config, "zero_expert_num").value_or(0);
  if (identities > 0) {
    return fmt::format(
        "{} experts after the stored ones are the identity (zero_expert_num) and have no tensors: "
        "their share of the output is the host's to add",
        identities);
  }
  if (row.route == Route::kSparsemixer && config.topk.value_or(0) != 2) {
    return "sparsemixer chooses 2 experts, the config another number";
  }
  const std::string table = parent + ".gate.tid2eid";
  if (checkpoint.find(table) != nullptr) {
    return fmt::format("its experts are chosen by token id, from the table \"{}\"", table);
  }
  return "";
}

Status set_groups(const ModelConfig& config, int64_t experts, perch_route_config* route) {
  const int64_t own = config_int(config, "n_group").value_or(1);
  const int64_t groups = config_int(config, "num_expert_group").value_or(own);
  const int64_t kept = config_int(config, "topk_group").value_or(groups);
  if (groups < 1 || kept < 1 || kept > groups || experts % groups != 0) {
    return invalid_argument(
        fmt::format("config.json: n_group, topk_group: got {}, {}; want groups "
                    "that divide {} experts and keep 1 to all of them",
                    groups, kept, experts));
  }
  route->num_groups = static_cast<uint32_t>(groups);
  route->topk_groups = static_cast<uint32_t>(kept);
  return {};
}

float real_of(const ModelConfig& config, const char* key, double fallback) {
  return static_cast<float>(config_real(config, key).value_or(fallback));
}

float scale_of(const ModelConfig& config) {
  for (const char* key : kScaleKeys) {
    if (const auto scale = config_real(config, key)) return static_cast<float>(*scale);
  }
  return 1.0F;
}

uint32_t renormalize_flag(const ModelConfig& config, bool fallback) {
  for (const char* key : kRenormalizeKeys) {
    if (const auto stated = config_bool(config, key)) fallback = *stated;
  }
  return fallback ? PERCH_ROUTE_RENORMALIZE : 0U;
}

Status set_softmax(const ModelConfig& config, Route formula, int64_t experts,
                   perch_route_config* route) {
  route->scoring = PERCH_ROUTE_SOFTMAX;
  route->flags = PERCH_ROUTE_RENORMALIZE;
  if (formula == Route::kSoftmax) route->flags = 0;
  if (formula == Route::kSoftmaxConfig) route->flags = renormalize_flag(config, false);
  if (formula == Route::kSoftmaxFloor) route->sum_min = real_of(config, "moe_norm_min", 1e-12);
  if (formula == Route::kSoftmaxBias) {
    route->flags = 0;
    route->scale = scale_of(config);
  }
  if (formula != Route::kSoftmaxGroups) return {};
  route->flags = renormalize_flag(config, false);
  route->scale = scale_of(config);
  route->group_score = PERCH_ROUTE_GROUP_MAX;
  const bool grouped = config_text(config, "topk_method") == "group_limited_greedy";
  return grouped ? set_groups(config, experts, route) : Status();
}

Result<perch_route_config> route_config(const ModelConfig& config, Route formula, int64_t experts,
                                        int64_t topk) {
  perch_route_config route{};
  route.struct_size = sizeof(route);
  route.num_experts = static_cast<uint32_t>(experts);
  route.topk = static_cast<uint32_t>(topk);
  route.scale = 1.0F;
  switch (formula) {
    case Route::kTopkSoftmax:
      route.scoring = PERCH_ROUTE_TOPK_SOFTMAX;
      break;
    case Route::kTopkSigmoid:
      route.scoring = PERCH_ROUTE_TOPK_SIGMOID;
      break;
    case Route::kSparsemixer:
      route.scoring = PERCH_ROUTE_SPARSEMIXER;
      route.jitter = real_of(config, "router_jitter_noise", 0.01);
      break;
    case Route::kSigmoidGroups:
    case Route::kSigmoidBias:
    case Route::kSqrtSoftplus:
      route.scoring =
          formula == Route::kSqrtSoftplus ? PERCH_ROUTE_SQRT_SOFTPLUS : PERCH_ROUTE_SIGMOID;
      route.flags = renormalize_flag(config, true);
      route.scale = scale_of(config);
      route.sum_add = formula == Route::kSigmoidBias ? 1e-6F : 1e-20F;
      if (formula == Route::kSigmoidGroups) {
        PERCH_RETURN_IF_ERROR(set_groups(config, experts, &route));
      }
      break;
    default:
      PERCH_RETURN_IF_ERROR(set_softmax(config, formula, experts, &route));
      break;
  }
  return route;
}

// A vector of `count` values, empty where there is no tensor of that name.
Result<std::vector<float>> read_vector(const Checkpoint& checkpoint, const std::string& name,
                                       int64_t count, const char* what) {
  const RawTensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) return std::vector<float>();
  PERCH_ASSIGN_OR_RETURN(std::vector<float> values, read_floats(*tensor));
  if (static_cast<int64_t>(values.size()) != count) {
    return invalid_argument(fmt::format("{}: shape: got {}; want [{}] ({})", print_tensor(*tensor),
                                        print_shape(tensor->shape), count, what));
  }
  return values;
}

// All vectors beside the router's matrix.
Status read_vectors(const ModelConfig& config, const ModelTypeRow& row, const std::string& parent,
                    const Checkpoint& checkpoint, RouterSource* router) {
  const int64_t experts = router->config.num_experts;
  const std::string bias_name = fmt::format("{}.bias", row.router);
  if (bias_name != row.correction_bias) {
    PERCH_ASSIGN_OR_RETURN(
        router->logit_bias,
        read_vector(checkpoint, fmt::format("{}.{}", parent, bias_name), experts, "experts"));
  }
  if (!row.correction_bias.empty()) {
    const std::string name = fmt::format("{}.{}", parent, row.correction_bias);
    PERCH_ASSIGN_OR_RETURN(router->correction_bias,
                           read_vector(checkpoint, name, experts, "experts"));
    if (!router->correction_bias.empty()) router->config.bias = router->correction_bias.data();
  }
  if (row.route != Route::kSoftmaxScaled) return {};
  const int64_t hidden = config.hidden.value_or(0);
  PERCH_ASSIGN_OR_RETURN(router->input_scale,
                         read_vector(checkpoint, parent + ".router.scale", hidden, "hidden"));
  if (router->input_scale.empty()) router->input_scale.resize(static_cast<size_t>(hidden), 1.0F);
  const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden)));
  for (float& value : router->input_scale) value *= root;
  router->input_epsilon = config_real(config, "rms_norm_eps").value_or(1e-6);
  PERCH_ASSIGN_OR_RETURN(
      router->expert_scale,
      read_vector(checkpoint, parent + ".router.per_expert_scale", experts, "experts"));
  if (!router->expert_scale.empty()) router->config.expert_scale = router->expert_scale.data();
  return {};
}

}  // namespace

std::string router_parent(const std::string& layer) {
  constexpr std::string_view kExperts = ".experts";
  return layer.ends_with(kExperts) ? layer.substr(0, layer.size() - kExperts.size()) : layer;
}

Result<std::vector<float>> read_floats(const RawTensor& tensor) {
  if (!is_float_dtype(tensor.dtype)) {
    return invalid_argument(fmt::format("{}: dtype: got {}; want F32, F16 or BF16",
                                        print_tensor(tensor), raw_dtype_name(tensor.dtype)));
  }
  const int64_t count = tensor.bytes / (raw_dtype_bits(tensor.dtype) / 8);
  const RawView column{&tensor, 0, count, 1, 1, 1};
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = float_at(column, i, 0);
  return values;
}

Result<std::optional<RouterSource>> find_router(const ModelConfig& config, const ModelTypeRow& row,
                                                const LayerSource& layer,
                                                const Checkpoint& checkpoint, std::string* note) {
  if (row.route == Route::kUnknown) {
    *note = fmt::format("layer \"{}\": routing of model_type \"{}\" is not known", layer.name,
                        config.model_type);
    return std::optional<RouterSource>();
  }
  const int64_t experts = static_cast<int64_t>(layer.experts.size());
  if (!config.topk || *config.topk > experts) {
    return invalid_argument(
        fmt::format("config.json: num_experts_per_tok: got {}; want 1 to {} (experts)",
                    config.topk ? std::to_string(*config.topk) : "nothing", experts));
  }
  const std::string parent = router_parent(layer.name);
  const std::string reason = refusal(config, row, parent, checkpoint);
  if (!reason.empty()) {
    *note = fmt::format("layer \"{}\": routing is not offered: {}", layer.name, reason);
    return std::optional<RouterSource>();
  }
  const std::string weight_name = fmt::format("{}.{}.weight", parent, row.router);
  RouterSource router;
  router.weight = checkpoint.find(weight_name);
  if (router.weight == nullptr) {
    *note = fmt::format("layer \"{}\": router tensor \"{}\" is absent", layer.name, weight_name);
    return std::optional<RouterSource>();
  }
  const std::vector<int64_t> want = {experts, config.hidden.value_or(-1)};
  if (router.weight->shape != want) {
    return invalid_argument(fmt::format("{}: shape: got {}; want {} (experts, hidden)",
                                        print_tensor(*router.weight),
                                        print_shape(router.weight->shape), print_shape(want)));
  }
  PERCH_ASSIGN_OR_RETURN(router.config, route_config(config, row.route, experts, *config.topk));
  PERCH_RETURN_IF_ERROR(read_vectors(config, row, parent, checkpoint, &router));
  router.formula = formula_text(row, router.config);
  return std::optional<RouterSource>(std::move(router));
}

}  // namespace perch
