// support.cc - one check per field; none stops at the first reason.
#include "support.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>

#include "arena.h"
#include "perch/guard.hpp"
#include "scratch.h"

namespace humming_cpu {
namespace {

// Sizes up to here keep every product below in 63 bits.
constexpr int64_t kSizeMax = int64_t{1} << 24;
constexpr int64_t kArenaMax = int64_t{1} << 46;

class Reasons {
 public:
  explicit Reasons(perch_support* support) : support_(support) {}
  __attribute__((format(printf, 4, 5))) void add(int32_t code, const char* field,
                                                 const char* format, ...) {
    va_list values;
    va_start(values, format);
    add_list(code, field, format, values);
    va_end(values);
  }
  // A field of a part: "moe.w13" and "group_k" make "moe.w13.group_k".
  __attribute__((format(printf, 5, 6))) void add_in(int32_t code, const char* prefix,
                                                    const char* name, const char* format, ...) {
    char field[sizeof(perch_reason::field)];
    std::snprintf(field, sizeof(field), "%s.%s", prefix, name);
    va_list values;
    va_start(values, format);
    add_list(code, field, format, values);
    va_end(values);
  }

 private:
  __attribute__((format(printf, 4, 0))) void add_list(int32_t code, const char* field,
                                                      const char* format, va_list values) {
    char text[sizeof(perch_reason::text)];
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): the caller has started it
    std::vsnprintf(text, sizeof(text), format, values);
    // A string of unknown length: the copy that add_reason makes cannot be cut, but GCC warns.
    perch_guard::add_reason(support_, code, field, std::string(text).c_str());
  }

  perch_support* support_;
};

const char* type_name(uint32_t type) {
  static constexpr const char* kNames[] = {"0",    "none", "f32",  "f16",  "bf16", "int1", "int2",
                                           "int3", "int4", "int5", "int6", "int7", "int8", "e4m3",
                                           "e5m2", "e3m2", "e2m3", "e2m1", "lut4", "e8m0"};
  return type <= PERCH_TYPE_E8M0 ? kNames[type] : "an unknown type";
}

const char* scale_name(uint32_t kind) {
  static constexpr const char* kNames[] = {"0", "none", "tensor", "channel", "group", "block"};
  return kind <= PERCH_SCALE_BLOCK ? kNames[kind] : "an unknown kind";
}

long long wide(int64_t value) { return static_cast<long long>(value); }

void check_chain(const perch_ext* ext, const char* prefix, Reasons* reasons) {
  // The runtime has refused loops; the bound is for other callers.
  for (int32_t steps = 0; ext != nullptr && steps < 10000; ext = ext->next, ++steps) {
    if ((ext->flags & PERCH_EXT_MUST_UNDERSTAND) == 0) continue;
    reasons->add_in(PERCH_REASON_EXT_UNKNOWN, prefix, "next", "extension %u is not known here",
                    ext->type);
  }
}

void check_size(int64_t value, const char* field, Reasons* reasons) {
  if (value >= 1 && value <= kSizeMax) return;
  reasons->add(PERCH_REASON_SHAPE, field, "want 1 to %lld, got %lld", wide(kSizeMax), wide(value));
}

void check_scales(const perch_quant& quant, const char* prefix, int64_t k, Reasons* reasons) {
  if (quant.weight == PERCH_TYPE_BF16) {
    if (quant.scale_kind != PERCH_SCALE_NONE) {
      reasons->add_in(PERCH_REASON_PACKING, prefix, "scale_kind",
                      "want none with bf16 weights, got %s", scale_name(quant.scale_kind));
    }
    if (quant.scale_dtype != PERCH_TYPE_NONE) {
      reasons->add_in(PERCH_REASON_DTYPE, prefix, "scale_dtype",
                      "want none with bf16 weights, got %s", type_name(quant.scale_dtype));
    }
    return;
  }
  if (quant.scale_kind < PERCH_SCALE_TENSOR || quant.scale_kind > PERCH_SCALE_BLOCK) {
    reasons->add_in(PERCH_REASON_PACKING, prefix, "scale_kind",
                    "want tensor, channel, group or block with int4 weights, got %s",
                    scale_name(quant.scale_kind));
  }
  if (number_of(quant.scale_dtype) == Number::none) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "scale_dtype", "want bf16, f16 or f32, got %s",
                    type_name(quant.scale_dtype));
  }
  const bool grouped =
      quant.scale_kind == PERCH_SCALE_GROUP || quant.scale_kind == PERCH_SCALE_BLOCK;
  if (grouped && (quant.group_k == 0 || quant.group_k % 4 != 0)) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "group_k", "want a multiple of 4, got %u",
                    quant.group_k);
  }
  if (quant.scale_kind == PERCH_SCALE_BLOCK && quant.group_n == 0) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "group_n", "want at least 1, got 0");
  }
  if (grouped && quant.group_k != 0 && quant.num_groups != 0 && k >= 1 &&
      quant.num_groups != (k + quant.group_k - 1) / quant.group_k) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "num_groups", "want ceil(K / group_k) or 0, got %u",
                    quant.num_groups);
  }
}

