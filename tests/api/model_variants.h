// Tiny checkpoints of every model type, in memory: its config keys and tensor names. The numbers
// are nothing to go by; what a type computes is checked by the fixtures.
#pragma once

#include "checkpoint_rig.h"

namespace perch::test {

constexpr int64_t kExperts = 4;
constexpr int64_t kHidden = 8;
constexpr int64_t kWidth = 4;

enum class Names { kQwen, kMixtral, kFused, kStacked };

inline Tensor filled(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) / 8 - 0.25F;
  return f32(shape, values);
}

struct Sizes {
  int64_t experts = kExperts;
  int64_t width = kWidth;
};

inline void put_experts(Checkpoint* c, const std::string& module, Names names, Sizes sizes = {}) {
  const int64_t e = sizes.experts;
  const int64_t i = sizes.width;
  const std::string at = module + ".";
  if (names == Names::kFused) {
    c->tensors[at + "gate_up_proj"] = filled({e, 2 * i, kHidden});
    c->tensors[at + "down_proj"] = filled({e, kHidden, i});
    return;
  }
  if (names == Names::kStacked) {
    c->tensors[at + "gate_proj.weight"] = filled({e, i, kHidden});
    c->tensors[at + "up_proj.weight"] = filled({e, i, kHidden});
    c->tensors[at + "down_proj.weight"] = filled({e, kHidden, i});
    return;
  }
  const bool qwen = names == Names::kQwen;
  for (int64_t expert = 0; expert < e; ++expert) {
    const std::string prefix = at + std::to_string(expert) + ".";
    c->tensors[prefix + (qwen ? "gate_proj.weight" : "w1.weight")] = filled({i, kHidden});
    c->tensors[prefix + (qwen ? "up_proj.weight" : "w3.weight")] = filled({i, kHidden});
    c->tensors[prefix + (qwen ? "down_proj.weight" : "w2.weight")] = filled({kHidden, i});
  }
}

// The router's matrix and vectors of kExperts values, all relative to `parent`.
inline void put_router(Checkpoint* c, const std::string& parent, const std::string& router,
                       const std::vector<std::string>& vectors = {}, int64_t experts = kExperts) {
  c->tensors[parent + "." + router + ".weight"] = filled({experts, kHidden});
  for (const std::string& name : vectors) c->tensors[parent + "." + name] = filled({experts});
}

inline json base_config(const std::string& type, const json& more) {
  json config = {{"model_type", type},
                 {"hidden_size", kHidden},
                 {"hidden_act", "silu"},
                 {"torch_dtype", "float32"}};
  config.update(more);
  return config;
}

struct Variant {
  const char* name;  // of the test
  const char* type;
  const char* config;   // JSON, beside model_type, hidden_size and hidden_act
  const char* parent;   // the module that holds the experts and the router
  const char* experts;  // ".experts", "" where the parent holds them itself
  Names names;
  const char* router;
  std::vector<std::string> vectors;
  // Expected.
  uint32_t scoring;
  bool renormalize;
  float scale;
  bool biased;
  std::string module() const { return std::string(parent) + experts; }
};

