#include "quant_support.h"

#include "plan.h"

namespace humming_cpu {

const char* type_name(uint32_t type) {
  static constexpr const char* kNames[] = {"0",    "none", "f32",  "f16",  "bf16", "int1", "int2",
                                           "int3", "int4", "int5", "int6", "int7", "int8", "e4m3",
                                           "e5m2", "e3m2", "e2m3", "e2m1", "lut4", "e8m0"};
  return type <= PERCH_TYPE_E8M0 ? kNames[type] : "an unknown type";
}

namespace {

const char* scale_name(uint32_t kind) {
  static constexpr const char* kNames[] = {"0", "none", "tensor", "channel", "group", "block"};
  return kind <= PERCH_SCALE_BLOCK ? kNames[kind] : "an unknown kind";
}

void check_scales(const perch_quant& quant, const char* prefix, Reasons* reasons) {
  if (quant.scale_kind < PERCH_SCALE_NONE || quant.scale_kind > PERCH_SCALE_BLOCK) {
    reasons->add_in(PERCH_REASON_PACKING, prefix, "scale_kind",
                    "want none, tensor, channel, group or block, got %s",
                    scale_name(quant.scale_kind));
    return;
  }
  const bool scaled = quant.scale_kind != PERCH_SCALE_NONE;
  const bool byte = quant.scale_dtype == PERCH_TYPE_E4M3FN ||
                    quant.scale_dtype == PERCH_TYPE_E5M2 || quant.scale_dtype == PERCH_TYPE_E8M0;
  if (scaled && number_of(quant.scale_dtype) == Number::none && !byte) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "scale_dtype",
                    "want f32, f16, bf16, e4m3, e5m2 or e8m0, got %s",
                    type_name(quant.scale_dtype));
  }
  if (!scaled && quant.scale_dtype != PERCH_TYPE_NONE) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "scale_dtype", "want none without a scale, got %s",
                    type_name(quant.scale_dtype));
  }
}

void check_groups(const perch_quant& quant, const char* prefix, int64_t k, Reasons* reasons) {
  const bool block = quant.scale_kind == PERCH_SCALE_BLOCK;
  const bool grouped = quant.scale_kind == PERCH_SCALE_GROUP || block;
  if ((quant.group_k != 0) != grouped) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "group_k", "want %s, got %u",
                    grouped ? "at least 1" : "0 without groups", quant.group_k);
  }
  if ((quant.group_n != 0) != block) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "group_n", "want %s, got %u",
                    block ? "at least 1" : "0 without blocks", quant.group_n);
  }
  const bool natural = quant.k_order == PERCH_K_NATURAL;
  if (!natural && !grouped) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "k_order", "g_idx needs groups");
  }
  if (quant.num_groups == 0) return;
  if (quant.scale_kind != PERCH_SCALE_GROUP || quant.num_groups > kGroupsMax) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "num_groups", "want 0 or, with groups, up to %u",
                    kGroupsMax);
  } else if (natural && quant.group_k != 0 && k >= 1 &&
             quant.num_groups < (k + quant.group_k - 1) / quant.group_k) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "num_groups",
                    "want 0 or at least ceil(K / group_k), got %u", quant.num_groups);
  }
}

void check_zero(const perch_quant& quant, const char* prefix, Reasons* reasons) {
  if (quant.zero_kind < PERCH_ZERO_MIDPOINT || quant.zero_kind > PERCH_ZERO_FLOAT) {
    reasons->add_in(PERCH_REASON_FIELD_UNKNOWN, prefix, "zero_kind", "%u is not known here",
                    quant.zero_kind);
    return;
  }
  // The codes of a table have no middle, and no integer stands for one of its values.
  const bool table = quant.weight == PERCH_TYPE_LUT4 && quant.zero_kind == PERCH_ZERO_FLOAT;
  if (type_is_integer(quant.weight) || quant.zero_kind == PERCH_ZERO_NONE || table) return;
  reasons->add_in(PERCH_REASON_DTYPE, prefix, "zero_kind", "kind %u is not one of %s weights",
                  quant.zero_kind, type_name(quant.weight));
}

