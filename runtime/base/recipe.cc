#include "base/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

namespace perch {
namespace {

constexpr std::string_view kScaleWant = "t, c, g<int> or b<int>[x<int>] after the type";
constexpr std::string_view kExtraWant = "z, zf, z0, off, s2t, s2c, gidx, bias or pre after '+'";

struct Shorthand {
  std::string_view name;
  std::string_view weight;
  std::string_view act;
};
constexpr std::array<Shorthand, 4> kShorthands{{
    {"mxfp4", "e2m1g32:e8m0", "e2m1g32:e8m0"},
    {"mxfp8", "e4m3g32:e8m0", "e4m3g32:e8m0"},
    {"nvfp4", "e2m1g16:e4m3+s2t", "e2m1sg16:e4m3"},
    {"fp8", "e4m3b128:f32", "e4m3t:f32"},
}};

bool is_integer(uint32_t type) { return type >= PERCH_TYPE_INT1 && type <= PERCH_TYPE_INT8; }

// Reads a text from left to right; the first fault stays.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  std::size_t position() const { return at_; }
  bool eat(std::string_view word) {
    if (text_.substr(at_).substr(0, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  // A number in 1..2^32-1 without leading zeros.
  std::optional<uint32_t> number() {
    uint32_t value = 0;
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || value == 0 || *begin == '0') return std::nullopt;
    at_ += static_cast<std::size_t>(stop - begin);
    return value;
  }
  std::optional<uint32_t> type() {
    for (uint32_t type = PERCH_TYPE_F32; type <= PERCH_TYPE_E8M0; ++type) {
      if (eat(type_name(type))) return type;
    }
    return std::nullopt;
  }
  // The fault at this place; its token ends where the next part could begin.
  TextFault fault(std::string_view want) const {
    const std::string_view rest = text_.substr(at_);
    const std::size_t next = rest.find_first_of(":+", rest.empty() ? 0 : 1);
    return {at_, std::string(rest.substr(0, next)), std::string(want)};
  }
  TextFault fault_at(std::size_t position, std::string_view want) const {
    Scanner earlier(text_);
    earlier.at_ = position;
    return earlier.fault(want);
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

using Fault = std::optional<TextFault>;

Fault scan_scale_kind(Scanner& in, perch_quant* quant) {
  constexpr std::string_view kNumber = "a number in 1..4294967295";
  if (in.eat("t")) {
    quant->scale_kind = PERCH_SCALE_TENSOR;
  } else if (in.eat("c")) {
    quant->scale_kind = PERCH_SCALE_CHANNEL;
  } else if (in.eat("g")) {
    const std::optional<uint32_t> group = in.number();
    if (!group) return in.fault(kNumber);
    quant->scale_kind = PERCH_SCALE_GROUP;
    quant->group_k = *group;
  } else if (in.eat("b")) {
    const std::optional<uint32_t> rows = in.number();
    if (!rows) return in.fault(kNumber);
    quant->scale_kind = PERCH_SCALE_BLOCK;
    quant->group_n = *rows;
    quant->group_k = *rows;
    if (in.eat("x")) {
      const std::optional<uint32_t> columns = in.number();
      if (!columns) return in.fault(kNumber);
      quant->group_k = *columns;
    }
  }
  if (quant->scale_kind != PERCH_SCALE_NONE) quant->scale_dtype = PERCH_TYPE_F32;
  return std::nullopt;
}

Fault scan_scale_dtype(Scanner& in, uint32_t* scale_dtype) {
  const std::size_t start = in.position();
  const std::optional<uint32_t> type = in.type();
  const bool known = type && (*type <= PERCH_TYPE_BF16 || *type == PERCH_TYPE_E4M3FN ||
                              *type == PERCH_TYPE_E5M2 || *type == PERCH_TYPE_E8M0);
  if (!known) {
    return in.fault_at(start, "a scale dtype: f32, f16, bf16, e4m3, e5m2 or e8m0 after ':'");
  }
  *scale_dtype = *type;
  return std::nullopt;
}

// Which of an extra's alternatives were given already: one bit per field that extras set.
enum ExtraField : unsigned {
  kZero = 1,
  kOffset = 2,
  kScale2 = 4,
  kOrder = 8,
  kBias = 16,
  kPre = 32
};

// Consumes one extra's name and applies it; 0 when there is none of that name here.
unsigned apply_extra(Scanner& in, perch_quant* quant) {
  if (in.eat("zf")) return quant->zero_kind = PERCH_ZERO_FLOAT, kZero;
  if (in.eat("z0")) return quant->zero_kind = PERCH_ZERO_NONE, kZero;
  if (in.eat("z")) return quant->zero_kind = PERCH_ZERO_INT, kZero;
  if (in.eat("off")) return quant->offset_kind = PERCH_OFFSET_GROUP, kOffset;
  if (in.eat("s2t")) return quant->scale2_kind = PERCH_SCALE2_TENSOR, kScale2;
  if (in.eat("s2c")) return quant->scale2_kind = PERCH_SCALE2_CHANNEL, kScale2;
  if (in.eat("bias")) return quant->flags |= PERCH_QUANT_HAS_BIAS, kBias;
  if (in.eat("pre")) return quant->flags |= PERCH_QUANT_HAS_PRE_SCALE, kPre;
  if (!in.eat("gidx")) return 0;
  quant->k_order = PERCH_K_G_IDX;
  quant->num_groups = in.number().value_or(0);
  return kOrder;
}

Fault scan_extras(Scanner& in, perch_quant* quant) {
  unsigned seen = 0;
  while (in.eat("+")) {
    const std::size_t start = in.position();
    const unsigned field = apply_extra(in, quant);
    if (field == 0) return in.fault(kExtraWant);
    if ((seen & field) != 0) return in.fault_at(start, "each extra, and one kind of it, only once");
    seen |= field;
    const bool no_zero = field == kZero && quant->zero_kind == PERCH_ZERO_NONE;
    if (no_zero && !is_integer(quant->weight)) {
      return in.fault_at(start, "z0 with an int type only: other types have no zero anyway");
    }
  }
  return std::nullopt;
}

// The end of a text, or what might have stood there.
Fault scan_end(const Scanner& in, std::string_view want) {
  if (in.at_end()) return std::nullopt;
  return in.fault(want);
}

template <typename T>
Result<T> to_result(std::string_view what, std::string_view text, const Fault& fault, T value) {
  if (!fault) return value;
  return invalid_argument(fmt::format("{} '{}': at character {}, '{}': want {}", what, text,
                                      fault->offset + 1, fault->token, fault->want));
}

}  // namespace

std::optional<TextFault> scan_weight(std::string_view text, perch_quant* quant) {
  Scanner in(text);
  for (const Shorthand& shorthand : kShorthands) {
    if (!in.eat(shorthand.name)) continue;
    perch_quant parsed{};
    scan_weight(shorthand.weight, &parsed);
    if (Fault fault = scan_extras(in, &parsed)) return fault;
    if (Fault fault = scan_end(in, kExtraWant)) return fault;
    *quant = parsed;
    return std::nullopt;
  }
  const std::optional<uint32_t> type = in.type();
  if (!type || *type == PERCH_TYPE_E8M0) {
    return Scanner(text).fault(
        "a weight type: f32 f16 bf16 int1..int8 e4m3 e5m2 e3m2 e2m3 e2m1 lut4, or mxfp4 mxfp8 "
        "nvfp4 fp8");
  }
  perch_quant parsed = make_quant(*type);
  if (Fault fault = scan_scale_kind(in, &parsed)) return fault;
  const std::size_t colon = in.position();
  if (in.eat(":")) {
    if (parsed.scale_kind == PERCH_SCALE_NONE) return in.fault_at(colon, kScaleWant);
    if (Fault fault = scan_scale_dtype(in, &parsed.scale_dtype)) return fault;
  }
  if (Fault fault = scan_extras(in, &parsed)) return fault;
  const bool bare = parsed.scale_kind == PERCH_SCALE_NONE;
  if (Fault fault =
          scan_end(in, bare ? kScaleWant : "':' and a scale dtype, or '+' and an extra")) {
    return fault;
  }
  *quant = parsed;
  return std::nullopt;
}

Result<perch_quant> parse_weight(std::string_view text) {
  perch_quant quant{};
  const Fault fault = scan_weight(text, &quant);
  return to_result("weight", text, fault, quant);
}

std::string print_weight(const perch_quant& quant) {
  std::string text = type_name(quant.weight);
  if (quant.scale_kind == PERCH_SCALE_TENSOR) text += "t";
  if (quant.scale_kind == PERCH_SCALE_CHANNEL) text += "c";
  if (quant.scale_kind == PERCH_SCALE_GROUP) text += fmt::format("g{}", quant.group_k);
  if (quant.scale_kind == PERCH_SCALE_BLOCK) {
    text += fmt::format("b{}", quant.group_n);
    if (quant.group_k != quant.group_n) text += fmt::format("x{}", quant.group_k);
  }
  if (quant.scale_kind != PERCH_SCALE_NONE)
    text += fmt::format(":{}", type_name(quant.scale_dtype));
  if (quant.zero_kind == PERCH_ZERO_INT) text += "+z";
  if (quant.zero_kind == PERCH_ZERO_FLOAT) text += "+zf";
  if (quant.zero_kind == PERCH_ZERO_NONE && is_integer(quant.weight)) text += "+z0";
  if (quant.offset_kind == PERCH_OFFSET_GROUP) text += "+off";
  if (quant.scale2_kind == PERCH_SCALE2_TENSOR) text += "+s2t";
  if (quant.scale2_kind == PERCH_SCALE2_CHANNEL) text += "+s2c";
  if (quant.k_order == PERCH_K_G_IDX) {
    text += "+gidx";
    if (quant.num_groups != 0) text += fmt::format("{}", quant.num_groups);
  }
  if ((quant.flags & PERCH_QUANT_HAS_BIAS) != 0) text += "+bias";
  if ((quant.flags & PERCH_QUANT_HAS_PRE_SCALE) != 0) text += "+pre";
  return text;
}

std::optional<TextFault> scan_act(std::string_view text, perch_act_quant* act) {
  if (text == "none") {
    *act = make_act_none();
    return std::nullopt;
  }
  for (const Shorthand& shorthand : kShorthands) {
    if (text == shorthand.name) return scan_act(shorthand.act, act);
  }
  Scanner in(text);
  const std::optional<uint32_t> type = in.type();
  const bool known =
      type && (*type == PERCH_TYPE_INT8 || *type == PERCH_TYPE_E4M3FN || *type == PERCH_TYPE_E2M1);
  if (!known) return Scanner(text).fault("none, int8, e4m3, e2m1, mxfp4, mxfp8, nvfp4 or fp8");
  perch_act_quant parsed = make_act_none();
  parsed.dtype = *type;
  parsed.mode = PERCH_ACT_TOKEN;
  parsed.scale_dtype = PERCH_TYPE_F32;
  const bool e2m1 = *type == PERCH_TYPE_E2M1;
  if (in.eat("sg")) {
    parsed.mode = PERCH_ACT_STATIC_GROUP;
    if (e2m1) parsed.scale_dtype = PERCH_TYPE_E4M3FN;
  } else if (in.eat("g")) {
    parsed.mode = PERCH_ACT_GROUP;
    if (e2m1) parsed.scale_dtype = PERCH_TYPE_E8M0;
  } else if (in.eat("s")) {
    parsed.mode = PERCH_ACT_STATIC;
  } else {
    in.eat("t");
  }
  if (parsed.mode == PERCH_ACT_GROUP || parsed.mode == PERCH_ACT_STATIC_GROUP) {
    const std::optional<uint32_t> group = in.number();
    if (!group) return in.fault("a number in 1..4294967295");
    parsed.group = *group;
  }
  if (in.eat(":")) {
    if (Fault fault = scan_scale_dtype(in, &parsed.scale_dtype)) return fault;
  }
  if (Fault fault = scan_end(in, "t, g<int>, s or sg<int>, then ':' and a scale dtype"))
    return fault;
  *act = parsed;
  return std::nullopt;
}

Result<perch_act_quant> parse_act(std::string_view text) {
  perch_act_quant act{};
  const Fault fault = scan_act(text, &act);
  return to_result("input", text, fault, act);
}

std::string print_act(const perch_act_quant& act) {
  if (act.dtype == PERCH_TYPE_NONE) return "none";
  std::string text = type_name(act.dtype);
  if (act.mode == PERCH_ACT_TOKEN) text += "t";
  if (act.mode == PERCH_ACT_STATIC) text += "s";
  if (act.mode == PERCH_ACT_GROUP) text += fmt::format("g{}", act.group);
  if (act.mode == PERCH_ACT_STATIC_GROUP) text += fmt::format("sg{}", act.group);
  const bool usual = act.scale_dtype == PERCH_TYPE_F32 && act.dtype != PERCH_TYPE_E2M1;
  if (!usual) text += fmt::format(":{}", type_name(act.scale_dtype));
  return text;
}

std::string recipe_text(const LayerConfig& config) {
  const perch_layer_config& layer = config.abi();
  const std::string weight = print_weight(config.first());
  const std::string act = print_act(config.act_first());
  std::string text = "w=" + weight;
  if (config.is_moe()) {
    const std::string second = print_weight(config.second());
    if (second != weight) text += " w2=" + second;
  }
  if (act != "none") text += " a=" + act;
  if (config.is_moe()) {
    const std::string second = print_act(config.act_second());
    if (second != act) text += " a2=" + second;
  }
  if (layer.in_dtype != PERCH_TYPE_BF16) text += fmt::format(" in={}", type_name(layer.in_dtype));
  if (layer.out_dtype != PERCH_TYPE_BF16) text += fmt::format(" o={}", type_name(layer.out_dtype));
  if (config.is_moe()) text += " act=" + print_activation(config.moe());
  return text;
}

std::vector<std::string> format_aliases(const perch_quant& quant) {
  std::vector<std::string> names;
  const auto add = [&](std::string_view name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  };
  const std::string full = print_weight(quant);
  add(full);
  add(std::string_view(full).substr(0, full.find('+')));
  add(std::string_view(full).substr(0, full.find_first_of(":+")));
  const uint32_t type = quant.weight;
  const bool grouped = quant.scale_kind == PERCH_SCALE_GROUP;
  const bool mx = grouped && quant.group_k == 32 && quant.scale_dtype == PERCH_TYPE_E8M0;
  const bool nv = grouped && quant.group_k == 16 && quant.scale_dtype == PERCH_TYPE_E4M3FN;
  const bool eight = type == PERCH_TYPE_E4M3FN || type == PERCH_TYPE_E5M2;
  if (mx && type == PERCH_TYPE_E2M1) add("mxfp4");
  if (mx && (type == PERCH_TYPE_E3M2 || type == PERCH_TYPE_E2M3)) add("mxfp6");
  if (mx && eight) add("mxfp8");
  if (nv && type == PERCH_TYPE_E2M1) add("nvfp4");
  if (eight && !mx) add("fp8");
  add(type_name(type));
  return names;
}

std::optional<uint32_t> parse_type(std::string_view name) {
  for (uint32_t type = PERCH_TYPE_F32; type <= PERCH_TYPE_E8M0; ++type) {
    if (name == type_name(type)) return type;
  }
  return std::nullopt;
}

}  // namespace perch
