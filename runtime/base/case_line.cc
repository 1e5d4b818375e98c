#include "base/case_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/config_rules.h"
#include "base/nearest.h"
#include "base/recipe.h"

namespace perch {
namespace {

using Fault = std::optional<TextFault>;

Fault fault_in(std::string_view text, std::string want) {
  return TextFault{0, std::string(text), std::move(want)};
}

// All of `text` as a number in [low, high], without sign, spaces or leading zeros: one number, one
// spelling.
template <typename T>
bool read_number(std::string_view text, T low, T high, T* value) {
  if (text.empty() || (text[0] == '0' && text.size() > 1) || text[0] == '-') return false;
  T parsed{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  if (error != std::errc() || stop != end || parsed < low || parsed > high) return false;
  *value = parsed;
  return true;
}

template <typename T>
Fault scan_number(std::string_view text, T low, T high, T* value) {
  if (read_number(text, low, high, value)) return std::nullopt;
  return fault_in(text, fmt::format("a number in {}..{}", low, high));
}

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr uint32_t kInt32Max = std::numeric_limits<int32_t>::max();

Fault scan_size(std::string_view text, int64_t* value) {
  return scan_number<int64_t>(text, 1, kInt64Max, value);
}
Fault scan_count(std::string_view text, uint32_t* value) {
  return scan_number<uint32_t>(text, 1, kInt32Max, value);
}

Fault scan_io_dtype(std::string_view text, uint32_t* dtype) {
  const std::optional<uint32_t> type = parse_type(text);
  if (!type || *type > PERCH_TYPE_BF16) return fault_in(text, "f32, f16 or bf16");
  *dtype = *type;
  return std::nullopt;
}

Fault scan_form(std::string_view text, uint32_t* form) {
  if (text != "batched" && text != "grouped") return fault_in(text, "batched or grouped");
  *form = text == "batched" ? PERCH_FORM_BATCHED : PERCH_FORM_GROUPED;
  return std::nullopt;
}

Fault scan_ep(std::string_view text, Case* problem) {
  const std::size_t slash = std::min(text.find('/'), text.size());
  const std::string_view size = text.substr(std::min(slash + 1, text.size()));
  const bool good = read_number(size, 1, std::numeric_limits<int>::max(), &problem->ep_size) &&
                    read_number(text.substr(0, slash), 0, problem->ep_size - 1, &problem->ep_rank);
  if (good) return std::nullopt;
  return fault_in(text, "<rank>/<number of ranks> with rank below it, as 0/4");
}

Fault scan_load_text(std::string_view text, Case* problem) {
  ExpertLoad load;
  problem->load = text;  // its numbers have one spelling, so the text is canonical
  return scan_load(text, &load);
}

Fault scan_kernel(std::string_view text, Case* problem) {
  if (text.empty()) return fault_in(text, "a kernel's name");
  problem->kernel = text;
  return std::nullopt;
}

// ---- Keys --------------------------------------------------------------------------------------

enum class Style { kSize, kValue, kWord };  // h64, w=bf16, strided

enum Kinds : unsigned { kMoe = 1, kLinear = 2, kBoth = 3 };

struct Key {
  std::string_view name;
  Style style;
  unsigned kinds;     // where it may stand
  unsigned required;  // where it must
  Fault (*scan)(std::string_view value, Case* problem);
};

constexpr Key kKeys[] = {
    {"t", Style::kSize, kBoth, kBoth,
     [](std::string_view v, Case* c) { return scan_number<int64_t>(v, 0, kInt64Max, &c->t); }},
    {"e", Style::kSize, kMoe, kMoe,
     [](std::string_view v, Case* c) -> Fault {
       const Fault fault = scan_count(v, &c->config.moe().num_experts);
       if (fault || c->config.moe().num_experts > 0) return fault;
       return fault_in(v, "1 expert or more");  // a rank without experts has nothing to check
     }},
    {"eg", Style::kSize, kMoe, 0,
     [](std::string_view v, Case* c) {
       return scan_count(v, &c->config.moe().num_experts_global);
     }},
    {"top", Style::kSize, kMoe, kMoe,
     [](std::string_view v, Case* c) { return scan_count(v, &c->config.moe().topk); }},
    {"h", Style::kSize, kMoe, kMoe,
     [](std::string_view v, Case* c) { return scan_size(v, &c->config.moe().hidden); }},
    {"i", Style::kSize, kMoe, kMoe,
     [](std::string_view v, Case* c) { return scan_size(v, &c->config.moe().intermediate); }},
    {"n", Style::kSize, kLinear, kLinear,
     [](std::string_view v, Case* c) { return scan_size(v, &c->config.linear().out_features); }},
    {"k", Style::kSize, kLinear, kLinear,
     [](std::string_view v, Case* c) { return scan_size(v, &c->config.linear().in_features); }},
    {"w", Style::kValue, kBoth, kBoth,
     [](std::string_view v, Case* c) { return scan_weight(v, &c->config.first()); }},
    {"w2", Style::kValue, kMoe, 0,
     [](std::string_view v, Case* c) { return scan_weight(v, &c->config.second()); }},
    {"a", Style::kValue, kBoth, 0,
     [](std::string_view v, Case* c) { return scan_act(v, &c->config.act_first()); }},
    {"a2", Style::kValue, kMoe, 0,
     [](std::string_view v, Case* c) { return scan_act(v, &c->config.act_second()); }},
    {"in", Style::kValue, kBoth, 0,
     [](std::string_view v, Case* c) { return scan_io_dtype(v, &c->config.layer().in_dtype); }},
    {"o", Style::kValue, kBoth, 0,
     [](std::string_view v, Case* c) { return scan_io_dtype(v, &c->config.layer().out_dtype); }},
    {"act", Style::kValue, kMoe, kMoe,
     [](std::string_view v, Case* c) { return scan_activation(v, &c->config.moe()); }},
    {"form", Style::kValue, kMoe, 0,
     [](std::string_view v, Case* c) { return scan_form(v, &c->config.moe().form); }},
    {"load", Style::kValue, kMoe, 0, scan_load_text},
    {"ids", Style::kValue, kMoe, 0,
     [](std::string_view v, Case* c) {
       c->ids64 = v == "i64";
       return c->ids64 ? Fault() : fault_in(v, "i64");
     }},
    {"wx", Style::kWord, kMoe, 0,
     [](std::string_view, Case* c) {
       c->config.moe().flags |= PERCH_MOE_ROUTER_WEIGHT_ON_INPUT;
       return Fault();
     }},
    {"ep", Style::kValue, kMoe, 0, scan_ep},
    {"strided", Style::kWord, kBoth, 0,
     [](std::string_view, Case* c) {
       c->strided = true;
       return Fault();
     }},
    {"seed", Style::kValue, kBoth, 0,
     [](std::string_view v, Case* c) {
       return scan_number<uint64_t>(v, 0, std::numeric_limits<uint64_t>::max(), &c->seed);
     }},
    {"kernel", Style::kValue, kBoth, 0, scan_kernel},
    {"threads", Style::kValue, kBoth, 0,
     [](std::string_view v, Case* c) {
       return scan_number(v, 1, std::numeric_limits<int>::max(), &c->threads);
     }},
    {"require", Style::kValue, kBoth, 0,
     [](std::string_view v, Case* c) { return scan_caps(v, &c->config.layer().require); }},
};
constexpr std::size_t kKeyCount = std::size(kKeys);

// A key as it is written: "h<int>", "w=", "strided".
std::string shown(const Key& key) {
  if (key.style == Style::kSize) return fmt::format("{}<int>", key.name);
  return fmt::format("{}{}", key.name, key.style == Style::kValue ? "=" : "");
}

// ---- Parsing -----------------------------------------------------------------------------------

struct Token {
  std::size_t column;  // from 0
  std::string_view text;
};

std::vector<Token> split(std::string_view line) {
  std::vector<Token> tokens;
  constexpr std::string_view kSpace = " \t\r\n";
  for (std::size_t at = line.find_first_not_of(kSpace); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kSpace, at), line.size());
    tokens.push_back({at, line.substr(at, end - at)});
    at = line.find_first_not_of(kSpace, end);
  }
  return tokens;
}

class CaseParser {
 public:
  explicit CaseParser(std::string_view line) : line_(line) {}

