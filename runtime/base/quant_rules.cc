#include "base/quant_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/layer_config.h"

namespace perch {
namespace {

constexpr int kChainMax = 64;

constexpr const char* kScaleKinds[] = {"NONE", "TENSOR", "CHANNEL", "GROUP", "BLOCK"};
constexpr const char* kScale2Kinds[] = {"NONE", "TENSOR", "CHANNEL"};
constexpr const char* kZeroKinds[] = {"MIDPOINT", "NONE", "INT", "FLOAT"};
constexpr const char* kOffsetKinds[] = {"NONE", "GROUP"};
constexpr const char* kOrders[] = {"NATURAL", "G_IDX"};
constexpr const char* kModes[] = {"NONE", "TOKEN", "GROUP", "STATIC", "STATIC_GROUP"};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

std::string sub_field(const std::string& path, const char* field) {
  return path.empty() ? field : path + "." + field;
}

}  // namespace

void Breaches::add(std::string field, const std::string& got, const std::string& want,
                   perch_status code) {
  breaches_.push_back({std::move(field), fmt::format("got {}; want {}", got, want), code});
}

bool Breaches::check_size(const std::string& path, const void* data, uint32_t struct_size,
                          KnownSizes known) {
  const std::string field = sub_field(path, "struct_size");
  if (struct_size < known.first || struct_size > kStructSizeMax) {
    add(field, fmt::format("{}", struct_size),
        fmt::format("{}..{}, the sizeof of its creator", known.first, kStructSizeMax),
        PERCH_E_ABI_MISMATCH);
    return false;
  }
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t at = known.latest; at < struct_size; ++at) {
    if (bytes[at] == 0) continue;
    add(field, fmt::format("a field at byte {} that is newer than this runtime", at),
        "it zero, or a newer runtime", PERCH_E_UNSUPPORTED);
    break;
  }
  return true;
}

void Breaches::check_chain(const std::string& path, const perch_ext* first) {
  const std::string field = sub_field(path, "next");
  // A loop looks like a chain without end, so its length is known before anything is reported.
  int length = 0;
  for (const perch_ext* ext = first; ext != nullptr; ext = ext->next) {
    if (ext->struct_size < sizeof(perch_ext) || ext->struct_size > kStructSizeMax) {
      add(field, fmt::format("an extension with struct_size {}", ext->struct_size),
          fmt::format("{}..{}", sizeof(perch_ext), kStructSizeMax), PERCH_E_ABI_MISMATCH);
      return;
    }
    if (++length > kChainMax) {
      invalid(field, "a loop, or more than 64 extensions", "a chain that ends");
      return;
    }
  }
  for (const perch_ext* ext = first; ext != nullptr; ext = ext->next) {
    const std::string got = fmt::format("extension {}", ext->type);
    if (ext->type == 0) invalid(field, got, "a type number above 0");
    check_flags(field + ".flags", ext->flags, PERCH_EXT_MUST_UNDERSTAND);
    check_reserved(field + ".reserved0", ext->reserved0);
    if ((ext->flags & PERCH_EXT_MUST_UNDERSTAND) != 0) {
      add(field, got + " with MUST_UNDERSTAND", "none: this runtime knows no extension",
          PERCH_E_UNSUPPORTED);
    }
  }
}

bool Breaches::check_enum(const std::string& field, uint32_t value,
                          std::span<const char* const> names) {
  if (value >= 1 && value <= names.size()) return true;
  add(field, fmt::format("{}", value), joined({names.begin(), names.end()}),
      value == 0 ? PERCH_E_INVALID_ARGUMENT : PERCH_E_UNSUPPORTED);
  return false;
}

