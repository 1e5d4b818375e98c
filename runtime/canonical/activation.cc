#include "canonical/activation.h"

#include <fmt/format.h>

#include <array>

namespace perch {
namespace {

struct Row {
  std::string_view name;
  uint32_t gated;  // 0: has no gated form here
  uint32_t plain;  // without a gate; 0: none
};

constexpr std::array kRows = {
    Row{"silu", PERCH_ACTIVATION_SILU, PERCH_ACTIVATION_SILU_NO_MUL},
    Row{"swish", PERCH_ACTIVATION_SILU, PERCH_ACTIVATION_SILU_NO_MUL},
    Row{"gelu", PERCH_ACTIVATION_GELU, PERCH_ACTIVATION_GELU_NO_MUL},
    Row{"gelu_tanh", PERCH_ACTIVATION_GELU_TANH, PERCH_ACTIVATION_GELU_TANH_NO_MUL},
    Row{"gelu_pytorch_tanh", PERCH_ACTIVATION_GELU_TANH, PERCH_ACTIVATION_GELU_TANH_NO_MUL},
    Row{"gelu_new", PERCH_ACTIVATION_GELU_TANH, PERCH_ACTIVATION_GELU_TANH_NO_MUL},
    Row{"relu2", PERCH_ACTIVATION_RELU2, PERCH_ACTIVATION_RELU2_NO_MUL},
    Row{"swigluoai", PERCH_ACTIVATION_SWIGLUOAI, 0},
    Row{"swiglustep", PERCH_ACTIVATION_SWIGLUSTEP, 0},
};

}  // namespace

Status set_activation(const ModelConfig& config, const ModelTypeRow& row, bool gated,
                      perch_moe_config* moe) {
  std::string name = row.activation.empty() ? config.activation : std::string(row.activation);
  // step3p5 has layers without a limit, and there it is a plain silu.
  if (name == "swiglustep" && !config.activation_limit) name = "silu";
  for (const Row& known : kRows) {
    if (known.name == name) moe->activation = gated ? known.gated : known.plain;
  }
  if (moe->activation == 0) {
    return unsupported(fmt::format(
        "config.json: hidden_act: got \"{}\" for {} experts; want one of silu, swish, gelu, "
        "gelu_tanh, gelu_pytorch_tanh, gelu_new, relu2",
        name, gated ? "gated" : "non-gated"));
  }
  if (moe->activation == PERCH_ACTIVATION_SWIGLUOAI) {
    // gpt-oss: alpha 1.702 and a limit of 7 unless the config says otherwise; beta is its "u + 1".
    moe->act_alpha = static_cast<float>(config_real(config, "swiglu_alpha").value_or(1.702));
    moe->act_beta = 1.0F;
    moe->act_limit = static_cast<float>(config.activation_limit.value_or(7.0));
    moe->flags |= PERCH_MOE_HAS_ALPHA | PERCH_MOE_HAS_BETA | PERCH_MOE_HAS_LIMIT;
  } else if (config.activation_limit && (moe->activation == PERCH_ACTIVATION_SILU ||
                                         moe->activation == PERCH_ACTIVATION_SWIGLUSTEP)) {
    moe->act_limit = static_cast<float>(*config.activation_limit);
    moe->flags |= PERCH_MOE_HAS_LIMIT;
  }
  return {};
}

}  // namespace perch
