#include "canonical/router.h"

#include <fmt/format.h>

#include "numeric/float_formats.h"

namespace perch {
namespace {

const char* formula_text(const perch_route_config& config) {
  const bool renormalize = (config.flags & PERCH_ROUTE_RENORMALIZE) != 0;
  switch (config.scoring) {
    case PERCH_ROUTE_SOFTMAX:
      return renormalize ? "softmax, topk, renormalized (R1)" : "softmax, topk (R1n)";
    case PERCH_ROUTE_TOPK_SOFTMAX:
      return "topk, softmax (R2)";
    case PERCH_ROUTE_SIGMOID:
      return renormalize ? "sigmoid with correction bias, topk, renormalized (R3)"
                         : "sigmoid with correction bias, topk (R3)";
    case PERCH_ROUTE_TOPK_SIGMOID:
      return "topk, sigmoid, weight on input (R4)";
    default:
      return "";
  }
}

Status set_groups(const ModelConfig& config, int64_t experts, perch_route_config* route) {
  const int64_t groups = config_int(config, "n_group").value_or(1);
  const int64_t kept = config_int(config, "topk_group").value_or(groups);
  if (groups < 1 || kept < 1 || kept > groups || experts % groups != 0) {
    return invalid_argument(
        fmt::format("config.json: n_group, topk_group: got {}, {}; want groups "
                    "that divide {} experts and keep 1 to all of them",
                    groups, kept, experts));
  }
  route->num_groups = static_cast<uint32_t>(groups);
  route->topk_groups = static_cast<uint32_t>(kept);
  route->scale = static_cast<float>(config_real(config, "routed_scaling_factor").value_or(1.0));
  return {};
}

Result<perch_route_config> route_config(const ModelConfig& config, Route formula, int64_t experts,
                                        int64_t topk) {
  perch_route_config route{};
  route.struct_size = sizeof(route);
  route.num_experts = static_cast<uint32_t>(experts);
  route.topk = static_cast<uint32_t>(topk);
  route.scale = 1.0F;
  const auto renormalize = [&](bool fallback) {
    return config_bool(config, "norm_topk_prob").value_or(fallback) ? PERCH_ROUTE_RENORMALIZE : 0U;
  };
  switch (formula) {
    case Route::kSoftmax:
      route.scoring = PERCH_ROUTE_SOFTMAX;
      break;
    case Route::kSoftmaxRenorm:
      route.scoring = PERCH_ROUTE_SOFTMAX;
      route.flags = PERCH_ROUTE_RENORMALIZE;
      break;
    case Route::kSoftmaxConfig:
      route.scoring = PERCH_ROUTE_SOFTMAX;
      route.flags = renormalize(false);
      break;
    case Route::kTopkSoftmax:
      route.scoring = PERCH_ROUTE_TOPK_SOFTMAX;
      break;
    case Route::kSigmoidGroups:
      route.scoring = PERCH_ROUTE_SIGMOID;
      route.flags = renormalize(true);
      PERCH_RETURN_IF_ERROR(set_groups(config, experts, &route));
      break;
    case Route::kTopkSigmoid:
      route.scoring = PERCH_ROUTE_TOPK_SIGMOID;
      break;
    case Route::kUnknown:
      break;
  }
  return route;
}

Result<std::vector<float>> read_bias_of(const Checkpoint& checkpoint, const std::string& name,
                                        int64_t experts) {
  const RawTensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) return std::vector<float>();
  PERCH_ASSIGN_OR_RETURN(std::vector<float> values, read_floats(*tensor));
  if (static_cast<int64_t>(values.size()) != experts) {
    return invalid_argument(fmt::format("tensor \"{}\": shape: got {}; want [{}] (experts)", name,
                                        print_shape(tensor->shape), experts));
  }
  return values;
}

}  // namespace

std::string router_parent(const std::string& layer) {
  constexpr std::string_view kExperts = ".experts";
  return layer.ends_with(kExperts) ? layer.substr(0, layer.size() - kExperts.size()) : layer;
}

Result<std::vector<float>> read_floats(const RawTensor& tensor) {
  const int64_t width = raw_dtype_bits(tensor.dtype) / 8;
  std::vector<float> values(static_cast<size_t>(width > 0 ? tensor.bytes / width : 0));
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* element = tensor.data + static_cast<int64_t>(i) * width;
    uint16_t half = 0;
    if (tensor.dtype == RawDtype::kF32) {
      std::memcpy(&values[i], element, sizeof(float));
    } else if (tensor.dtype == RawDtype::kBF16 || tensor.dtype == RawDtype::kF16) {
      std::memcpy(&half, element, sizeof(half));
      values[i] = tensor.dtype == RawDtype::kBF16 ? numeric::f32_from_bf16(half)
                                                  : numeric::f32_from_f16(half);
    } else {
      return invalid_argument(fmt::format("tensor \"{}\": dtype: got {}; want F32, F16 or BF16",
                                          tensor.name, raw_dtype_name(tensor.dtype)));
    }
  }
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
  const std::string weight_name = fmt::format("{}.{}.weight", parent, row.router);
  RouterSource router;
  router.weight = checkpoint.find(weight_name);
  if (router.weight == nullptr) {
    *note = fmt::format("layer \"{}\": router tensor \"{}\" is absent", layer.name, weight_name);
    return std::optional<RouterSource>();
  }
  const std::vector<int64_t> want = {experts, config.hidden.value_or(-1)};
  if (router.weight->shape != want) {
    return invalid_argument(fmt::format("tensor \"{}\": shape: got {}; want {} (experts, hidden)",
                                        weight_name, print_shape(router.weight->shape),
                                        print_shape(want)));
  }
  PERCH_ASSIGN_OR_RETURN(router.config, route_config(config, row.route, experts, *config.topk));
  const std::string bias_name = fmt::format("{}.{}.bias", parent, row.router);
  PERCH_ASSIGN_OR_RETURN(router.logit_bias, read_bias_of(checkpoint, bias_name, experts));
  if (!row.correction_bias.empty()) {
    const std::string name = fmt::format("{}.{}", parent, row.correction_bias);
    PERCH_ASSIGN_OR_RETURN(router.correction_bias, read_bias_of(checkpoint, name, experts));
    if (!router.correction_bias.empty()) router.config.bias = router.correction_bias.data();
  }
  router.formula = formula_text(router.config);
  return std::optional<RouterSource>(std::move(router));
}

}  // namespace perch