bool Breaches::check_type(const std::string& field, uint32_t type,
                          std::initializer_list<uint32_t> allowed) {
  if (std::find(allowed.begin(), allowed.end(), type) != allowed.end()) return true;
  std::vector<std::string> names;
  for (const uint32_t one : allowed) names.emplace_back(type_name(one));
  const bool unknown = type > PERCH_TYPE_E8M0;
  const bool named = type != 0 && !unknown;
  add(field, named ? type_name(type) : fmt::format("{}", type), joined(names),
      unknown ? PERCH_E_UNSUPPORTED : PERCH_E_INVALID_ARGUMENT);
  return false;
}

bool Breaches::check_range(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return true;
  const std::string got = fmt::format("{}", value);
  if (high == std::numeric_limits<int64_t>::max()) {
    invalid(field, got, fmt::format("at least {}", low));
  } else {
    invalid(field, got, low == high ? fmt::format("{}", low) : fmt::format("{}..{}", low, high));
  }
  return false;
}

void Breaches::check_flags(const std::string& field, uint32_t flags, uint32_t known) {
  const uint32_t unknown = flags & ~known;
  if (unknown == 0) return;
  add(field, fmt::format("unknown bits {:#x}", unknown), fmt::format("only {:#x}", known),
      PERCH_E_UNSUPPORTED);
}

void Breaches::check_reserved(const std::string& field, uint32_t value) {
  if (value != 0) add(field, fmt::format("{}", value), "0", PERCH_E_UNSUPPORTED);
}

