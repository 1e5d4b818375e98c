#include "canonical/model_types.h"

#include <array>

namespace perch {
namespace {

constexpr std::string_view kCorrection = "gate.e_score_correction_bias";
constexpr std::string_view kErnieVision =
    "its text and its vision experts have different sizes and a router each, which one MoE layer "
    "cannot say";
constexpr std::string_view kDbrx =
    "its experts lie flattened in one w1, v1 and w2 per layer, which is to be read later";

constexpr std::array kRows = {
    ModelTypeRow{"mixtral", Fused::kNone, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"minimax", Fused::kNone, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"minimax_m2", Fused::kNone, Route::kSigmoidGroups, "gate",
                 "e_score_correction_bias", ""},
    ModelTypeRow{"phimoe", Fused::kNone, Route::kSparsemixer, "gate", "", ""},
    ModelTypeRow{"qwen2_moe", Fused::kNone, Route::kSoftmaxConfig, "gate", "", ""},
    ModelTypeRow{"qwen3_moe", Fused::kNone, Route::kSoftmaxConfig, "gate", "", ""},
    ModelTypeRow{"qwen3_next", Fused::kNone, Route::kSoftmaxConfig, "gate", "", ""},
    ModelTypeRow{"qwen3_vl_moe", Fused::kByVersion, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"qwen3_vl_moe_text", Fused::kByVersion, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"qwen3_5_moe", Fused::kNative, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"qwen3_5_moe_text", Fused::kNative, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"deepseek_v2", Fused::kNone, Route::kSoftmaxGroups, "gate", "", ""},
    ModelTypeRow{"deepseek_v3", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"deepseek_v32", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"kimi_k2", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"dots1", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"glm4_moe", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"glm4_moe_lite", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"glm_moe_dsa", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"kimi_linear", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"deepseek_v4", Fused::kNone, Route::kSqrtSoftplus, "gate", "gate.bias", "silu"},
    ModelTypeRow{"gpt_oss", Fused::kInterleaved, Route::kTopkSoftmax, "router", "", "swigluoai"},
    ModelTypeRow{"llama4", Fused::kTransposed, Route::kTopkSigmoid, "router", "", ""},
    ModelTypeRow{"llama4_text", Fused::kTransposed, Route::kTopkSigmoid, "router", "", ""},
    ModelTypeRow{"granitemoe", Fused::kNative, Route::kTopkSoftmax, "router.layer", "", ""},
    ModelTypeRow{"granitemoeshared", Fused::kNative, Route::kTopkSoftmax, "router.layer", "", ""},
    ModelTypeRow{"granitemoehybrid", Fused::kNative, Route::kTopkSoftmax, "router.layer", "", ""},
    ModelTypeRow{"olmoe", Fused::kNone, Route::kSoftmaxConfig, "gate", "", ""},
    ModelTypeRow{"flex_olmo", Fused::kNone, Route::kSoftmaxConfig, "gate", "", ""},
    ModelTypeRow{"nemotron_h", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"jamba", Fused::kNone, Route::kSoftmax, "router", "", ""},
    ModelTypeRow{"step3", Fused::kNative, Route::kSoftmaxConfig, "gate", "", "silu"},
    ModelTypeRow{"step3_text", Fused::kNative, Route::kSoftmaxConfig, "gate", "", "silu"},
    ModelTypeRow{"step3_vl", Fused::kNative, Route::kSoftmaxConfig, "gate", "", "silu"},
    ModelTypeRow{"step3p5", Fused::kNative, Route::kSigmoidGroups, "gate", "router_bias",
                 "swiglustep"},
    ModelTypeRow{"step3p7", Fused::kNative, Route::kSigmoidGroups, "gate", "router_bias",
                 "swiglustep"},
    ModelTypeRow{"ernie4_5_moe", Fused::kNone, Route::kSoftmaxFloor, "gate",
                 "moe_statics.e_score_correction_bias", ""},
    ModelTypeRow{"hunyuan_v1_moe", Fused::kNone, Route::kSoftmaxRenorm, "gate.wg", "", ""},
    ModelTypeRow{"hy_v3", Fused::kNone, Route::kSigmoidGroups, "router.gate", "expert_bias", ""},
    ModelTypeRow{"gemma4", Fused::kNative, Route::kSoftmaxScaled, "router.proj", "", ""},
    ModelTypeRow{"gemma4_text", Fused::kNative, Route::kSoftmaxScaled, "router.proj", "", ""},
    ModelTypeRow{"lfm2_moe", Fused::kNone, Route::kSigmoidBias, "gate", "expert_bias", "silu"},
    ModelTypeRow{"longcat_flash", Fused::kNone, Route::kSoftmaxBias, "router.classifier",
                 "router.e_score_correction_bias", "silu"},
    ModelTypeRow{"ernie4_5_vl_moe", Fused::kNone, Route::kUnknown, "", "", "", kErnieVision},
    ModelTypeRow{"ernie4_5_vl_moe_text", Fused::kNone, Route::kUnknown, "", "", "", kErnieVision},
    ModelTypeRow{"ernie4_5_moe_vl", Fused::kNone, Route::kUnknown, "", "", "", kErnieVision},
    ModelTypeRow{"dbrx", Fused::kNone, Route::kUnknown, "", "", "", kDbrx},
};

constexpr ModelTypeRow kUnknown{"", Fused::kNative, Route::kUnknown, "", "", ""};

}  // namespace

const ModelTypeRow& find_model_type(std::string_view model_type) {
  for (const ModelTypeRow& row : kRows) {
    if (row.model_type == model_type) return row;
  }
  return kUnknown;
}

}  // namespace perch
