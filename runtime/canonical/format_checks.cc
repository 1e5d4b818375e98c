#include "canonical/format_checks.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace perch {
namespace {

constexpr int64_t kSizeMax = std::numeric_limits<int32_t>::max();

std::string print_number(int64_t bits, bool is_float) {
  return fmt::format("{}-bit {}", bits, is_float ? "floats" : "integers");
}

}  // namespace

Status check_number(const Scheme& scheme, const Projection& projection, const RawView& weight,
                    StoredNumber stored) {
  if (scheme.unstated) return {};
  const std::string found =
      fmt::format("{} in tensor {}", print_number(stored.bits, stored.is_float),
                  quoted_name(weight.tensor->name));
  if (!scheme.quantized) {
    return wrong_scheme(scheme, projection, found,
                        "16- or 32-bit weights, as the configuration excludes the module");
  }
  const bool fits = (scheme.bits == 0 || scheme.bits == stored.bits) &&
                    (scheme.bits == 0 || scheme.is_float == stored.is_float);
  if (fits) return {};
  return wrong_scheme(scheme, projection, found, print_number(scheme.bits, scheme.is_float));
}

Status check_method(const Scheme& scheme, const Projection& projection, const RawView& weight,
                    std::string_view method) {
  if (scheme.unstated || (scheme.quantized && scheme.method == method)) return {};
  return wrong_scheme(scheme, projection,
                      fmt::format("tensor {} of {}", quoted_name(weight.tensor->name), method),
                      scheme.quantized ? fmt::format("tensors of {}", scheme.method)
                                       : std::string("16- or 32-bit weights"));
}

Status set_size(const RawView& weight, int64_t n, int64_t k, MatrixPlan* plan) {
  if (n < 1 || k < 1 || n > kSizeMax || k > kSizeMax) {
    return wrong_shape(weight, fmt::format("sizes of 1 to {}, not N {} and K {}", kSizeMax, n, k));
  }
  plan->n = n;
  plan->k = k;
  return {};
}

Status check_dimensions(const RawView& view) {
  if (view.rows >= 1 && view.columns >= 1 && view.rows <= kSizeMax && view.columns <= kSizeMax) {
    return {};
  }
  return wrong_shape(view, fmt::format("sizes of 1 to {}", kSizeMax));
}

Status check_floats(const RawView& view, int64_t size, const char* letter) {
  if (!is_float_dtype(view.tensor->dtype)) return wrong_dtype(view, "F32, F16 or BF16");
  if (view.rows == size && view.columns == 1) return {};
  return wrong_shape(view, fmt::format("[{}] ({})", size, letter));
}

Result<const RawView*> find_scale(const Projection& projection) {
  const RawView* found = nullptr;
  for (const char* suffix : {"weight_scale", "weight_scale_inv", "scale_inv", "scale"}) {
    const RawView* scale = projection.find(suffix);
    if (scale == nullptr) continue;
    if (found != nullptr) {
      return invalid_argument(fmt::format("tensor {}: got {} too; want one scale for the weight",
                                          quoted_name(scale->tensor->name),
                                          quoted_name(found->tensor->name)));
    }
    found = scale;
  }
  if (found == nullptr) {
    return missing_part(projection, "weight_scale",
                        "the scales of its weight (or weight_scale_inv, scale_inv, scale)");
  }
  return found;
}

Result<float> positive_scalar(const RawView& view, bool inverted) {
  PERCH_ASSIGN_OR_RETURN(const float stored, read_scalar(view));
  const float value = inverted ? 1.0F / stored : stored;
  const auto usable = [](float x) { return x > 0.0F && std::isnormal(x); };
  if (usable(stored) && usable(value)) return value;
  return invalid_argument(fmt::format("tensor {}: got {}; want a positive, normal number",
                                      quoted_name(view.tensor->name), stored));
}

Status plan_scale2(const RawView& view, bool inverted, MatrixPlan* plan) {
  PERCH_ASSIGN_OR_RETURN(plan->scale2, positive_scalar(view, inverted));
  plan->quant.scale2_kind = PERCH_SCALE2_TENSOR;
  return {};
}

Status plan_pre_scale(const Projection& projection, MatrixPlan* plan) {
  const RawView* pre_scale = projection.find("pre_quant_scale");
  if (pre_scale == nullptr) return {};
  PERCH_RETURN_IF_ERROR(check_floats(*pre_scale, plan->k, "K"));
  plan->pre_scale = *pre_scale;
  plan->quant.flags |= PERCH_QUANT_HAS_PRE_SCALE;
  return {};
}

Status plan_g_idx(const Scheme& scheme, const Projection& projection, std::string_view suffix,
                  MatrixPlan* plan) {
  const RawView* g_idx = projection.find(suffix);
  if (g_idx == nullptr) {
    if (!scheme.act_order || scheme.method == "gptq") return {};
    return missing_part(projection, suffix,
                        fmt::format("it, as {} has an act-order", scheme.where));
  }
  if (g_idx->tensor->dtype != RawDtype::kI32) return wrong_dtype(*g_idx, "I32");
  if (g_idx->rows != plan->k || g_idx->columns != 1) {
    return wrong_shape(*g_idx, fmt::format("[{}] (K)", plan->k));
  }
  bool natural = true;
  bool unset = true;  // -1 throughout: written, and never filled
  for (int64_t k = 0; k < plan->k; ++k) {
    int32_t group = 0;
    std::memcpy(&group, g_idx->at(k, 0), sizeof(group));
    natural = natural && group == k / plan->scale->group_k;
    unset = unset && group == -1;
  }
  if (natural || unset) return {};
  if (!scheme.act_order && !scheme.unstated) {
    return wrong_scheme(
        scheme, projection,
        fmt::format("tensor {} with an order of its own", quoted_name(g_idx->tensor->name)),
        "groups in their natural order, as no act-order is configured");
  }
  if (plan->quant.scale_kind != PERCH_SCALE_GROUP) {
    return wrong_shape(*g_idx, "an act-order only with scales by group");
  }
  plan->g_idx = *g_idx;
  plan->quant.k_order = PERCH_K_G_IDX;
  return {};
}

void widen_to_channel(MatrixPlan* plan) {
  if (plan->quant.scale_kind == PERCH_SCALE_TENSOR) plan->quant.scale_kind = PERCH_SCALE_CHANNEL;
}

}  // namespace perch