namespace {

bool is_integer(uint32_t type) { return type >= PERCH_TYPE_INT1 && type <= PERCH_TYPE_INT8; }

bool is_wide_float(uint32_t type) { return type >= PERCH_TYPE_F32 && type <= PERCH_TYPE_BF16; }

// group_k, group_n and scale_dtype: there exactly when the kind of scale has them.
void check_scale_fields(Breaches& out, const std::string& path, const perch_quant& quant) {
  const uint32_t kind = quant.scale_kind;
  const char* name = kScaleKinds[kind - 1];
  const bool has_group_n = kind == PERCH_SCALE_BLOCK;
  const bool has_group_k = kind == PERCH_SCALE_GROUP || has_group_n;
  const auto check_count = [&](const char* field, uint32_t value, bool wanted) {
    if ((value != 0) == wanted) return;
    out.invalid(path + field, std::to_string(value),
                fmt::format("{} with scale_kind {}", wanted ? "at least 1" : "0", name));
  };
  check_count(".group_k", quant.group_k, has_group_k);
  check_count(".group_n", quant.group_n, has_group_n);
  const bool has_dtype = quant.scale_dtype != PERCH_TYPE_NONE;
  if (has_dtype != (kind != PERCH_SCALE_NONE)) {
    out.invalid(path + ".scale_dtype", type_name(quant.scale_dtype),
                fmt::format("{} with scale_kind {}", has_dtype ? "none" : "a float type", name));
  }
  if (kind != PERCH_SCALE_NONE) return;
  if (!is_wide_float(quant.weight)) {
    out.invalid(
        path + ".scale_kind", name,
        fmt::format("a scale: only f32, f16 and bf16 go without, not {}", type_name(quant.weight)));
  }
  if (quant.scale2_kind != PERCH_SCALE2_NONE) {
    out.invalid(path + ".scale2_kind", fmt::format("{}", quant.scale2_kind),
                "NONE (1): a second scale needs a first");
  }
}

// Zeros and offsets are [N,G]; only GROUP has a G, and CHANNEL's is 1.
void check_zero_and_offset(Breaches& out, const std::string& path, const perch_quant& quant) {
  const bool per_group =
      quant.scale_kind == PERCH_SCALE_GROUP || quant.scale_kind == PERCH_SCALE_CHANNEL;
  const char* scale = kScaleKinds[quant.scale_kind - 1];
  const char* zero = kZeroKinds[quant.zero_kind - 1];
  const bool stored = quant.zero_kind == PERCH_ZERO_INT || quant.zero_kind == PERCH_ZERO_FLOAT;
  // A look-up table has no integer codes whose middle or zero could be meant; a float zero is fine.
  const bool lut_float = quant.weight == PERCH_TYPE_LUT4 && quant.zero_kind == PERCH_ZERO_FLOAT;
  if (!is_integer(quant.weight) && quant.zero_kind != PERCH_ZERO_NONE && !lut_float) {
    out.invalid(path + ".zero_kind", zero,
                fmt::format("{} for {}", quant.weight == PERCH_TYPE_LUT4 ? "NONE or FLOAT" : "NONE",
                            type_name(quant.weight)));
  }
  if (stored && !per_group) {
    out.invalid(path + ".zero_kind", zero,
                fmt::format("MIDPOINT or NONE with scale_kind {}: stored zeros need GROUP or "
                            "CHANNEL",
                            scale));
  }
  if (quant.offset_kind == PERCH_OFFSET_GROUP && !per_group) {
    out.invalid(path + ".offset_kind", "GROUP",
                fmt::format("NONE with scale_kind {}: offsets need GROUP or CHANNEL", scale));
  }
}

void check_order(Breaches& out, const std::string& path, const perch_quant& quant) {
  const bool by_index = quant.k_order == PERCH_K_G_IDX;
  if (by_index && quant.scale_kind != PERCH_SCALE_GROUP) {
    out.invalid(path + ".k_order", "G_IDX",
                fmt::format("NATURAL with scale_kind {}: only GROUP has groups to index",
                            kScaleKinds[quant.scale_kind - 1]));
  }
  if (!by_index && quant.num_groups != 0) {
    out.invalid(path + ".num_groups", std::to_string(quant.num_groups), "0 without G_IDX");
  } else if (by_index) {
    // g_idx is int32.
    out.check_range(path + ".num_groups", quant.num_groups, 0, std::numeric_limits<int32_t>::max());
  }
}

struct ActCombination {
  uint32_t dtype;
  uint32_t mode;
  uint32_t scale_dtype;
};

// The rows of contract §2's table.
constexpr ActCombination kActCombinations[] = {
    {PERCH_TYPE_INT8, PERCH_ACT_TOKEN, PERCH_TYPE_F32},
    {PERCH_TYPE_INT8, PERCH_ACT_TOKEN, PERCH_TYPE_E8M0},
    {PERCH_TYPE_INT8, PERCH_ACT_GROUP, PERCH_TYPE_F32},
    {PERCH_TYPE_INT8, PERCH_ACT_GROUP, PERCH_TYPE_E8M0},
    {PERCH_TYPE_INT8, PERCH_ACT_STATIC, PERCH_TYPE_F32},
    {PERCH_TYPE_E4M3FN, PERCH_ACT_TOKEN, PERCH_TYPE_F32},
    {PERCH_TYPE_E4M3FN, PERCH_ACT_TOKEN, PERCH_TYPE_E8M0},
    {PERCH_TYPE_E4M3FN, PERCH_ACT_GROUP, PERCH_TYPE_F32},
    {PERCH_TYPE_E4M3FN, PERCH_ACT_GROUP, PERCH_TYPE_E8M0},
    {PERCH_TYPE_E4M3FN, PERCH_ACT_STATIC, PERCH_TYPE_F32},
    {PERCH_TYPE_E2M1, PERCH_ACT_GROUP, PERCH_TYPE_E8M0},
    {PERCH_TYPE_E2M1, PERCH_ACT_STATIC_GROUP, PERCH_TYPE_E4M3FN},
};

}  // namespace

