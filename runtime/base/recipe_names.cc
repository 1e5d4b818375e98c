// The names in recipe.h's texts that are not number formats: activations and capabilities.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

#include "base/recipe.h"

namespace perch {
namespace {
constexpr uint32_t kAlpha = PERCH_MOE_HAS_ALPHA;
constexpr uint32_t kBeta = PERCH_MOE_HAS_BETA;
constexpr uint32_t kLimit = PERCH_MOE_HAS_LIMIT;

constexpr std::array<ActivationInfo, 11> kActivations{{
    {PERCH_ACTIVATION_SILU, "silu", 0, kLimit},
    {PERCH_ACTIVATION_GELU, "gelu", 0, 0},
    {PERCH_ACTIVATION_GELU_TANH, "gelu_tanh", 0, 0},
    {PERCH_ACTIVATION_SWIGLUOAI, "swigluoai", kAlpha | kBeta | kLimit, kAlpha | kBeta | kLimit},
    {PERCH_ACTIVATION_SWIGLUSTEP, "swiglustep", kLimit, kLimit},
    {PERCH_ACTIVATION_RELU2, "relu2", 0, 0},
    {PERCH_ACTIVATION_SITU, "situ", kBeta, kAlpha | kBeta},
    {PERCH_ACTIVATION_SILU_NO_MUL, "silu_no_mul", 0, 0},
    {PERCH_ACTIVATION_GELU_NO_MUL, "gelu_no_mul", 0, 0},
    {PERCH_ACTIVATION_GELU_TANH_NO_MUL, "gelu_tanh_no_mul", 0, 0},
    {PERCH_ACTIVATION_RELU2_NO_MUL, "relu2_no_mul", 0, 0},
}};

constexpr std::array<std::string_view, 14> kCapNames{"deterministic",
                                                     "batch_invariant",
                                                     "expert_load_invariant",
                                                     "graph_capture",
                                                     "async",
                                                     "no_alloc_execute",
                                                     "concurrent_execute",
                                                     "inplace",
                                                     "fp32_accum",
                                                     "row_strided_act",
                                                     "zero_copy_weights",
                                                     "threads_from_host",
                                                     "y_may_alias_workspace",
                                                     "prequantized_input"};
static_assert(PERCH_CAPS_KNOWN == (perch_caps{1} << kCapNames.size()) - 1, "a name for each");
}  // namespace

std::span<const ActivationInfo> activation_table() { return kActivations; }

const ActivationInfo* activation_info(uint32_t activation) {
  for (const ActivationInfo& info : kActivations) {
    if (info.activation == activation) return &info;
  }
  return nullptr;
}

const ActivationInfo* activation_info(std::string_view name) {
  for (const ActivationInfo& info : kActivations) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::string print_activation(const perch_moe_config& moe) {
  const ActivationInfo* info = activation_info(moe.activation);
  std::string text = info == nullptr ? fmt::format("unknown{}", moe.activation) : info->name;
  if ((moe.flags & (kAlpha | kBeta | kLimit)) == 0) return text;
  const auto add = [&](uint32_t flag, float value) {
    text += (moe.flags & flag) != 0 ? fmt::format(":{}", value) : ":-";
  };
  add(kAlpha, moe.act_alpha);
  add(kBeta, moe.act_beta);
  add(kLimit, moe.act_limit);
  return text;
}

std::optional<TextFault> scan_activation(std::string_view text, perch_moe_config* moe) {
  const std::size_t name_end = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, name_end);
  const ActivationInfo* info = activation_info(name);
  if (info == nullptr) {
    std::string want = "an activation:";
    for (const ActivationInfo& known : kActivations) want += fmt::format(" {}", known.name);
    return TextFault{0, std::string(name), want};
  }
  std::array<float, 3> values{};
  uint32_t flags = 0;
  std::size_t at = name_end;
  for (std::size_t i = 0; i < values.size() && name_end < text.size(); ++i) {
    if (at == text.size()) return TextFault{at, "", "all of :alpha:beta:limit, '-' where absent"};
    const std::size_t begin = at + 1;
    at = std::min(text.find(':', begin), text.size());
    const std::string_view word = text.substr(begin, at - begin);
    if (word == "-") continue;
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, values[i]);
    if (error != std::errc() || stop != end) {
      return TextFault{begin, std::string(word), "a number, or '-' for absent"};
    }
    flags |= kAlpha << i;
  }
  if (at < text.size()) {
    return TextFault{at, std::string(text.substr(at)), "three parameters and no more"};
  }
  moe->activation = info->activation;
  moe->flags = (moe->flags & ~(kAlpha | kBeta | kLimit)) | flags;
  moe->act_alpha = values[0];
  moe->act_beta = values[1];
  moe->act_limit = values[2];
  return std::nullopt;
}

std::vector<std::string> cap_names(perch_caps caps) {
  std::vector<std::string> names;
  for (std::size_t bit = 0; bit < 64; ++bit) {
    if ((caps >> bit & 1) == 0) continue;
    names.push_back(bit < kCapNames.size() ? std::string(kCapNames[bit])
                                           : fmt::format("bit{}", bit));
  }
  return names;
}

std::string print_caps(perch_caps caps) {
  return fmt::format("{}", fmt::join(cap_names(caps), ","));
}

std::optional<perch_caps> parse_cap(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  for (std::size_t bit = 0; bit < kCapNames.size(); ++bit) {
    if (kCapNames[bit] == lower) return perch_caps{1} << bit;
  }
  return std::nullopt;
}

std::optional<TextFault> scan_caps(std::string_view text, perch_caps* caps) {
  perch_caps parsed = 0;
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const std::optional<perch_caps> cap = parse_cap(word);
    if (!cap) {
      return TextFault{begin, std::string(word),
                       "capabilities by comma, of " + print_caps(PERCH_CAPS_KNOWN)};
    }
    parsed |= *cap;
    if (end == text.size()) break;
    begin = end + 1;
  }
  *caps = parsed;
  return std::nullopt;
}

}  // namespace perch