  Result<Case> parse() {
    const std::vector<Token> tokens = split(line_);
    const std::string_view kind = tokens.empty() ? std::string_view() : tokens[0].text;
    if (kind != "moe" && kind != "linear") {
      return error_at({tokens.empty() ? 0 : tokens[0].column, kind}, "moe or linear first");
    }
    kind_ = kind == "moe" ? kMoe : kLinear;
    const perch_quant quant = make_quant(PERCH_TYPE_BF16);
    problem_.config = kind_ == kMoe ? LayerConfig::make_moe("", quant, quant)
                                    : LayerConfig::make_linear("", 0, 0, quant);
    for (const Token& token : std::span(tokens).subspan(1)) {
      PERCH_RETURN_IF_ERROR(parse_token(token));
    }
    for (std::size_t i = 0; i < kKeyCount; ++i) {
      const bool missing = !seen_[i] && (kKeys[i].required & kind_) != 0;
      if (missing) return error_at({line_.size(), ""}, shown(kKeys[i]) + ", which is missing");
    }
    PERCH_RETURN_IF_ERROR(finish());
    return std::move(problem_);
  }

 private:
  static Status error_at(const Token& token, const std::string& want) {
    return invalid_argument(
        fmt::format("column {}: '{}': want {}", token.column + 1, token.text, want));
  }

