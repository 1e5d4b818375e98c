#include "canonical/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "canonical/format.h"
#include "canonical/fused_experts.h"

namespace perch {
namespace {

struct PartName {
  std::string_view name;
  Part part;
};

constexpr std::array kPerExpert = {
    PartName{"gate_proj", Part::kGate}, PartName{"up_proj", Part::kUp},
    PartName{"down_proj", Part::kDown}, PartName{"w1", Part::kGate},
    PartName{"w3", Part::kUp},          PartName{"w2", Part::kDown},
};
constexpr std::array kFused = {
    PartName{"gate_up_proj", Part::kGateUp},
    PartName{"up_proj", Part::kUp},
    PartName{"down_proj", Part::kDown},
};
// granitemoe: rank 3 under the layer itself, no `experts` module.
constexpr std::array kGranite = {
    PartName{"input_linear", Part::kGateUp},
    PartName{"output_linear", Part::kDown},
};

// step3: rank 3 under `moe`, no `experts` module.
constexpr std::array kStacked = {
    PartName{"gate_proj", Part::kGate},
    PartName{"up_proj", Part::kUp},
    PartName{"down_proj", Part::kDown},
};

// What a tensor's name says: expert `expert` (-1: fused) of layer `layer`, one part, one suffix.
struct ExpertTensor {
  std::string layer;
  int64_t expert = -1;
  Part part = Part::kGate;
  std::string module;
  std::string suffix;
  const RawTensor* tensor = nullptr;
};

// The suffix of "gate_up_proj", "gate_up_proj_bias" or "gate_up_proj.weight_scale" after the part's
// name: "weight", "bias", "weight_scale"; nullopt when `text` is another name.
std::optional<std::string> suffix_after(std::string_view text, std::string_view name) {
  if (!text.starts_with(name)) return std::nullopt;
  const std::string_view rest = text.substr(name.size());
  if (rest.empty()) return "weight";
  if (rest[0] != '.' && rest[0] != '_') return std::nullopt;
  return std::string(rest.substr(1));
}

template <size_t n>
bool match_part(std::string_view text, const std::array<PartName, n>& names, ExpertTensor* out) {
  for (const PartName& row : names) {
    if (const auto suffix = suffix_after(text, row.name)) {
      out->part = row.part;
      out->suffix = *suffix;
      out->module += row.name;
      return true;
    }
  }
  return false;
}

// "3" of "3.gate_proj.weight"; -1 when there is no number.
int64_t leading_number(std::string_view text, std::string_view* rest) {
  const size_t digits = text.find_first_not_of("0123456789");
  const bool padded = digits > 1 && text[0] == '0';
  if (digits == 0 || digits == std::string_view::npos || digits > 6 || padded ||
      text[digits] != '.') {
    return -1;
  }
  *rest = text.substr(digits + 1);
  return std::stol(std::string(text.substr(0, digits)));
}

enum class NameKind { kOther, kExpert, kUnexpected };

NameKind parse_name(const RawTensor& tensor, ExpertTensor* out) {
  constexpr std::string_view kExperts = ".experts.";
  const std::string_view name = tensor.name;
  out->tensor = &tensor;
  const size_t at = name.rfind(kExperts);
  if (at != std::string_view::npos) {
    out->layer = name.substr(0, at + kExperts.size() - 1);
    std::string_view rest = name.substr(at + kExperts.size());
    std::string_view inner;
    out->expert = leading_number(rest, &inner);
    out->module = out->layer + ".";
    if (out->expert < 0) {
      return match_part(rest, kFused, out) ? NameKind::kExpert : NameKind::kUnexpected;
    }
    out->module += fmt::format("{}.", out->expert);
    return match_part(inner, kPerExpert, out) ? NameKind::kExpert : NameKind::kUnexpected;
  }
  for (const std::string_view linear : {".input_linear.", ".output_linear."}) {
    const size_t found = name.rfind(linear);
    if (found == std::string_view::npos || tensor.shape.size() != 3) continue;
    out->layer = name.substr(0, found);
    out->module = out->layer + ".";
    return match_part(name.substr(found + 1), kGranite, out) ? NameKind::kExpert : NameKind::kOther;
  }
  constexpr std::string_view kMoe = ".moe.";
  const size_t moe = name.rfind(kMoe);
  if (moe == std::string_view::npos) return NameKind::kOther;
  out->layer = name.substr(0, moe + kMoe.size() - 1);
  out->module = out->layer + ".";
  return match_part(name.substr(moe + kMoe.size()), kStacked, out) ? NameKind::kExpert
                                                                   : NameKind::kOther;
}

using PartMap = std::map<std::pair<int64_t, Part>, std::vector<ExpertTensor>>;

// One part may have one name only: gate_proj and w1 of the same expert are two weights for one.
Status add_part(const ExpertTensor& tensor, PartMap* parts) {
  std::vector<ExpertTensor>& same = (*parts)[{tensor.expert, tensor.part}];
  for (const ExpertTensor& other : same) {
    if (other.suffix != tensor.suffix) continue;
    return invalid_argument(
        fmt::format("{}: got {} too, for the same part of the same expert; want one",
                    print_tensor(*tensor.tensor), print_tensor(*other.tensor)));
  }
  same.push_back(tensor);
  return {};
}

Projection projection_of(const std::vector<ExpertTensor>& tensors) {
  Projection projection;
  projection.module = tensors.front().module;
  for (const ExpertTensor& tensor : tensors) {
    projection.parts.emplace_back(tensor.suffix, whole_view(*tensor.tensor));
  }
  return projection;
}

// Per-expert tensors: experts 0..n-1, each with the same parts.
Status fill_per_expert(const PartMap& parts, LayerSource* layer) {
  const int64_t last = parts.rbegin()->first.first;
  layer->orientation = {false, false, "per-expert tensors"};
  for (const auto& [key, unused] : parts) layer->gated |= key.second == Part::kGate;
  std::string lacking;
  for (int64_t e = 0; e <= last; ++e) {
    ExpertSource& expert = layer->experts.emplace_back();
    const auto take = [&](Part part, const char* what, Projection* into) {
      const auto found = parts.find({e, part});
      if (found != parts.end()) {
        *into = projection_of(found->second);
      } else {
        lacking += fmt::format("{}expert {} {}", lacking.empty() ? "" : ", ", e, what);
      }
    };
    if (layer->gated) take(Part::kGate, "gate_proj (w1)", &expert.gate);
    take(Part::kUp, "up_proj (w3)", &expert.up);
    take(Part::kDown, "down_proj (w2)", &expert.down);
  }
  if (lacking.empty()) return {};
  return invalid_argument(fmt::format("layer \"{}\": missing {}; want them for every expert 0..{}",
                                      layer->name, lacking, last));
}

Status fill_moe(const ModelConfig& config, const PartMap& parts, const OrientationChoice& chosen,
                LayerSource* layer) {
  const bool fused = parts.begin()->first.first == -1;
  if (fused && parts.rbegin()->first.first != -1) {
    return invalid_argument(fmt::format(
        "layer \"{}\": got fused and per-expert tensors; want one of the two", layer->name));
  }
  if (!fused) return fill_per_expert(parts, layer);
  std::vector<FusedTensor> tensors;
  for (const auto& [key, same] : parts) {
    for (const ExpertTensor& tensor : same) {
      tensors.push_back({key.second, tensor.module, tensor.suffix, tensor.tensor});
    }
  }
  return fill_fused(config, tensors, chosen, layer);
}

// Splits "module.suffix" at the suffix that a quantized module has, if it has one.
std::optional<std::pair<std::string, std::string>> quantized_module(const std::string& name) {
  for (size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0;
       dot = name.rfind('.', dot - 1)) {
    const std::string suffix = name.substr(dot + 1);
    if (is_quantized_suffix(suffix)) return std::pair(name.substr(0, dot), suffix);
    if (suffix.size() > 40) break;
  }
  return std::nullopt;
}

// Modules outside the experts that some format quantizes, with all their tensors.
void find_linear_layers(const std::vector<const RawTensor*>& others, Layout* layout) {
  std::map<std::string, LayerSource> found;
  std::set<std::string_view> names;
  for (const RawTensor* tensor : others) names.insert(tensor->name);
  for (const RawTensor* tensor : others) {
    const auto module = quantized_module(tensor->name);
    // gemma4's router has a "scale" that is no scale of a weight.
    if (!module || (module->second == "scale" && !names.contains(module->first + ".weight"))) {
      continue;
    }
    found[module->first] = {};
  }
  for (const RawTensor* tensor : others) {
    const size_t dot = tensor->name.rfind('.');
    if (dot == std::string::npos) continue;
    const auto layer = found.find(tensor->name.substr(0, dot));
    if (layer == found.end()) continue;
    layer->second.name = layer->first;
    layer->second.linear.module = layer->first;
    layer->second.linear.parts.emplace_back(tensor->name.substr(dot + 1), whole_view(*tensor));
    layer->second.tensors.push_back(tensor->name);
  }
  for (auto& [name, layer] : found) layout->layers.push_back(std::move(layer));
}

// "model.layers.10.mlp" after "model.layers.9.mlp": numbers compare as numbers.
bool natural_less(const std::string& a, const std::string& b) {
  size_t i = 0;
  size_t j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      size_t end_a = i;
      size_t end_b = j;
      while (end_a < a.size() && digit(a[end_a])) ++end_a;
      while (end_b < b.size() && digit(b[end_b])) ++end_b;
      if (end_a - i != end_b - j) return end_a - i < end_b - j;
      const int order = a.compare(i, end_a - i, b, j, end_b - j);
      if (order != 0) return order < 0;
      i = end_a;
      j = end_b;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

}  // namespace

Result<Layout> find_layers(const ModelConfig& config, const std::vector<RawTensor>& tensors,
                           const OrientationChoice& chosen) {
  Layout layout;
  std::map<std::string, PartMap> moe;
  std::map<std::string, std::vector<std::string>> names;
  std::vector<const RawTensor*> others;
  for (const RawTensor& tensor : tensors) {
    ExpertTensor parsed;
    switch (parse_name(tensor, &parsed)) {
      case NameKind::kExpert:
        names[parsed.layer].push_back(tensor.name);
        PERCH_RETURN_IF_ERROR(add_part(parsed, &moe[parsed.layer]));
        break;
      case NameKind::kUnexpected:
        layout.unexpected.push_back(&tensor);
        break;
      case NameKind::kOther:
        others.push_back(&tensor);
        break;
    }
  }
  for (const auto& [name, parts] : moe) {
    LayerSource layer;
    layer.name = name;
    layer.moe = true;
    layer.tensors = names[name];
    PERCH_RETURN_IF_ERROR(fill_moe(config, parts, chosen, &layer));
    layout.layers.push_back(std::move(layer));
  }
  find_linear_layers(others, &layout);
  std::stable_sort(
      layout.layers.begin(), layout.layers.end(),
      [](const LayerSource& a, const LayerSource& b) { return natural_less(a.name, b.name); });
  return layout;
}

}  // namespace perch
