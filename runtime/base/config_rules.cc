#include "base/config_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/layer_config.h"
#include "base/quant_rules.h"
#include "base/recipe.h"

namespace perch {
namespace {

constexpr uint32_t kOptionsMax = 1024;
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

constexpr const char* kKinds[] = {"LINEAR", "MOE"};
constexpr const char* kForms[] = {"STANDARD", "BATCHED", "GROUPED"};

bool form_is(const perch_moe_config& moe, uint32_t form) { return moe.form == form; }

// One of alpha, beta, limit: there exactly when the activation wants it, and a sane number then.
struct ActParam {
  const char* field;
  uint32_t flag;
  float value;
};

void check_act_param(Breaches& out, const perch_moe_config& moe, const ActivationInfo& info,
                     const ActParam& param) {
  const bool present = (moe.flags & param.flag) != 0;
  if (!present) {
    if ((info.needs & param.flag) != 0) {
      out.invalid(param.field, "none", fmt::format("one: {} needs it", info.name));
    }
    return;
  }
  const std::string got = fmt::format("{}", param.value);
  if ((info.allows & param.flag) == 0) {
    out.invalid(param.field, got, fmt::format("none: {} does not use it", info.name));
    return;
  }
  const bool situ = moe.activation == PERCH_ACTIVATION_SITU;
  const bool above_zero =
      param.flag == PERCH_MOE_HAS_LIMIT || (situ && param.flag == PERCH_MOE_HAS_BETA);
  if (!std::isfinite(param.value)) {
    out.invalid(param.field, got, "a finite number");
  } else if (above_zero && !(param.value > 0)) {
    out.invalid(param.field, got, "a number above 0");
  } else if (situ && param.value < 0) {
    out.invalid(param.field, got, "0 (no cap) or a number above 0");
  }
}

void check_activation(Breaches& out, const perch_moe_config& moe) {
  const ActivationInfo* info = activation_info(moe.activation);
  if (info == nullptr) {
    out.add("moe.activation", fmt::format("{}", moe.activation), "1..11, PERCH_ACTIVATION_*",
            moe.activation == 0 ? PERCH_E_INVALID_ARGUMENT : PERCH_E_UNSUPPORTED);
    return;
  }
  check_act_param(out, moe, *info, {"moe.act_alpha", PERCH_MOE_HAS_ALPHA, moe.act_alpha});
  check_act_param(out, moe, *info, {"moe.act_beta", PERCH_MOE_HAS_BETA, moe.act_beta});
  check_act_param(out, moe, *info, {"moe.act_limit", PERCH_MOE_HAS_LIMIT, moe.act_limit});
}

void check_experts(Breaches& out, const perch_moe_config& moe) {
  // expert_map and int32 ids hold expert numbers.
  out.check_range("moe.num_experts_global", moe.num_experts_global, 1, kInt32Max);
  const int64_t global = std::clamp<int64_t>(moe.num_experts_global, 1, kInt32Max);
  out.check_range("moe.num_experts", moe.num_experts, 0, global);  // 0: a rank without experts
  out.check_range("moe.topk", moe.topk, 1, global);
}

void check_weight_on_input(Breaches& out, const perch_moe_config& moe) {
  if ((moe.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) == 0) return;
  // With more slots each would need its own copy of x; vLLM#43694 shows what silence here does.
  if (moe.topk > 1) {
    out.invalid("moe.flags", fmt::format("ROUTER_WEIGHT_ON_INPUT with topk {}", moe.topk),
                "topk 1 under it, or the flag clear");
  }
  if (form_is(moe, PERCH_FORM_BATCHED) || form_is(moe, PERCH_FORM_GROUPED)) {
    out.invalid("moe.flags", "ROUTER_WEIGHT_ON_INPUT with a form that has no router weights",
                "form STANDARD under it, or the flag clear");
  }
}

// False when the struct could not be read at all; check_linear likewise.
bool check_moe(Breaches& out, const perch_moe_config* moe) {
  if (!out.check_struct("moe", moe)) return false;
  check_experts(out, *moe);
  out.check_range("moe.hidden", moe->hidden, 1, std::numeric_limits<int64_t>::max());
  // Twice I is a width, and must not overflow on the way to the check of the sizes' product.
  out.check_range("moe.intermediate", moe->intermediate, 1,
                  std::numeric_limits<int64_t>::max() / 2);
  out.check_enum("moe.form", moe->form, kForms);
  out.check_flags("moe.flags", moe->flags,
                  PERCH_MOE_HAS_ALPHA | PERCH_MOE_HAS_BETA | PERCH_MOE_HAS_LIMIT |
                      PERCH_MOE_ROUTER_WEIGHT_ON_INPUT);
  check_activation(out, *moe);
  check_weight_on_input(out, *moe);
  check_quant(out, "moe.w13", moe->w13);
  check_quant(out, "moe.w2", moe->w2);
  if (moe->act13 != nullptr) check_act_quant(out, "moe.act13", *moe->act13);
  if (moe->act2 != nullptr) check_act_quant(out, "moe.act2", *moe->act2);
  return true;
}

bool check_linear(Breaches& out, const perch_linear_config* linear) {
  if (!out.check_struct("linear", linear)) return false;
  out.check_range("linear.out_features", linear->out_features, 1,
                  std::numeric_limits<int64_t>::max());
  out.check_range("linear.in_features", linear->in_features, 1,
                  std::numeric_limits<int64_t>::max());
  out.check_reserved("linear.reserved0", linear->reserved0);
  check_quant(out, "linear.weight", linear->weight);
  if (linear->act != nullptr) check_act_quant(out, "linear.act", *linear->act);
  return true;
}

// Element counts stay below this, so that later code may form bits and bytes of one tensor, and
// sums of a few of them, in int64 without looking.
constexpr int64_t kElementsMax = int64_t{1} << 57;

void check_product(Breaches& out, const std::string& field,
                   std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  std::string text;
  bool fits = true;
  for (const int64_t factor : factors) {
    if (factor <= 0) return;  // reported already, or there is nothing
    if (factor == 1) continue;
    text += fmt::format("{}{}", text.empty() ? "" : " * ", factor);
    fits = fits && !__builtin_mul_overflow(product, factor, &product);
  }
  if (!fits || product > kElementsMax) {
    out.invalid(field, text + " elements", "at most 2^57");
  }
}

struct MatrixSize {
  int64_t experts;
  int64_t n;
  int64_t k;
};

// One matrix, and its [N,G] tensors.
void check_matrix(Breaches& out, const std::string& path, const perch_quant* quant,
                  const MatrixSize& size) {
  check_product(out, path, {size.experts, size.n, size.k});
  const bool readable = quant != nullptr && quant->struct_size <= kStructSizeMax &&
                        PERCH_HAS_FIELD(quant, perch_quant, num_groups);
  if (readable) check_product(out, path + ".num_groups", {size.experts, size.n, quant->num_groups});
}

// Sizes that later code multiplies without looking: every matrix, and x, y and what lies between.
void check_overflow(Breaches& out, const perch_layer_config& config) {
  if (config.kind == PERCH_KIND_LINEAR) {
    const perch_linear_config& linear = *config.linear;
    check_matrix(out, "linear.weight", linear.weight, {1, linear.out_features, linear.in_features});
    check_product(out, "max_tokens", {config.max_tokens, linear.out_features});
    check_product(out, "max_tokens", {config.max_tokens, linear.in_features});
    return;
  }
  const perch_moe_config& moe = *config.moe;
  // Reported already, and twice that is no number.
  if (moe.intermediate < 1 || moe.intermediate > std::numeric_limits<int64_t>::max() / 2) return;
  const int64_t width = perch_gate_up_width(moe.activation, moe.intermediate);
  check_matrix(out, "moe.w13", moe.w13, {moe.num_experts, width, moe.hidden});
  check_matrix(out, "moe.w2", moe.w2, {moe.num_experts, moe.hidden, moe.intermediate});
  int64_t copies = 1;  // of one token
  if (form_is(moe, PERCH_FORM_STANDARD)) copies = moe.topk;
  if (form_is(moe, PERCH_FORM_BATCHED)) copies = moe.num_experts;
  check_product(out, "max_tokens", {config.max_tokens, copies, moe.hidden});
  check_product(out, "max_tokens", {config.max_tokens, copies, width});
}

void check_options(Breaches& out, const perch_layer_config& config) {
  if (config.num_options == 0) return;
  if (!out.check_range("num_options", config.num_options, 0, kOptionsMax)) return;
  if (config.options == nullptr) {
    out.invalid("options", fmt::format("NULL with num_options {}", config.num_options),
                "an array of that many");
    return;
  }
  for (uint32_t i = 0; i < config.num_options; ++i) {
    const char* key = config.options[i].key;
    if (key == nullptr || *key == '\0') {
      out.invalid(fmt::format("options[{}].key", i), key == nullptr ? "NULL" : "''", "a name");
    }
    if (config.options[i].value == nullptr) {
      out.invalid(fmt::format("options[{}].value", i), "NULL", "a text, \"\" for an empty one");
    }
  }
}

void check_caps(Breaches& out, const char* field, perch_caps caps) {
  const perch_caps unknown = caps & ~PERCH_CAPS_KNOWN;
  if (unknown == 0) return;
  out.add(field, print_caps(unknown), "only " + print_caps(PERCH_CAPS_KNOWN), PERCH_E_UNSUPPORTED);
}

void check_layer_fields(Breaches& out, const perch_layer_config& config) {
  out.check_range("device.device_type", config.device.device_type, 1, kInt32Max);
  const bool cpu = config.device.device_type == kDLCPU;
  out.check_range("device.device_id", config.device.device_id, 0, cpu ? 0 : kInt32Max);
  out.check_type("in_dtype", config.in_dtype, {PERCH_TYPE_F32, PERCH_TYPE_F16, PERCH_TYPE_BF16});
  out.check_type("out_dtype", config.out_dtype, {PERCH_TYPE_F32, PERCH_TYPE_F16, PERCH_TYPE_BF16});
  check_caps(out, "require", config.require);
  check_caps(out, "prefer", config.prefer);
  out.check_range("max_tokens", config.max_tokens, 0, std::numeric_limits<int64_t>::max());
  if (config.name == nullptr) out.invalid("name", "NULL", "a text, \"\" for no name");
  out.check_flags("flags", config.flags, PERCH_LAYER_ALLOW_NAN);
  check_options(out, config);
}

}  // namespace

std::vector<RuleBreach> check_layer_config(const perch_layer_config& config) {
  Breaches out;
  if (!out.check_struct("", &config)) return out.take();
  check_layer_fields(out, config);
  if (!out.check_enum("kind", config.kind, kKinds)) return out.take();
  const bool is_moe = config.kind == PERCH_KIND_MOE;
  const bool has_other = is_moe ? config.linear != nullptr : config.moe != nullptr;
  if (has_other) {
    out.invalid(is_moe ? "linear" : "moe", "a pointer",
                fmt::format("NULL, as kind is {}", kKinds[config.kind - 1]));
  }
  const bool readable = is_moe ? check_moe(out, config.moe) : check_linear(out, config.linear);
  if (readable) check_overflow(out, config);
  return out.take();
}

Status breach_status(std::span<const RuleBreach> breaches) {
  if (breaches.empty()) return {};
  std::string text;
  for (const RuleBreach& breach : breaches) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : " | ", breach.field, breach.text);
  }
  return {breaches.front().code, text};
}

}  // namespace perch