namespace variant_words {

inline constexpr uint32_t kSoft = PERCH_ROUTE_SOFTMAX;
inline constexpr uint32_t kSig = PERCH_ROUTE_SIGMOID;
inline constexpr const char* kE = ".experts";
inline constexpr const char* kMlp = "model.layers.1.mlp";
inline constexpr const char* kBlock = "model.layers.1.block_sparse_moe";
inline constexpr const char* kStepMoe = "model.layers.4.moe";
inline constexpr Names kQ = Names::kQwen;
inline constexpr Names kM = Names::kMixtral;
inline constexpr Names kS = Names::kStacked;
inline constexpr const char* kCorrection = "gate.e_score_correction_bias";

inline const std::vector<Variant> kVariants = {
    {"mixtral",
     "mixtral",
     R"({"num_local_experts":4,"num_experts_per_tok":2,"intermediate_size":4})",
     kBlock,
     kE,
     kM,
     "gate",
     {},
     kSoft,
     true,
     1,
     false},
    {"minimax_m2",
     "minimax_m2",
     R"({"num_local_experts":4,"num_experts_per_tok":2,"intermediate_size":4)"
     R"(,"scoring_func":"sigmoid"})",
     kBlock,
     kE,
     kM,
     "gate",
     {"e_score_correction_bias"},
     kSig,
     true,
     1,
     true},
    {"phimoe",
     "phimoe",
     R"({"num_local_experts":4,"num_experts_per_tok":2,"intermediate_size":4)"
     R"(,"router_jitter_noise":0.01})",
     kBlock,
     kE,
     kM,
     "gate",
     {},
     PERCH_ROUTE_SPARSEMIXER,
     false,
     1,
     false},
    {"qwen2_moe",
     "qwen2_moe",
     R"({"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":4})",
     kMlp,
     kE,
     kQ,
     "gate",
     {},
     kSoft,
     false,
     1,
     false},
    {"olmoe_norm",
     "olmoe",
     R"({"num_experts":4,"num_experts_per_tok":2,"intermediate_size":4)"
     R"(,"norm_topk_prob":true})",
     kMlp,
     kE,
     kQ,
     "gate",
     {},
     kSoft,
     true,
     1,
     false},
    {"deepseek_v2_greedy",
     "deepseek_v2",
     R"({"n_routed_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":4)"
     R"(,"topk_method":"greedy","n_group":2,"topk_group":1,"scoring_func":"softmax")"
     R"(,"routed_scaling_factor":16.0})",
     kMlp,
     kE,
     kQ,
     "gate",
     {},
     kSoft,
     false,
     16,
     false},
    {"deepseek_v3",
     "deepseek_v3",
     R"({"n_routed_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":4)"
     R"(,"intermediate_size":64,"topk_method":"noaux_tc","norm_topk_prob":true)"
     R"(,"routed_scaling_factor":2.5})",
     kMlp,
     kE,
     kQ,
     "gate",
     {kCorrection},
     kSig,
     true,
     2.5F,
     true},
    {"kimi_linear",
     "kimi_linear",
     R"({"num_experts":4,"num_experts_per_token":2,"moe_intermediate_size":4)"
     R"(,"moe_renormalize":false,"routed_scaling_factor":2.5)"
     R"(,"moe_router_activation_func":"sigmoid"})",
     kBlock,
     kE,
     kM,
     "gate",
     {kCorrection},
     kSig,
     false,
     2.5F,
     true},
    {"deepseek_v4",
     "deepseek_v4",
     R"({"n_routed_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":4)"
     R"(,"scoring_func":"sqrtsoftplus","routed_scaling_factor":1.5,"swiglu_limit":10.0})",
     "layers.3.ffn",
     kE,
     kM,
     "gate",
     {"gate.bias"},
     PERCH_ROUTE_SQRT_SOFTPLUS,
     true,
     1.5F,
     true},
    {"step3",
     "step3_text",
     R"({"moe_num_experts":4,"moe_top_k":2,"moe_intermediate_size":4)"
     R"(,"norm_expert_weight":true})",
     kStepMoe,
     "",
     kS,
     "gate",
     {},
     kSoft,
     true,
     1,
     false},
    {"step3p5",
     "step3p5",
     R"({"moe_num_experts":4,"moe_top_k":2,"moe_intermediate_size":4)"
     R"(,"moe_router_activation":"sigmoid","moe_router_scaling_factor":3.0})",
     kStepMoe,
     "",
     kS,
     "gate",
     {"router_bias"},
     kSig,
     true,
     3,
     true},
    {"ernie4_5_moe",
     "ernie4_5_moe",
     R"({"moe_num_experts":4,"moe_k":2,"moe_intermediate_size":4,"moe_norm_min":1e-6})",
     kMlp,
     kE,
     kQ,
     "gate",
     {"moe_statics.e_score_correction_bias"},
     kSoft,
     true,
     1,
     true},
    {"hunyuan_v1_moe",
     "hunyuan_v1_moe",
     R"({"num_experts":4,"moe_topk":[2,2],"moe_intermediate_size":[4,4]})",
     kMlp,
     kE,
     kQ,
     "gate.wg",
     {},
     kSoft,
     true,
     1,
     false},
    {"hy_v3",
     "hy_v3",
     R"({"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":4)"
     R"(,"router_scaling_factor":2.5})",
     kMlp,
     kE,
     kQ,
     "router.gate",
     {"expert_bias"},
     kSig,
     true,
     2.5F,
     true},
    {"gemma4",
     "gemma4",
     R"({"text_config":{"model_type":"gemma4_text","hidden_size":8,"num_experts":4)"
     R"(,"top_k_experts":2,"moe_intermediate_size":4)"
     R"(,"hidden_activation":"gelu_pytorch_tanh"}})",
     "model.language_model.layers.0",
     kE,
     Names::kFused,
     "router.proj",
     {"router.per_expert_scale"},
     kSoft,
     true,
     1,
     false},
    {"lfm2_moe",
     "lfm2_moe",
     R"({"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":4)"
     R"(,"routed_scaling_factor":1.5})",
     "model.layers.2.feed_forward",
     kE,
     kM,
     "gate",
     {"expert_bias"},
     kSig,
     true,
     1.5F,
     true},
    {"longcat_flash",
     "longcat_flash",
     R"({"n_routed_experts":4,"moe_topk":2,"expert_ffn_hidden_size":4)"
     R"(,"ffn_hidden_size":64,"zero_expert_num":0,"routed_scaling_factor":6.0})",
     kMlp,
     kE,
     kQ,
     "router.classifier",
     {"router.e_score_correction_bias"},
     kSoft,
     false,
     6,
     true},
    {"dots1",
     "dots1",
     R"({"n_routed_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":4)"
     R"(,"norm_topk_prob":false})",
     kMlp,
     kE,
     kQ,
     "gate",
     {kCorrection},
     kSig,
     false,
     1,
     true},
    {"kimi_k25",
     "kimi_k25",
     R"({"text_config":{"model_type":"kimi_k2","hidden_size":8,"hidden_act":"silu")"
     R"(,"n_routed_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":4}})",
     "language_model.model.layers.1.mlp",
     kE,
     kQ,
     "gate",
     {kCorrection},
     kSig,
     true,
     1,
     true},
};

}  // namespace variant_words

inline const std::vector<Variant>& variants() { return variant_words::kVariants; }

// `more` changes the config.
inline Checkpoint build(const Variant& row, const json& more = json::object()) {
  Checkpoint checkpoint;
  checkpoint.config = base_config(row.type, json::parse(row.config));
  checkpoint.config.update(more);
  put_experts(&checkpoint, row.module(), row.names);
  put_router(&checkpoint, row.parent, row.router, row.vectors);
  return checkpoint;
}

inline Variant variant(const std::string& name) {
  for (const Variant& row : variants()) {
    if (row.name == name) return row;
  }
  throw std::runtime_error("no variant " + name);
}

inline Checkpoint build(const std::string& name, const json& more = json::object()) {
  return build(variant(name), more);
}

}  // namespace perch::test
