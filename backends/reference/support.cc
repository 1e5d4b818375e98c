// The rules of the layer; those of a matrix stand in quant_rules.cc.
#include "support.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "execute.h"
#include "layer_spec.h"
#include "quant_rules.h"
#include "reasons.h"

namespace reference {
namespace {

// Sizes beyond this are no layer; the bound keeps every byte count far from overflow.
constexpr int64_t kMaxSize = int64_t{1} << 24;

void check_size(const std::string& field, int64_t size, Reasons* reasons) {
  if (size >= 1 && size <= kMaxSize) return;
  reasons->add(PERCH_REASON_SHAPE, field,
               text("want 1..%lld, got %lld", static_cast<long long>(kMaxSize),
                    static_cast<long long>(size)));
}

void check_float_dtype(const std::string& field, uint32_t dtype, Reasons* reasons) {
  if (dtype == PERCH_TYPE_F32 || dtype == PERCH_TYPE_F16 || dtype == PERCH_TYPE_BF16) return;
  reasons->add(PERCH_REASON_DTYPE, field,
               text("want f32, f16 or bf16, got %s (%u)", type_name(dtype), dtype));
}

// What an activation needs, may have, and which values make sense.
struct Parameter {
  const char* field;
  uint32_t flag;
  bool needed;
  bool allowed;
  bool value_ok;
};

void check_parameter(const Parameter& parameter, const perch_moe_config& moe, Reasons* reasons) {
  const bool present = (moe.flags & parameter.flag) != 0;
  const auto refuse = [&](const char* why) {
    reasons->add(PERCH_REASON_ACTIVATION, parameter.field,
                 text("activation %u %s", moe.activation, why));
  };
  if (present && !parameter.allowed) return refuse("does not use it: it must be absent");
  if (!present && parameter.needed) return refuse("needs it");
  if (present && !parameter.value_ok) refuse("cannot work with its value");
}

void check_activation(const perch_moe_config& moe, Reasons* reasons) {
  const uint32_t act = moe.activation;
  reasons->want_enum(PERCH_REASON_ACTIVATION, "moe.activation", act, PERCH_ACTIVATION_RELU2_NO_MUL);
  const bool silu = act == PERCH_ACTIVATION_SILU;
  const bool oai = act == PERCH_ACTIVATION_SWIGLUOAI;
  const bool step = act == PERCH_ACTIVATION_SWIGLUSTEP;
  const bool situ = act == PERCH_ACTIVATION_SITU;
  const bool alpha_ok = std::isfinite(moe.act_alpha) && (oai || moe.act_alpha >= 0);
  const bool beta_ok = std::isfinite(moe.act_beta) && (oai || moe.act_beta != 0);
  const bool limit_ok = std::isfinite(moe.act_limit) && moe.act_limit > 0;
  check_parameter({"moe.act_alpha", PERCH_MOE_HAS_ALPHA, oai, oai || situ, alpha_ok}, moe, reasons);
  check_parameter({"moe.act_beta", PERCH_MOE_HAS_BETA, oai || situ, oai || situ, beta_ok}, moe,
                  reasons);
  check_parameter(
      {"moe.act_limit", PERCH_MOE_HAS_LIMIT, oai || step, silu || oai || step, limit_ok}, moe,
      reasons);
}

void check_routing(const perch_moe_config& moe, Reasons* reasons) {
  check_size("moe.num_experts_global", moe.num_experts_global, reasons);
  if (moe.num_experts_global < moe.num_experts) {
    reasons->add(
        PERCH_REASON_SHAPE, "moe.num_experts_global",
        text("want at least num_experts %u, got %u", moe.num_experts, moe.num_experts_global));
  }
  reasons->want_enum(PERCH_REASON_FIELD_UNKNOWN, "moe.form", moe.form, PERCH_FORM_GROUPED);
  const bool standard = moe.form == PERCH_FORM_STANDARD;
  if (standard && moe.topk == 0) reasons->add(PERCH_REASON_TOPK, "moe.topk", "want 1 or more");
  if (!(moe.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT)) return;
  if (moe.topk != 1) {
    reasons->add(PERCH_REASON_TOPK, "moe.topk",
                 text("router_weight_on_input wants topk 1, got %u", moe.topk));
  }
  if (!standard) {
    reasons->add(PERCH_REASON_TOPK, "moe.flags",
                 "router_weight_on_input needs the form standard: others carry no weights");
  }
}

void check_moe(const perch_moe_config& moe, Reasons* reasons) {
  reasons->want_known("moe", &moe);
  if (moe.struct_size < sizeof(perch_moe_config)) return;
  reasons->want_flags("moe.flags", moe.flags,
                      PERCH_MOE_HAS_ALPHA | PERCH_MOE_HAS_BETA | PERCH_MOE_HAS_LIMIT |
                          PERCH_MOE_ROUTER_WEIGHT_ON_INPUT);
  check_size("moe.hidden", moe.hidden, reasons);
  check_size("moe.intermediate", moe.intermediate, reasons);
  check_routing(moe, reasons);
  check_activation(moe, reasons);
  check_quant("moe.w13", moe.w13, moe.hidden, reasons);
  check_quant("moe.w2", moe.w2, moe.intermediate, reasons);
  check_act("moe.act13", moe.act13, reasons);
  check_act("moe.act2", moe.act2, reasons);
}

void check_linear(const perch_linear_config& linear, Reasons* reasons) {
  reasons->want_known("linear", &linear);
  if (linear.struct_size < sizeof(perch_linear_config)) return;
  if (linear.reserved0 != 0) {
    reasons->add(PERCH_REASON_FIELD_UNKNOWN, "linear.reserved0", "want 0");
  }
  check_size("linear.out_features", linear.out_features, reasons);
  check_size("linear.in_features", linear.in_features, reasons);
  check_quant("linear.weight", linear.weight, linear.in_features, reasons);
  check_act("linear.act", linear.act, reasons);
}

void check_kind(const perch_layer_config& config, Reasons* reasons) {
  if (config.kind == PERCH_KIND_MOE && config.moe != nullptr && config.linear == nullptr) {
    check_moe(*config.moe, reasons);
  } else if (config.kind == PERCH_KIND_LINEAR && config.linear != nullptr &&
             config.moe == nullptr) {
    check_linear(*config.linear, reasons);
  } else {
    reasons->add(
        PERCH_REASON_FIELD_UNKNOWN, "kind",
        text("kind %u: want linear (1) or moe (2), with exactly that pointer set", config.kind));
  }
}

void check_options(const perch_layer_config& config, Reasons* reasons) {
  for (uint32_t i = 0; i < config.num_options; ++i) {
    reasons->add(PERCH_REASON_OPTION, text("options.%s", config.options[i].key),
                 "unknown: the reference has no options");
  }
}

void check_require(const perch_layer_config& config, Reasons* reasons) {
  static constexpr const char* kNames[] = {"deterministic",
                                           "batch_invariant",
                                           "expert_load_invariant",
                                           "graph_capture",
                                           "async",
                                           "no_alloc_execute",
                                           "concurrent_execute",
                                           "inplace",
                                           "fp32_accum",
                                           "row_strided",
                                           "zero_copy_weights",
                                           "threads_from_host",
                                           "y_may_alias_workspace",
                                           "prequantized_input"};
  for (unsigned bit = 0; bit < 64; ++bit) {
    const perch_caps cap = static_cast<perch_caps>(1) << bit;
    if (!(config.require & cap & ~kCaps)) continue;
    const bool known = (cap & PERCH_CAPS_KNOWN) != 0;
    reasons->add(PERCH_REASON_CAP_MISSING, "require",
                 known ? text("%s is not promised", kNames[bit])
                       : text("capability bit %u is not known", bit));
  }
}

}  // namespace

void answer(const perch_host_api& host, const perch_layer_config& config, perch_support* support) {
  perch_guard::begin_support(support, 0);
  std::snprintf(support->kernel, sizeof(support->kernel), "reference");
  Reasons reasons(support);
  reasons.want_known("layer", &config);
  if (config.struct_size < sizeof(perch_layer_config)) return;
  if (config.device.device_type != kDLCPU || config.device.device_id != 0) {
    reasons.add(
        PERCH_REASON_DEVICE, "device",
        text("want the CPU (1:0), got %d:%d", config.device.device_type, config.device.device_id));
  }
  check_float_dtype("in_dtype", config.in_dtype, &reasons);
  check_float_dtype("out_dtype", config.out_dtype, &reasons);
  reasons.want_flags("flags", config.flags, PERCH_LAYER_ALLOW_NAN);
  if (config.max_tokens < 0) reasons.add(PERCH_REASON_SHAPE, "max_tokens", "is negative");
  check_options(config, &reasons);
  check_require(config, &reasons);
  check_kind(config, &reasons);
  if (support->verdict == PERCH_VERDICT_NO) return;

  const LayerSpec spec(config);
  if (spec.packed_bytes() == kTooManyBytes) {
    return reasons.add(PERCH_REASON_MEMORY, "layer", "its weights do not fit in any memory");
  }
  support->score = 1;
  support->caps = kCaps;
  support->packed_bytes = spec.packed_bytes();
  support->workspace_bytes = workspace_bytes(host, spec, config.max_tokens);
}

}  // namespace reference