  // The key's name is what precedes '=', or the letters of a size.
  static std::pair<std::string_view, Style> key_of(std::string_view token) {
    const std::size_t equals = token.find('=');
    if (equals != std::string_view::npos) return {token.substr(0, equals), Style::kValue};
    const std::size_t digit = token.find_first_of("-0123456789");
    if (digit != std::string_view::npos) return {token.substr(0, digit), Style::kSize};
    return {token, Style::kWord};
  }

  static std::size_t find_key(std::string_view name) {
    const auto same = [&](const Key& key) { return key.name == name; };
    return static_cast<std::size_t>(std::find_if(kKeys, kKeys + kKeyCount, same) - kKeys);
  }

  Status unknown_key(const Token& token, std::string_view name) const {
    std::vector<std::string_view> names;
    std::string all;
    for (const Key& key : kKeys) {
      if ((key.kinds & kind_) == 0) continue;
      names.push_back(key.name);
      all += " " + shown(key);
    }
    const auto near = nearest_name(name, names);
    if (!near) return error_at(token, "one of:" + all);
    return error_at(token, fmt::format("a key of this kind of layer; did you mean '{}'?",
                                       shown(kKeys[find_key(*near)])));
  }

  Status parse_token(const Token& token) {
    const auto [name, style] = key_of(token.text);
    const std::size_t index = find_key(name);
    if (index == kKeyCount) return unknown_key(token, name);
    const Key& key = kKeys[index];
    if ((key.kinds & kind_) == 0) {
      return error_at(
          token, fmt::format("no {} in a {} case", shown(key), kind_ == kMoe ? "moe" : "linear"));
    }
    if (key.style != style) return error_at(token, shown(key));
    if (seen_[index]) return error_at(token, shown(key) + " only once");
    seen_[index] = true;
    tokens_[index] = token;
    const std::size_t skipped = name.size() + (style == Style::kValue ? 1 : 0);
    const Fault fault = key.scan(token.text.substr(skipped), &problem_);
    if (!fault) return {};
    return error_at({token.column + skipped + fault->offset, fault->token}, fault->want);
  }

  bool seen(std::string_view name) const { return seen_[find_key(name)]; }

