// One rule, one line, one reason; all are reported.
#include "quant_rules.h"

#include "formats.h"
#include "layer_spec.h"

namespace reference {
namespace {

bool is_scale_type(uint32_t type) {
  switch (type) {
    case PERCH_TYPE_F32:
    case PERCH_TYPE_F16:
    case PERCH_TYPE_BF16:
    case PERCH_TYPE_E4M3FN:
    case PERCH_TYPE_E5M2:
    case PERCH_TYPE_E8M0:
      return true;
    default:
      return false;
  }
}

void check_scale(const std::string& path, const perch_quant& quant, Reasons* reasons) {
  const bool has_scale = quant.scale_kind != PERCH_SCALE_NONE;
  if (has_scale && !is_scale_type(quant.scale_dtype)) {
    reasons->add(PERCH_REASON_DTYPE, path + ".scale_dtype",
                 text("want f32, f16, bf16, e4m3, e5m2 or e8m0, got %s (%u)",
                      type_name(quant.scale_dtype), quant.scale_dtype));
  }
  if (!has_scale && quant.scale_dtype != PERCH_TYPE_NONE) {
    reasons->add(PERCH_REASON_DTYPE, path + ".scale_dtype",
                 text("want none without a scale, got %s (%u)", type_name(quant.scale_dtype),
                      quant.scale_dtype));
  }
}

void check_groups(const std::string& path, const perch_quant& quant, int64_t k, Reasons* reasons) {
  const bool block = quant.scale_kind == PERCH_SCALE_BLOCK;
  const bool grouped = quant.scale_kind == PERCH_SCALE_GROUP || block;
  const auto want = [&](bool ok, const char* field, const std::string& why) {
    if (!ok) reasons->add(PERCH_REASON_GROUP, path + field, why);
  };
  want((quant.group_k != 0) == grouped, ".group_k",
       text("want %s, got %u",
            grouped ? "1 or more with a group or block scale" : "0 without a group or block scale",
            quant.group_k));
  want((quant.group_n != 0) == block, ".group_n",
       text("want %s, got %u", block ? "1 or more with a block scale" : "0 without a block scale",
            quant.group_n));
  const bool natural = quant.k_order == PERCH_K_NATURAL;
  want(natural || grouped, ".k_order", "g_idx needs a group or block scale");
  want(quant.num_groups == 0 || quant.scale_kind == PERCH_SCALE_GROUP, ".num_groups",
       text("want 0 without a group scale, got %u", quant.num_groups));
  if (quant.group_k == 0 || quant.num_groups == 0 || !natural || k <= 0) return;
  const int64_t needed = (k + quant.group_k - 1) / quant.group_k;
  want(quant.num_groups >= needed, ".num_groups",
       text("want 0 or at least %lld for K %lld, got %u", static_cast<long long>(needed),
            static_cast<long long>(k), quant.num_groups));
}

void check_zero(const std::string& path, const perch_quant& quant, Reasons* reasons) {
  const bool integer = is_integer_type(quant.weight);
  const bool lut = quant.weight == PERCH_TYPE_LUT4;
  // The codes of a table have no middle, and no integer stands for one of its values.
  const bool ok =
      integer || quant.zero_kind == PERCH_ZERO_NONE || (lut && quant.zero_kind == PERCH_ZERO_FLOAT);
  if (ok) return;
  reasons->add(PERCH_REASON_DTYPE, path + ".zero_kind",
               text("kind %u is not one of %s weights", quant.zero_kind, type_name(quant.weight)));
}

bool is_scheme(const perch_act_quant& act) {
  const bool e8m0 = act.scale_dtype == PERCH_TYPE_E8M0;
  switch (act.mode) {
    case PERCH_ACT_TOKEN:
      return act.dtype != PERCH_TYPE_E2M1 && (act.scale_dtype == PERCH_TYPE_F32 || e8m0);
    case PERCH_ACT_GROUP:
      if (act.dtype == PERCH_TYPE_E2M1) return e8m0;
      return act.scale_dtype == PERCH_TYPE_F32 || e8m0;
    case PERCH_ACT_STATIC:
      return act.dtype != PERCH_TYPE_E2M1 && act.scale_dtype == PERCH_TYPE_F32;
    case PERCH_ACT_STATIC_GROUP:
      return act.dtype == PERCH_TYPE_E2M1 && act.scale_dtype == PERCH_TYPE_E4M3FN;
    default:
      return false;
  }
}

}  // namespace

void check_quant(const std::string& path, const perch_quant* quant, int64_t k, Reasons* reasons) {
  if (quant == nullptr) {
    reasons->add(PERCH_REASON_DTYPE, path, "is NULL");
    return;
  }
  reasons->want_known(path, quant);
  if (quant->struct_size < sizeof(perch_quant)) return;
  if (quant->weight < PERCH_TYPE_F32 || quant->weight > PERCH_TYPE_LUT4) {
    reasons->add(PERCH_REASON_DTYPE, path + ".weight",
                 text("%s (%u) is no weight type", type_name(quant->weight), quant->weight));
  }
  const int32_t unknown = PERCH_REASON_FIELD_UNKNOWN;
  reasons->want_enum(unknown, path + ".scale_kind", quant->scale_kind, PERCH_SCALE_BLOCK);
  reasons->want_enum(unknown, path + ".scale2_kind", quant->scale2_kind, PERCH_SCALE2_CHANNEL);
  reasons->want_enum(unknown, path + ".zero_kind", quant->zero_kind, PERCH_ZERO_FLOAT);
  reasons->want_enum(unknown, path + ".offset_kind", quant->offset_kind, PERCH_OFFSET_GROUP);
  reasons->want_enum(unknown, path + ".k_order", quant->k_order, PERCH_K_G_IDX);
  reasons->want_flags(path + ".flags", quant->flags,
                      PERCH_QUANT_HAS_BIAS | PERCH_QUANT_HAS_PRE_SCALE);
  check_scale(path, *quant, reasons);
  check_groups(path, *quant, k, reasons);
  check_zero(path, *quant, reasons);
}

void check_act(const std::string& path, const perch_act_quant* act, Reasons* reasons) {
  if (act == nullptr) return;
  reasons->want_known(path, act);
  if (act->struct_size < sizeof(perch_act_quant)) return;
  if (act->reserved0 != 0) {
    reasons->add(PERCH_REASON_FIELD_UNKNOWN, path + ".reserved0", "want 0");
  }
  reasons->want_enum(PERCH_REASON_FIELD_UNKNOWN, path + ".mode", act->mode, PERCH_ACT_STATIC_GROUP);
  const bool none = act->dtype == PERCH_TYPE_NONE;
  const bool known_dtype = none || act->dtype == PERCH_TYPE_INT8 ||
                           act->dtype == PERCH_TYPE_E4M3FN || act->dtype == PERCH_TYPE_E2M1;
  if (!known_dtype) {
    reasons->add(
        PERCH_REASON_DTYPE, path + ".dtype",
        text("want none, int8, e4m3 or e2m1, got %s (%u)", type_name(act->dtype), act->dtype));
  }
  if (none != (act->mode == PERCH_ACT_NONE)) {
    reasons->add(PERCH_REASON_DTYPE, path + ".mode",
                 "mode none goes with dtype none, and only with it");
  } else if (none && act->scale_dtype != PERCH_TYPE_NONE) {
    reasons->add(PERCH_REASON_DTYPE, path + ".scale_dtype", "want none without quantization");
  } else if (!none && known_dtype && !is_scheme(*act)) {
    reasons->add(PERCH_REASON_DTYPE, path + ".scale_dtype",
                 text("%s in mode %u with %s scales is no scheme of the contract",
                      type_name(act->dtype), act->mode, type_name(act->scale_dtype)));
  }
  const bool grouped = act->mode == PERCH_ACT_GROUP || act->mode == PERCH_ACT_STATIC_GROUP;
  if ((act->group != 0) != grouped) {
    reasons->add(PERCH_REASON_GROUP, path + ".group",
                 text("want %s, got %u", grouped ? "1 or more" : "0 in this mode", act->group));
  }
}

}  // namespace reference
