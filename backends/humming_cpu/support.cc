// support.cc - one check per field; none stops at the first reason. quant_support.cc has those of a
// matrix.
#include "support.h"

#include <cstdio>
#include <cstring>

#include "arena.h"
#include "perch/guard.hpp"
#include "quant_support.h"
#include "scratch.h"

namespace humming_cpu {
namespace {

// Sizes up to here keep every product below in 63 bits.
constexpr int64_t kSizeMax = int64_t{1} << 24;
constexpr int64_t kArenaMax = int64_t{1} << 46;

long long wide(int64_t value) { return static_cast<long long>(value); }

void check_size(int64_t value, const char* field, Reasons* reasons) {
  if (value >= 1 && value <= kSizeMax) return;
  reasons->add(PERCH_REASON_SHAPE, field, "want 1 to %lld, got %lld", wide(kSizeMax), wide(value));
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
