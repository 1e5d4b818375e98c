#include "canonical/format_checks.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "canonical/code_rows.h"

namespace perch {
namespace {

constexpr int64_t kDimensionMax = std::numeric_limits<int32_t>::max();
constexpr std::array<std::string_view, 4> kScaleSuffixes = {"weight_scale", "weight_scale_inv",
                                                            "scale_inv", "scale"};
constexpr int32_t kUnset = -1;

std::string print_number(int64_t bits, bool is_float) {
  if (bits == 0) return "quantized weights";
  return fmt::format("{} bits {}", bits, is_float ? "float" : "int");
}

std::string as_tensor_is(const RawView& weight) {
  return fmt::format("as tensor {} is {} {}", quoted_name(weight.tensor->name),
                     raw_dtype_name(weight.tensor->dtype), print_shape(weight.tensor->shape));
}

// What a g_idx says, once it is known to be sound.
struct GroupOrder {
  bool unset = false;      // no column has a group
  int64_t unnatural = -1;  // the first column whose group is not k / group
};

Result<GroupOrder> group_order(const RawView& g_idx, int64_t group, int64_t groups) {
  GroupOrder order;
  int64_t unset = 0;
  for (int64_t k = 0; k < g_idx.rows; ++k) {
    const auto id = static_cast<int32_t>(word_at(g_idx, k, 0));
    if (id == kUnset) {
      ++unset;
      continue;
    }
    if (id < 0 || id >= groups) {
      return invalid_argument(fmt::format("{}: element {}: got {}; want a group, 0 to {}",
                                          print_tensor(*g_idx.tensor), k, id, groups - 1));
    }
    if (order.unnatural < 0 && id != k / group) order.unnatural = k;
  }
  order.unset = unset == g_idx.rows;
  if (unset == 0 || order.unset) return order;
  return invalid_argument(fmt::format("{}: got {} of {} elements unset ({}); want all or none",
                                      print_tensor(*g_idx.tensor), unset, g_idx.rows, kUnset));
}

}  // namespace

Status check_number(const Scheme& scheme, const Projection& projection, const RawView& weight,
                    StoredNumber stored) {
  if (scheme.unstated) return {};
  const std::string want =
      fmt::format("{}, {}", print_number(stored.bits, stored.is_float), as_tensor_is(weight));
  if (!scheme.quantized) return wrong_scheme(scheme, projection, "16 or 32 bits", want);
  if (scheme.bits == 0 || stored.bits == 0) return {};
  if (scheme.bits == stored.bits && scheme.is_float == stored.is_float) return {};
  return wrong_scheme(scheme, projection, print_number(scheme.bits, scheme.is_float), want);
}

Status check_method(const Scheme& scheme, const Projection& projection, const RawView& weight,
                    std::string_view method) {
  if (scheme.unstated || scheme.method.empty() || scheme.method == method) return {};
  return wrong_scheme(scheme, projection, fmt::format("quant_method {}", scheme.method),
                      fmt::format("{}, {}", method, as_tensor_is(weight)));
}

Status check_dimensions(const RawView& view) {
  if (view.rows >= 1 && view.rows <= kDimensionMax && view.columns >= 1 &&
      view.columns <= kDimensionMax) {
    return {};
  }
  return wrong_shape(view, fmt::format("1 to {} rows and columns", kDimensionMax));
}

Status check_floats(const RawView& view, int64_t size, const char* letter) {
  if (!is_float_dtype(view.tensor->dtype)) return wrong_dtype(view, "F32, F16 or BF16");
  if (view.rows == size && view.columns == 1) return {};
  return wrong_shape(view, fmt::format("[{}] ({})", size, letter));
}

Result<const RawView*> find_scale(const Projection& projection) {
  const RawView* found = nullptr;
  for (const std::string_view suffix : kScaleSuffixes) {
    const RawView* scale = projection.find(suffix);
    if (scale == nullptr) continue;
    if (found != nullptr) {
      return invalid_argument(fmt::format("{}: got scales in tensor {} too; want one of the two",
                                          print_tensor(*scale->tensor),
                                          quoted_name(found->tensor->name)));
    }
    found = scale;
  }
  if (found == nullptr) {
    return missing_part(projection, kScaleSuffixes[0],
                        "the weight's scales (or weight_scale_inv, scale_inv or scale)");
  }
  return found;
}

Result<float> positive_scalar(const RawView& view, bool inverted) {
  PERCH_ASSIGN_OR_RETURN(const float value, read_scalar(view));
  const auto sound = [](float x) { return x > 0 && std::isnormal(x); };
  if (sound(value)) {
    const float result = inverted ? 1.0f / value : value;
    if (sound(result)) return result;
  }
  return invalid_argument(fmt::format(
      "{}: got {}; want a positive number, not subnormal{}: a scale that was not calibrated "
      "makes every output 0 or NaN",
      print_tensor(*view.tensor), value, inverted ? ", and likewise one divided by it" : ""));
}

Status plan_scale2(const RawView& view, bool inverted, MatrixPlan* plan) {
  PERCH_ASSIGN_OR_RETURN(const float value, positive_scalar(view, inverted));
  plan->scale2 = value;
  plan->quant.scale2_kind = PERCH_SCALE2_TENSOR;
  return {};
}

Status plan_pre_scale(const Projection& projection, MatrixPlan* plan) {
  const RawView* scale = projection.find("pre_quant_scale");
  if (scale == nullptr) return {};
  PERCH_RETURN_IF_ERROR(check_floats(*scale, plan->k, "K"));
  plan->pre_scale = *scale;
  plan->quant.flags |= PERCH_QUANT_HAS_PRE_SCALE;
  return {};
}

Status plan_g_idx(const Scheme& scheme, const Projection& projection, std::string_view suffix,
                  MatrixPlan* plan) {
  const RawView* g_idx = projection.find(suffix);
  const int64_t groups = plan->scale->view.columns;
  if (g_idx == nullptr) {
    // With one group there is nothing to order.
    if (!scheme.act_order || groups == 1) return {};
    return missing_part(
        projection, suffix,
        fmt::format("the group of each column, as {} says act-order", scheme.where));
  }
  if (g_idx->tensor->dtype != RawDtype::kI32) return wrong_dtype(*g_idx, "I32");
  if (g_idx->rows != plan->k || g_idx->columns != 1) {
    return wrong_shape(*g_idx, fmt::format("[{}] (K)", plan->k));
  }
  PERCH_ASSIGN_OR_RETURN(const GroupOrder order, group_order(*g_idx, plan->scale->group_k, groups));
  if (order.unset || order.unnatural < 0) return {};
  if (plan->quant.scale_kind != PERCH_SCALE_GROUP) {
    return wrong_shape(plan->scale->view, fmt::format("[N, groups], as tensor {} gives groups",
                                                      quoted_name(g_idx->tensor->name)));
  }
  if (!scheme.act_order && !scheme.unstated) {
    return wrong_scheme(scheme, projection, "no act-order",
                        fmt::format("it, as tensor {} gives column {} the group {}",
                                    quoted_name(g_idx->tensor->name), order.unnatural,
                                    static_cast<int32_t>(word_at(*g_idx, order.unnatural, 0))));
  }
  plan->g_idx = *g_idx;
  plan->quant.k_order = PERCH_K_G_IDX;
  return {};
}

void widen_to_channel(MatrixPlan* plan) {
  if (plan->quant.scale_kind == PERCH_SCALE_TENSOR) plan->quant.scale_kind = PERCH_SCALE_CHANNEL;
}

}  // namespace perch
