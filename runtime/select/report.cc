#include "select/report.h"

#include <fmt/format.h>

#include "base/recipe.h"

namespace perch {

using nlohmann::ordered_json;

namespace {
// kDLCUDA; dlpack.h before 0.6 spelt it kDLGPU.
constexpr int32_t kDeviceCuda = 2;
}  // namespace

const char* reason_name(int32_t code) {
  static constexpr const char* kNames[] = {
      "NONE",       "DTYPE",  "SHAPE",  "ALIGNMENT",   "GROUP",       "PACKING",       "TOPK",
      "ACTIVATION", "DEVICE", "DRIVER", "CAP_MISSING", "EXT_UNKNOWN", "FIELD_UNKNOWN", "MEMORY",
      "DISABLED",   "LOAD",   "ABI",    "POLICY",      "INTERNAL",    "OPTION"};
  constexpr auto kCount = static_cast<int32_t>(sizeof(kNames) / sizeof(kNames[0]));
  return code > 0 && code < kCount ? kNames[code] : "INTERNAL";
}

std::string print_device(perch_device device) {
  switch (device.device_type) {
    case kDLCPU:
      return fmt::format("cpu:{}", device.device_id);
    case kDeviceCuda:
      return fmt::format("cuda:{}", device.device_id);
    default:
      return fmt::format("device{}:{}", device.device_type, device.device_id);
  }
}

namespace {

ordered_json candidate_json(const Candidate& candidate) {
  ordered_json reasons = ordered_json::array();
  for (const Reason& reason : candidate.reasons) {
    reasons.push_back(
        {{"code", reason_name(reason.code)}, {"field", reason.field}, {"text", reason.text}});
  }
  return {{"backend", candidate.backend},
          {"variant", candidate.variant},
          {"kernel", candidate.kernel},
          {"device", print_device(candidate.device)},
          {"verdict", candidate.fits ? "yes" : "no"},
          {"caps", cap_names(candidate.caps)},
          {"score", candidate.score},
          {"rounds_weights", (candidate.flags & PERCH_SUPPORT_ROUNDS_WEIGHTS) != 0},
          {"bytes", {{"packed", candidate.packed_bytes}, {"workspace", candidate.workspace_bytes}}},
          {"reasons", std::move(reasons)}};
}

}  // namespace

ordered_json selection_json(const Selection& selection) {
  const perch_layer_config& layer = selection.config.abi();
  ordered_json options = ordered_json::object();
  for (const auto& [key, value] : selection.config.options()) options[key] = value;
  ordered_json document = {{"layer", selection.config.name()},
                           {"kind", selection.config.is_moe() ? "moe" : "linear"},
                           {"recipe", recipe_text(selection.config)},
                           {"device", print_device(layer.device)},
                           {"require", cap_names(layer.require)},
                           {"prefer", cap_names(layer.prefer)},
                           {"options", std::move(options)},
                           {"rule", selection.rule},
                           {"notes", selection.notes},
                           {"fallback", selection.fallback}};
  document["chosen"] = nullptr;
  if (const Candidate* chosen = selection.chosen()) {
    document["chosen"] = {{"backend", chosen->backend},
                          {"variant", chosen->variant},
                          {"kernel", chosen->kernel},
                          {"device", print_device(chosen->device)},
                          {"caps", cap_names(chosen->caps)}};
  }
  document["candidates"] = ordered_json::array();
  for (const Candidate& candidate : selection.candidates) {
    document["candidates"].push_back(candidate_json(candidate));
  }
  return document;
}

}  // namespace perch