void check_quant(Breaches& out, const std::string& path, const perch_quant* quant) {
  if (!out.check_struct(path, quant)) return;
  bool known = out.check_type(
      path + ".weight", quant->weight,
      {PERCH_TYPE_F32, PERCH_TYPE_F16, PERCH_TYPE_BF16, PERCH_TYPE_INT1, PERCH_TYPE_INT2,
       PERCH_TYPE_INT3, PERCH_TYPE_INT4, PERCH_TYPE_INT5, PERCH_TYPE_INT6, PERCH_TYPE_INT7,
       PERCH_TYPE_INT8, PERCH_TYPE_E4M3FN, PERCH_TYPE_E5M2, PERCH_TYPE_E3M2, PERCH_TYPE_E2M3,
       PERCH_TYPE_E2M1, PERCH_TYPE_LUT4});
  known &= out.check_type(path + ".scale_dtype", quant->scale_dtype,
                          {PERCH_TYPE_NONE, PERCH_TYPE_F32, PERCH_TYPE_F16, PERCH_TYPE_BF16,
                           PERCH_TYPE_E4M3FN, PERCH_TYPE_E5M2, PERCH_TYPE_E8M0});
  known &= out.check_enum(path + ".scale_kind", quant->scale_kind, kScaleKinds);
  known &= out.check_enum(path + ".scale2_kind", quant->scale2_kind, kScale2Kinds);
  known &= out.check_enum(path + ".zero_kind", quant->zero_kind, kZeroKinds);
  known &= out.check_enum(path + ".offset_kind", quant->offset_kind, kOffsetKinds);
  known &= out.check_enum(path + ".k_order", quant->k_order, kOrders);
  out.check_flags(path + ".flags", quant->flags, PERCH_QUANT_HAS_BIAS | PERCH_QUANT_HAS_PRE_SCALE);
  // What goes together can be judged only where each number means something.
  if (!known) return;
  check_scale_fields(out, path, *quant);
  check_zero_and_offset(out, path, *quant);
  check_order(out, path, *quant);
}

void check_act_quant(Breaches& out, const std::string& path, const perch_act_quant& act) {
  if (!out.check_struct(path, &act)) return;
  bool known =
      out.check_type(path + ".dtype", act.dtype,
                     {PERCH_TYPE_NONE, PERCH_TYPE_INT8, PERCH_TYPE_E4M3FN, PERCH_TYPE_E2M1});
  known &= out.check_type(path + ".scale_dtype", act.scale_dtype,
                          {PERCH_TYPE_NONE, PERCH_TYPE_F32, PERCH_TYPE_E8M0, PERCH_TYPE_E4M3FN});
  known &= out.check_enum(path + ".mode", act.mode, kModes);
  out.check_reserved(path + ".reserved0", act.reserved0);
  if (!known) return;
  const char* mode = kModes[act.mode - 1];
  const bool grouped = act.mode == PERCH_ACT_GROUP || act.mode == PERCH_ACT_STATIC_GROUP;
  if ((act.group != 0) != grouped) {
    out.invalid(path + ".group", std::to_string(act.group),
                fmt::format("{} with mode {}", grouped ? "at least 1" : "0", mode));
  }
  const bool none = act.dtype == PERCH_TYPE_NONE;
  if (none != (act.mode == PERCH_ACT_NONE)) {
    out.invalid(path + ".mode", mode,
                fmt::format("{} with dtype {}", none ? "NONE" : "another", type_name(act.dtype)));
    return;
  }
  if (none) {
    if (act.scale_dtype == PERCH_TYPE_NONE) return;
    out.invalid(path + ".scale_dtype", type_name(act.scale_dtype), "none with dtype none");
    return;
  }
  for (const ActCombination& row : kActCombinations) {
    const bool same = row.dtype == act.dtype && row.mode == act.mode;
    if (same && row.scale_dtype == act.scale_dtype) return;
  }
  out.add(
      path + ".mode",
      fmt::format("{} {} with {} scales", type_name(act.dtype), mode, type_name(act.scale_dtype)),
      "int8 or e4m3: TOKEN or GROUP (f32, e8m0), STATIC (f32); e2m1: GROUP (e8m0), "
      "STATIC_GROUP (e4m3)",
      PERCH_E_UNSUPPORTED);
}

}  // namespace perch