void check_quant(const perch_quant& quant, const char* prefix, int64_t k, Reasons* reasons) {
  check_chain(quant.next, prefix, reasons);
  const bool int4 = quant.weight == PERCH_TYPE_INT4;
  if (!int4 && quant.weight != PERCH_TYPE_BF16) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "weight", "want bf16 or int4, got %s",
                    type_name(quant.weight));
  } else {
    check_scales(quant, prefix, k, reasons);
  }
  if (quant.scale2_kind != PERCH_SCALE2_NONE) {
    reasons->add_in(PERCH_REASON_PACKING, prefix, "scale2_kind", "want none, got %u",
                    quant.scale2_kind);
  }
  if (int4 && quant.zero_kind != PERCH_ZERO_MIDPOINT && quant.zero_kind != PERCH_ZERO_INT) {
    reasons->add_in(PERCH_REASON_PACKING, prefix, "zero_kind", "want midpoint or int, got %s",
                    quant.zero_kind == PERCH_ZERO_FLOAT ? "float" : "none");
  }
  if (!int4 && quant.zero_kind != PERCH_ZERO_NONE) {
    reasons->add_in(PERCH_REASON_PACKING, prefix, "zero_kind", "want none, got %u",
                    quant.zero_kind);
  }
  if (quant.offset_kind != PERCH_OFFSET_NONE) {
    reasons->add_in(PERCH_REASON_PACKING, prefix, "offset_kind", "want none, got %u",
                    quant.offset_kind);
  }
  if (quant.k_order != PERCH_K_NATURAL) {
    reasons->add_in(PERCH_REASON_PACKING, prefix, "k_order", "want natural, got g_idx");
  }
  if ((quant.flags & PERCH_QUANT_HAS_PRE_SCALE) != 0) {
    reasons->add_in(PERCH_REASON_PACKING, prefix, "flags", "pre_scale is not offered");
  }
  if ((quant.flags & ~(PERCH_QUANT_HAS_BIAS | PERCH_QUANT_HAS_PRE_SCALE)) != 0) {
    reasons->add_in(PERCH_REASON_FIELD_UNKNOWN, prefix, "flags", "unknown bits in 0x%x",
                    quant.flags);
  }
}

void check_act(const perch_act_quant* act, const char* prefix, Reasons* reasons) {
  if (act == nullptr) return;
  check_chain(act->next, prefix, reasons);
  if (act->dtype == PERCH_TYPE_NONE && act->mode == PERCH_ACT_NONE) return;
  if (act->dtype == PERCH_TYPE_NONE) {
    reasons->add_in(PERCH_REASON_FIELD_UNKNOWN, prefix, "mode", "want none, got %u", act->mode);
    return;
  }
  reasons->add_in(PERCH_REASON_DTYPE, prefix, "dtype",
                  "want none (activations are not quantized here), got %s", type_name(act->dtype));
}