bool is_scheme(const perch_act_quant& act) {
  const bool e2m1 = act.dtype == PERCH_TYPE_E2M1;
  const bool f32 = act.scale_dtype == PERCH_TYPE_F32;
  const bool e8m0 = act.scale_dtype == PERCH_TYPE_E8M0;
  switch (act.mode) {
    case PERCH_ACT_TOKEN:
      return !e2m1 && (f32 || e8m0);
    case PERCH_ACT_GROUP:
      return e8m0 || (f32 && !e2m1);
    case PERCH_ACT_STATIC:
      return !e2m1 && f32;
    case PERCH_ACT_STATIC_GROUP:
      return e2m1 && act.scale_dtype == PERCH_TYPE_E4M3FN;
    default:
      return false;
  }
}

}  // namespace

void check_chain(const perch_ext* ext, const char* prefix, Reasons* reasons) {
  // The runtime has refused loops; the bound is for other callers.
  for (int32_t steps = 0; ext != nullptr && steps < 10000; ext = ext->next, ++steps) {
    if ((ext->flags & PERCH_EXT_MUST_UNDERSTAND) == 0) continue;
    reasons->add_in(PERCH_REASON_EXT_UNKNOWN, prefix, "next", "extension %u is not known here",
                    ext->type);
  }
}

void check_quant(const perch_quant& quant, const char* prefix, int64_t k, Reasons* reasons) {
  check_chain(quant.next, prefix, reasons);
  if (type_bits(quant.weight) == 0) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "weight", "%s (%u) is no weight type",
                    type_name(quant.weight), quant.weight);
  }
  check_scales(quant, prefix, reasons);
  check_groups(quant, prefix, k, reasons);
  check_zero(quant, prefix, reasons);
  const auto check_kind = [&](uint32_t kind, uint32_t first, uint32_t last, const char* field) {
    if (kind >= first && kind <= last) return;
    reasons->add_in(PERCH_REASON_FIELD_UNKNOWN, prefix, field, "%u is not known here", kind);
  };
  check_kind(quant.scale2_kind, PERCH_SCALE2_NONE, PERCH_SCALE2_CHANNEL, "scale2_kind");
  check_kind(quant.offset_kind, PERCH_OFFSET_NONE, PERCH_OFFSET_GROUP, "offset_kind");
  check_kind(quant.k_order, PERCH_K_NATURAL, PERCH_K_G_IDX, "k_order");
  if ((quant.flags & ~(PERCH_QUANT_HAS_BIAS | PERCH_QUANT_HAS_PRE_SCALE)) != 0) {
    reasons->add_in(PERCH_REASON_FIELD_UNKNOWN, prefix, "flags", "unknown bits in 0x%x",
                    quant.flags);
  }
}

void check_act(const perch_act_quant* act, const char* prefix, Reasons* reasons) {
  if (act == nullptr) return;
  check_chain(act->next, prefix, reasons);
  const bool grouped = act->mode == PERCH_ACT_GROUP || act->mode == PERCH_ACT_STATIC_GROUP;
  if ((act->group != 0) != grouped) {
    reasons->add_in(PERCH_REASON_GROUP, prefix, "group", "want %s, got %u",
                    grouped ? "at least 1" : "0 in this mode", act->group);
  }
  const bool none = act->dtype == PERCH_TYPE_NONE;
  if (none != (act->mode == PERCH_ACT_NONE)) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "mode",
                    "mode none goes with dtype none, and only with it");
  } else if (none && act->scale_dtype != PERCH_TYPE_NONE) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "scale_dtype", "want none, got %s",
                    type_name(act->scale_dtype));
  } else if (!none && act->dtype != PERCH_TYPE_INT8 && act->dtype != PERCH_TYPE_E4M3FN &&
             act->dtype != PERCH_TYPE_E2M1) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "dtype", "want none, int8, e4m3 or e2m1, got %s",
                    type_name(act->dtype));
  } else if (!none && !is_scheme(*act)) {
    reasons->add_in(PERCH_REASON_DTYPE, prefix, "scale_dtype",
                    "%s in mode %u with %s scales is no scheme of the contract",
                    type_name(act->dtype), act->mode, type_name(act->scale_dtype));
  }
}

}  // namespace humming_cpu