  // Fills what the line leaves out and checks what no single key can tell.
  Status finish() {
    LayerConfig& config = problem_.config;
    config.layer().max_tokens = problem_.t;
    if (kind_ == kMoe) {
      if (!seen("w2")) config.second() = config.first();
      if (!seen("a2")) config.act_second() = config.act_first();
      perch_moe_config& moe = config.moe();
      if (!seen("eg")) moe.num_experts_global = moe.num_experts;
    }
    const std::vector<RuleBreach> breaches = check_layer_config(config.abi());
    if (!breaches.empty()) return rule_error(breaches[0]);
    ExpertLoad load;
    scan_load(problem_.load, &load);
    for (const int64_t expert : load.experts) {
      const uint32_t experts = config.moe().num_experts_global;
      if (expert < experts) continue;
      return error_at(tokens_[find_key("load")], fmt::format("experts below {}", experts));
    }
    return {};
  }

  // A breach at the key that its field came from.
  Status rule_error(const RuleBreach& breach) const {
    struct FieldKey {
      std::string_view field;
      std::string_view key;
      std::string_view otherwise;  // where `key` was not given
    };
    static constexpr FieldKey kFieldKeys[] = {
        {"moe.num_experts_global", "eg", "e"},
        {"moe.num_experts", "e", ""},
        {"moe.topk", "top", ""},
        {"moe.hidden", "h", ""},
        {"moe.intermediate", "i", ""},
        {"moe.act13", "a", ""},
        {"moe.act2", "a2", "a"},
        {"moe.act", "act", ""},
        {"moe.flags", "wx", ""},
        {"moe.form", "form", ""},
        {"moe.w13", "w", ""},
        {"moe.w2", "w2", "w"},
        {"linear.weight", "w", ""},
        {"linear.act", "a", ""},
        {"linear.out_features", "n", ""},
        {"linear.in_features", "k", ""},
        {"max_tokens", "t", ""},
    };
    for (const FieldKey& row : kFieldKeys) {
      if (std::string_view(breach.field).substr(0, row.field.size()) != row.field) continue;
      const Token& token = tokens_[find_key(seen(row.key) ? row.key : row.otherwise)];
      return {breach.code, fmt::format("column {}: '{}': {}: {}", token.column + 1, token.text,
                                       breach.field, breach.text)};
    }
    return {breach.code, breach.field + ": " + breach.text};
  }

  std::string_view line_;
  unsigned kind_ = 0;
  Case problem_;
  bool seen_[kKeyCount] = {};
  Token tokens_[kKeyCount] = {};
};

}  // namespace

Result<Case> parse_case(std::string_view line) { return CaseParser(line).parse(); }

std::string print_case(const Case& problem) {
  const LayerConfig& config = problem.config;
  std::string text;
  if (config.is_moe()) {
    const perch_moe_config& moe = config.moe();
    text = fmt::format("moe t{} e{}", problem.t, moe.num_experts);
    if (moe.num_experts_global != moe.num_experts) {
      text += fmt::format(" eg{}", moe.num_experts_global);
    }
    text += fmt::format(" top{} h{} i{} ", moe.topk, moe.hidden, moe.intermediate);
  } else {
    const perch_linear_config& linear = config.linear();
    text = fmt::format("linear t{} n{} k{} ", problem.t, linear.out_features, linear.in_features);
  }
  text += recipe_text(config);
  if (config.is_moe()) {
    const perch_moe_config& moe = config.moe();
    if (moe.form == PERCH_FORM_BATCHED) text += " form=batched";
    if (moe.form == PERCH_FORM_GROUPED) text += " form=grouped";
    if (problem.load != "uniform") text += " load=" + problem.load;
    if (problem.ids64) text += " ids=i64";
    if ((moe.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) != 0) text += " wx";
    if (problem.ep_size != 1) text += fmt::format(" ep={}/{}", problem.ep_rank, problem.ep_size);
  }
  if (problem.strided) text += " strided";
  if (problem.seed != 0) text += fmt::format(" seed={}", problem.seed);
  if (!problem.kernel.empty()) text += " kernel=" + problem.kernel;
  if (problem.threads != 0) text += fmt::format(" threads={}", problem.threads);
  if (config.abi().require != 0) text += " require=" + print_caps(config.abi().require);
  return text;
}

}  // namespace perch
