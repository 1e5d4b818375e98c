#include "canonical/neighbours.h"

#include <algorithm>
#include <array>

#include "canonical/router.h"

namespace perch {
namespace {

// Width from the tensors, where their type leaves no doubt of what a row is. A packed byte may hold
// two codes of one row or one code of two rows.
int64_t stored_width(const Checkpoint& checkpoint, const std::string& module) {
  constexpr std::array kUp = {"up_proj", "w3", "input_linear"};
  for (const char* up : kUp) {
    const std::string name = module + "." + up;
    const RawTensor* weight = checkpoint.find(name + ".weight");
    if (weight == nullptr) weight = checkpoint.find(name + ".weight_packed");
    if (weight == nullptr || weight->shape.size() != 2 || weight->dtype == RawDtype::kU8) continue;
    // granite keeps gate and up rows in one matrix.
    return up == kUp.back() ? weight->shape[0] / 2 : weight->shape[0];
  }
  return 0;
}

int64_t stated_width(const ModelConfig& config) {
  for (const char* key : {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                          "shared_intermediate_size", "share_expert_dim"}) {
    if (const auto width = config_int(config, key)) return *width;
  }
  for (const char* key :
       {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"}) {
    const auto count = config_int(config, key);
    if (count && config.intermediate) return *count * *config.intermediate;
  }
  return 0;
}

// Tensors are sorted by name.
bool has_module(const Checkpoint& checkpoint, const std::string& module) {
  const std::string prefix = module + ".";
  const auto first = std::lower_bound(
      checkpoint.tensors.begin(), checkpoint.tensors.end(), prefix,
      [](const RawTensor& tensor, const std::string& name) { return tensor.name < name; });
  return first != checkpoint.tensors.end() && first->name.starts_with(prefix);
}

std::optional<SharedExpert> find_shared(const ModelConfig& config, const std::string& parent,
                                        const Checkpoint& checkpoint) {
  const std::string block = parent.substr(0, parent.rfind('.'));
  const std::array modules = {parent + ".shared_expert", parent + ".shared_experts",
                              parent + ".shared_mlp", block + ".shared_mlp",
                              block + ".share_expert"};
  for (const std::string& module : modules) {
    if (!has_module(checkpoint, module)) continue;
    SharedExpert shared;
    shared.module = module;
    shared.width = stored_width(checkpoint, module);
    if (shared.width == 0) shared.width = stated_width(config);
    const std::string gate = module + "_gate.weight";
    if (checkpoint.find(gate) != nullptr) shared.gate = gate;
    return shared;
  }
  return std::nullopt;
}

std::optional<LatentProjection> find_latent(const ModelConfig& config, const std::string& parent,
                                            const Checkpoint& checkpoint) {
  if (!config.latent) return std::nullopt;
  LatentProjection latent;
  latent.width = *config.latent;
  latent.hidden = config.hidden.value_or(0);
  for (const auto& [module, into] :
       {std::pair("fc1_latent_proj", &latent.down), std::pair("fc2_latent_proj", &latent.up)}) {
    const std::string name = parent + "." + module + ".";
    if (has_module(checkpoint, parent + "." + module)) *into = name + "weight";
  }
  return latent;
}

}  // namespace

Neighbours find_neighbours(const ModelConfig& config, const std::string& layer,
                           const Checkpoint& checkpoint) {
  const std::string parent = router_parent(layer);
  return {find_shared(config, parent, checkpoint), find_latent(config, parent, checkpoint)};
}

}  // namespace perch