void check_moe(const perch_moe_config& moe, Reasons* reasons) {
  check_chain(moe.next, "moe", reasons);
  check_size(moe.hidden, "moe.hidden", reasons);
  check_size(moe.intermediate, "moe.intermediate", reasons);
  if (moe.topk < 1 || moe.topk > 4096) {
    reasons->add(PERCH_REASON_TOPK, "moe.topk", "want 1 to 4096, got %u", moe.topk);
  }
  if (moe.activation < PERCH_ACTIVATION_SILU || moe.activation > PERCH_ACTIVATION_RELU2_NO_MUL) {
    reasons->add(PERCH_REASON_ACTIVATION, "moe.activation", "%u is not known here", moe.activation);
  }
  if (moe.form < PERCH_FORM_STANDARD || moe.form > PERCH_FORM_GROUPED) {
    reasons->add(PERCH_REASON_FIELD_UNKNOWN, "moe.form", "%u is not known here", moe.form);
  }
  constexpr uint32_t kKnown = PERCH_MOE_HAS_ALPHA | PERCH_MOE_HAS_BETA | PERCH_MOE_HAS_LIMIT |
                              PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
  if ((moe.flags & ~kKnown) != 0) {
    reasons->add(PERCH_REASON_FIELD_UNKNOWN, "moe.flags", "unknown bits in 0x%x", moe.flags);
  }
  if ((moe.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) != 0 && moe.topk != 1) {
    reasons->add(PERCH_REASON_TOPK, "moe.topk", "want 1 with router_weight_on_input, got %u",
                 moe.topk);
  }
  check_quant(*moe.w13, "moe.w13", moe.hidden, reasons);
  check_quant(*moe.w2, "moe.w2", moe.intermediate, reasons);
  check_act(moe.act13, "moe.act13", reasons);
  check_act(moe.act2, "moe.act2", reasons);
}

void check_linear(const perch_linear_config& linear, Reasons* reasons) {
  check_chain(linear.next, "linear", reasons);
  check_size(linear.out_features, "linear.out_features", reasons);
  check_size(linear.in_features, "linear.in_features", reasons);
  check_quant(*linear.weight, "linear.weight", linear.in_features, reasons);
  check_act(linear.act, "linear.act", reasons);
}

void check_layer(const perch_layer_config& config, uint32_t variant, Isa isa, Reasons* reasons) {
  check_chain(config.next, "layer", reasons);
  if (variant >= kNumVariants) {
    reasons->add(PERCH_REASON_INTERNAL, "variant", "want 0 (ordered) or 1 (split), got %u",
                 variant);
  }
  if (config.device.device_type != kDLCPU || config.device.device_id != 0) {
    reasons->add(PERCH_REASON_DEVICE, "device", "want cpu:0, got type %d id %d",
                 config.device.device_type, config.device.device_id);
  }
  if (isa == Isa::kNone) {
    reasons->add(PERCH_REASON_DEVICE, "device", "this CPU lacks %s", isa_needs(Isa::kPortable));
  }
  if (number_of(config.in_dtype) == Number::none) {
    reasons->add(PERCH_REASON_DTYPE, "in_dtype", "want bf16, f16 or f32, got %s",
                 type_name(config.in_dtype));
  }
  if (number_of(config.out_dtype) == Number::none) {
    reasons->add(PERCH_REASON_DTYPE, "out_dtype", "want bf16, f16 or f32, got %s",
                 type_name(config.out_dtype));
  }
  if ((config.flags & ~PERCH_LAYER_ALLOW_NAN) != 0) {
    reasons->add(PERCH_REASON_FIELD_UNKNOWN, "flags", "unknown bits in 0x%x", config.flags);
  }
}

