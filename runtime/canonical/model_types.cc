#include "canonical/model_types.h"

#include <array>

namespace perch {
namespace {

constexpr std::string_view kCorrection = "gate.e_score_correction_bias";

constexpr std::array kRows = {
    ModelTypeRow{"mixtral", Fused::kNone, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"minimax", Fused::kNone, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"minimax_m2", Fused::kNone, Route::kSigmoidGroups, "gate",
                 "e_score_correction_bias", ""},
    ModelTypeRow{"qwen2_moe", Fused::kNone, Route::kSoftmaxConfig, "gate", "", ""},
    ModelTypeRow{"qwen3_moe", Fused::kNone, Route::kSoftmaxConfig, "gate", "", ""},
    ModelTypeRow{"qwen3_next", Fused::kNone, Route::kSoftmaxConfig, "gate", "", ""},
    ModelTypeRow{"qwen3_vl_moe", Fused::kByVersion, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"qwen3_vl_moe_text", Fused::kByVersion, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"qwen3_5_moe", Fused::kNative, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"qwen3_5_moe_text", Fused::kNative, Route::kSoftmaxRenorm, "gate", "", ""},
    ModelTypeRow{"deepseek_v3", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"kimi_k2", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"dots1", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"glm4_moe", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"glm4_moe_lite", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"glm_moe_dsa", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
    ModelTypeRow{"kimi_linear", Fused::kNone, Route::kSigmoidGroups, "gate", kCorrection, ""},
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
