#include "select/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/abi_layout.h"
#include "base/recipe.h"
#include "base/requant_rules.h"

namespace perch {
namespace {

// Applies what the rule says about the layer itself to the config in force.
Status apply_rule(const Policy& policy, Selection* selection) {
  LayerConfig& config = selection->config;
  config.layer().require |= policy.require.value;
  config.layer().prefer |= policy.prefer.value;
  selection->try_next_on_prepare_error = policy.on_prepare_error_next.value;
  if (policy.rule == nullptr) return {};
  const Rule& rule = *policy.rule;
  selection->rule = rule.where;
  for (const auto& [key, value] : rule.options) {
    const auto& own = config.options();
    const bool given = std::any_of(
        own.begin(), own.end(), [&key = key](const auto& option) { return option.first == key; });
    if (!given) config.set_option(key, value);
  }
  if (!rule.act) return {};
  const Result<perch_act_quant> act = parse_act(*rule.act);
  if (!act.ok()) return act.status().with_context(fmt::format("{}: act", rule.where));
  selection->notes.push_back(fmt::format("act: {} by {}, in place of the checkpoint's {}",
                                         print_act(*act), rule.where,
                                         print_act(config.act_first())));
  config.act_first() = *act;
  if (config.is_moe()) config.act_second() = *act;
  return {};
}

// Lossy, so it is noted. Where both ask, the request wins over the rule.
Status apply_requant(const Policy& policy, const std::string& asked, Selection* selection) {
  const bool by_rule = asked.empty() && policy.rule != nullptr && policy.rule->requant.has_value();
  if (!by_rule && asked.empty()) return {};
  const std::string format = by_rule ? *policy.rule->requant : asked;
  const std::string where = by_rule ? policy.rule->where : "option requant";
  Result<LayerConfig> converted = requantized_config(selection->config, format);
  if (!converted.ok()) return converted.status().with_context(where);
  selection->notes.push_back(fmt::format(
      "weights: {} by {}, in place of the checkpoint's {}; lossy", print_weight(converted->first()),
      where, print_weight(selection->config.first())));
  selection->requant = format;
  selection->config = std::move(*converted);
  return {};
}

LayerFacts facts_of(const LayerConfig& config, const std::string& model_type) {
  LayerFacts facts;
  facts.kind = config.is_moe() ? "moe" : "linear";
  facts.format = print_weight(config.first());
  facts.format_aliases = format_aliases(config.first());
  facts.device = config.abi().device.device_type == kDLCPU ? "cpu" : "cuda";
  facts.name = config.name();
  facts.model_type = model_type;
  return facts;
}

// R6: a field beyond what the backend's headers know must not be sent, unless it is zero.
void check_unknown_fields(const perch_struct_sizes& sizes, const LayerConfig& config,
                          std::vector<Reason>* reasons) {
  const auto check = [&](const char* type, const char* path, const void* object, uint32_t known) {
    if (const auto field = unknown_field(type, object, known)) {
      reasons->push_back({PERCH_REASON_FIELD_UNKNOWN, std::string(path) + *field,
                          fmt::format("the backend's headers end at {} bytes of {}, before this "
                                      "field, and it is set",
                                      known, type)});
    }
  };
  const perch_layer_config& layer = config.abi();
  check("perch_layer_config", "", &layer, sizes.layer_config);
  if (config.is_moe()) {
    check("perch_moe_config", "moe.", layer.moe, sizes.moe_config);
    check("perch_quant", "moe.w13.", layer.moe->w13, sizes.quant);
    check("perch_quant", "moe.w2.", layer.moe->w2, sizes.quant);
    check("perch_act_quant", "moe.act13.", layer.moe->act13, sizes.act_quant);
    check("perch_act_quant", "moe.act2.", layer.moe->act2, sizes.act_quant);
  } else {
    check("perch_linear_config", "linear.", layer.linear, sizes.linear_config);
    check("perch_quant", "linear.weight.", layer.linear->weight, sizes.quant);
    check("perch_act_quant", "linear.act.", layer.linear->act, sizes.act_quant);
  }
}

std::string bounded(const char* text, size_t capacity) {
  return std::string(text, strnlen(text, capacity));
}

// The backend's own answer. Asks again when there are more reasons than there was room for.
void ask_backend(const LayerConfig& config, Candidate* candidate) {
  std::vector<perch_reason> reasons(16);
  perch_support support{};
  perch_error error = PERCH_ERROR_INIT;
  perch_status status = PERCH_OK;
  for (int attempt = 0; attempt < 2; ++attempt) {
    support = {};
    support.struct_size = sizeof(support);
    support.reasons = reasons.data();
    support.reasons_capacity = static_cast<uint32_t>(reasons.size());
    status = candidate->api->query_support(candidate->instance, &config.abi(), candidate->variant,
                                           &support, &error);
    if (status != PERCH_OK || support.num_reasons <= reasons.size()) break;
    reasons.resize(std::min<uint32_t>(support.num_reasons, 4096));
  }
  if (status != PERCH_OK) {
    candidate->reasons.push_back({PERCH_REASON_INTERNAL, "query_support",
                                  fmt::format("failed with code {}: {}", status,
                                              bounded(error.message, sizeof(error.message)))});
    return;
  }
  candidate->kernel = bounded(support.kernel, sizeof(support.kernel));
  candidate->caps = support.caps;
  candidate->score = support.score;
  candidate->flags = support.flags;
  candidate->align = support.align;
  candidate->packed_bytes = support.packed_bytes;
  candidate->workspace_bytes = support.workspace_bytes;
  const size_t count = std::min<size_t>(support.num_reasons, reasons.size());
  for (size_t i = 0; i < count; ++i) {
    candidate->reasons.push_back(
        {reasons[i].code, bounded(reasons[i].field, 56), bounded(reasons[i].text, 192)});
  }
  if (support.verdict == PERCH_VERDICT_YES && support.num_reasons == 0) return;
  if (support.verdict == PERCH_VERDICT_NO && support.num_reasons != 0) return;
  candidate->reasons.push_back({PERCH_REASON_INTERNAL, "query_support",
                                fmt::format("broke the contract: verdict {} with {} reasons",
                                            support.verdict, support.num_reasons)});
}

void check_promises(const LayerConfig& config, Candidate* candidate) {
  const perch_caps missing = config.abi().require & ~candidate->caps;
  for (const std::string& name : cap_names(missing)) {
    candidate->reasons.push_back({PERCH_REASON_CAP_MISSING, "require",
                                  fmt::format("{} is not promised for this config", name)});
  }
}

void check_memory(const DeviceRecord& device, Candidate* candidate) {
  const uint64_t wanted = candidate->packed_bytes + candidate->workspace_bytes;
  if (device.memory_bytes == 0 || wanted <= device.memory_bytes) return;
  candidate->reasons.push_back({PERCH_REASON_MEMORY, "device",
                                fmt::format("want {} bytes for weights and workspace; {} has {}",
                                            wanted, device.name, device.memory_bytes)});
}

struct Asking {
  const LayerConfig& config;
  const Policy& policy;
  const std::string& only;
};

// Position in the rule's list of backends; the reason when it is not in there.
void check_policy(const Asking& asking, Candidate* candidate) {
  if (!asking.only.empty()) {
    candidate->listed = candidate->backend == asking.only;
    if (!candidate->listed) {
      candidate->reasons.push_back(
          {PERCH_REASON_POLICY, "backend", fmt::format("only {} was asked for", asking.only)});
    }
    return;
  }
  const std::vector<std::string>& use = asking.policy.use.value;
  if (use.empty()) return;
  const auto found = std::find(use.begin(), use.end(), candidate->backend);
  candidate->use_rank = static_cast<int>(found - use.begin());
  candidate->listed = found != use.end();
  if (!candidate->listed) {
    candidate->reasons.push_back(
        {PERCH_REASON_POLICY, "use",
         fmt::format("{} allows only {}", asking.policy.use.origin.where, fmt::join(use, ", "))});
  }
}

void add_variants(const Asking& asking, const LibraryRecord& library, const DeviceRecord& device,
                  std::vector<Candidate>* candidates) {
  Candidate base;
  base.backend = library.id;
  base.api = library.api;
  base.instance = library.backend;
  base.device = device.device;
  base.device_name = device.name;
  check_policy(asking, &base);
  if (!device.usable) {
    base.reasons.push_back({PERCH_REASON_DEVICE, "device", device.reason});
  }
  const uint64_t kind = PERCH_KIND_BIT(asking.config.kind());
  if ((library.api->info->kinds & kind) == 0) {
    base.reasons.push_back(
        {PERCH_REASON_DISABLED, "kind",
         fmt::format("offers no {} layers", asking.config.is_moe() ? "moe" : "linear")});
  }
  check_unknown_fields(*library.api->sizes, asking.config, &base.reasons);
  const bool may_ask = device.usable && (library.api->info->kinds & kind) != 0;
  const uint32_t variants =
      may_ask ? library.api->variant_count(library.backend, &asking.config.abi()) : 1;
  for (uint32_t variant = 0; variant < std::max(1U, std::min(variants, 256U)); ++variant) {
    Candidate candidate = base;
    candidate.variant = variant;
    if (may_ask) {
      const size_t before = candidate.reasons.size();
      ask_backend(asking.config, &candidate);
      // Promises and bytes of a config that it does not offer say nothing.
      if (candidate.reasons.size() == before) {
        check_promises(asking.config, &candidate);
        check_memory(device, &candidate);
      }
    }
    candidate.fits = candidate.reasons.empty();
    candidates->push_back(std::move(candidate));
  }
}

void add_library(const Asking& asking, const LibraryRecord& library,
                 std::vector<Candidate>* candidates) {
  Candidate absent;
  absent.backend = library.id;
  absent.device = asking.config.abi().device;
  if (library.state != LibraryState::kLoaded) {
    absent.listed = false;
    absent.reasons.push_back({library.reason_code != 0 ? library.reason_code : PERCH_REASON_LOAD,
                              library.path, library.reason});
    candidates->push_back(std::move(absent));
    return;
  }
  bool any = false;
  std::string offered;
  for (const DeviceRecord& device : library.devices) {
    offered += (offered.empty() ? "" : ", ") + print_device(device.device);
    if (device.device.device_type != absent.device.device_type ||
        device.device.device_id != absent.device.device_id) {
      continue;
    }
    any = true;
    add_variants(asking, library, device, candidates);
  }
  if (any) return;
  check_policy(asking, &absent);
  absent.reasons.push_back(
      {PERCH_REASON_DEVICE, "device",
       fmt::format("the layer is for {}; offers {}", print_device(absent.device),
                   offered.empty() ? "no device" : offered)});
  candidates->push_back(std::move(absent));
}

void rank(perch_caps prefer, std::vector<Candidate>* candidates) {
  const auto key = [&](const Candidate& c) {
    return std::tuple(!c.fits, c.use_rank, -std::popcount(c.caps & prefer), -c.score,
                      c.packed_bytes + c.workspace_bytes, c.backend, c.variant);
  };
  std::stable_sort(candidates->begin(), candidates->end(),
                   [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
}

// Lets backends outside the rule's list in, as `fallback: allow` says.
void fall_back(const std::string& where, Selection* selection) {
  for (Candidate& candidate : selection->candidates) {
    const bool only_policy =
        candidate.reasons.size() == 1 && candidate.reasons[0].code == PERCH_REASON_POLICY;
    if (candidate.api == nullptr || candidate.listed || !only_policy) continue;
    candidate.reasons.clear();
    candidate.fits = true;
    selection->fallback = true;
  }
  if (!selection->fallback) return;
  selection->notes.push_back(
      fmt::format("fallback: none of the listed backends fits; {} allows others", where));
}

}  // namespace

Result<Selection> select_backend(const Config& config, const Registry& registry,
                                 const SelectRequest& request) {
  Selection selection;
  selection.config = *request.config;
  const LayerFacts facts = facts_of(*request.config, request.model_type);
  const Policy policy = policy_for(config, facts);
  PERCH_RETURN_IF_ERROR(apply_rule(policy, &selection));
  PERCH_RETURN_IF_ERROR(apply_requant(policy, request.requant, &selection));
  const Asking asking{selection.config, policy, request.only};
  for (const LibraryRecord& library : registry.libraries()) {
    add_library(asking, library, &selection.candidates);
  }
  const auto fits = [](const Candidate& candidate) { return candidate.fits; };
  if (std::none_of(selection.candidates.begin(), selection.candidates.end(), fits) &&
      policy.fallback_allow.value && request.only.empty()) {
    fall_back(policy.fallback_allow.origin.where, &selection);
    for (Candidate& candidate : selection.candidates) {
      if (!candidate.fits) continue;
      check_promises(selection.config, &candidate);
      candidate.fits = candidate.reasons.empty();
    }
  }
  rank(selection.config.abi().prefer, &selection.candidates);
  selection.found = !selection.candidates.empty() && selection.candidates.front().fits;
  return selection;
}

namespace {

std::string reasons_text(const Candidate& candidate) {
  std::string text;
  for (const Reason& reason : candidate.reasons) {
    text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", reason_name(reason.code),
                        reason.field, reason.text);
  }
  return text;
}

}  // namespace

Status no_candidate_status(const Selection& selection) {
  const perch_layer_config& layer = selection.config.abi();
  std::string text = fmt::format(
      "layer '{}' ({}, {}, {}{}{}): no backend fits; require less, list another backend under "
      "`use`, or add one.",
      selection.config.name(), selection.config.is_moe() ? "moe" : "linear",
      print_device(layer.device), recipe_text(selection.config),
      layer.require != 0 ? ", require " : "", layer.require != 0 ? print_caps(layer.require) : "");
  const std::vector<Candidate>& all = selection.candidates;
  for (size_t i = 0; i < all.size();) {
    // Variants of a backend that fail alike are told once.
    const std::string reasons = reasons_text(all[i]);
    std::string variants = all[i].api == nullptr ? "" : fmt::format("/{}", all[i].variant);
    size_t next = i + 1;
    while (next < all.size() && all[next].backend == all[i].backend &&
           reasons_text(all[next]) == reasons) {
      variants += fmt::format(",{}", all[next++].variant);
    }
    text += fmt::format(" {}{}: {}.", all[i].backend, variants, reasons);
    i = next;
  }
  if (all.empty()) text += " No backend library was found.";
  const bool quantized_input = selection.config.act_first().dtype != PERCH_TYPE_NONE ||
                               selection.config.act_second().dtype != PERCH_TYPE_NONE;
  if (quantized_input) {
    text +=
        " The checkpoint quantizes this layer's input; a rule with `act: none` runs it "
        "unquantized.";
  }
  return unsupported(text);
}

}  // namespace perch