// "bf16_int4_bf16_4x32_avx512", "_split" behind it for that variant.
void name_kernel(const LayerPlan& plan, char (&name)[64]) {
  const KernelRow* first = find_kernel(plan.matrix[0].weight, plan.isa);
  const KernelRow* second = find_kernel(plan.matrix[plan.num_matrices - 1].weight, plan.isa);
  const bool same = first == second;
  std::snprintf(name, sizeof(name), "%s_%s%s%s_%s_%s%s", number_name(plan.in), first->weight_name,
                same ? "" : "+", same ? "" : second->weight_name, number_name(plan.out),
                first->tile_name, plan.variant == Variant::split ? "_split" : "");
}

}  // namespace

bool layer_isa(const perch_layer_config& config, Isa fallback, Isa* isa, char (&text)[192]) {
  *isa = fallback;
  for (uint32_t i = 0; i < config.num_options; ++i) {
    const perch_kv& option = config.options[i];
    if (std::strcmp(option.key, "isa") != 0) continue;
    if (!parse_isa(option.value, isa)) {
      std::snprintf(text, sizeof(text), "want one of %s, got '%.64s'", kIsaNames, option.value);
      return false;
    }
    const Isa best = machine_isa();
    if (static_cast<int32_t>(*isa) > static_cast<int32_t>(best)) {
      std::snprintf(text, sizeof(text), "'%s' needs %s; this machine offers %s", option.value,
                    isa_needs(*isa), isa_name(best));
      return false;
    }
  }
  return true;
}

perch_caps variant_caps(Variant variant) {
  constexpr perch_caps kBoth = PERCH_CAP_DETERMINISTIC | PERCH_CAP_NO_ALLOC_EXECUTE |
                               PERCH_CAP_CONCURRENT_EXECUTE | PERCH_CAP_FP32_ACCUM |
                               PERCH_CAP_ROW_STRIDED_ACT | PERCH_CAP_THREADS_FROM_HOST;
  if (variant == Variant::split) return kBoth;
  return kBoth | PERCH_CAP_BATCH_INVARIANT | PERCH_CAP_EXPERT_LOAD_INVARIANT;
}

void query_support(const perch_layer_config& config, uint32_t variant, Isa isa,
                   perch_support* support) {
  perch_guard::begin_support(support, variant);
  Reasons reasons(support);
  check_layer(config, variant, isa, &reasons);
  char text[192];
  if (!layer_isa(config, isa, &isa, text)) {
    reasons.add(PERCH_REASON_OPTION, "options.isa", "%s", text);
  }
  for (uint32_t i = 0; i < config.num_options; ++i) {
    if (std::strcmp(config.options[i].key, "isa") == 0) continue;
    char field[56];
    std::snprintf(field, sizeof(field), "options.%s", config.options[i].key);
    reasons.add(PERCH_REASON_OPTION, field, "not known here; the nearest known key is 'isa'");
  }
  if (config.kind == PERCH_KIND_MOE) {
    check_moe(*config.moe, &reasons);
  } else if (config.kind == PERCH_KIND_LINEAR) {
    check_linear(*config.linear, &reasons);
  } else {
    reasons.add(PERCH_REASON_FIELD_UNKNOWN, "kind", "%u is not known here", config.kind);
  }
  if (support->verdict != PERCH_VERDICT_YES) return;
  const LayerPlan plan = make_plan(config, isa, static_cast<Variant>(variant));
  if (plan.experts > 0 && plan.expert_bytes > kArenaMax / plan.experts) {
    reasons.add(PERCH_REASON_MEMORY, "packed_bytes", "%lld bytes per expert are too many",
                wide(plan.expert_bytes));
    return;
  }
  support->caps = variant_caps(plan.variant);
  // `split` first: it is the faster one where a few rows meet many threads. Whoever needs batch
  // invariance asks for it and gets `ordered`.
  support->score = plan.variant == Variant::split ? 520 : 500;
  support->packed_bytes = Arena::taken(plan.arena_bytes());
  support->workspace_bytes = static_cast<uint64_t>(scratch_bytes(plan, plan.max_tokens));
  name_kernel(plan, support->kernel);
}

}  // namespace humming_cpu
