// Scheme: what a checkpoint's configuration says about how one module's weight is stored.
//
// One quant_method is one row of scheme.cc and one file scheme_<method>.cc; each knows its keys,
// its rules for which modules it covers, and nothing about tensors. Whether the tensors are as the
// scheme says is the format's check (format.h). A scheme belongs to a module, never to a file:
// mixed checkpoints are common.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "canonical/model_config.h"
#include "perch/layer.h"

namespace perch {

enum class Strategy {
  kUnstated,  // the tensors' shapes decide
  kTensor,
  kChannel,
  kGroup,  // also tensor_group: groups with a second scale
  kBlock,
};

struct Scheme {
  // False: the configuration leaves this module at 16 or 32 bits (ignored, or no configuration at
  // all). Quantized tensors under such a module contradict it, unless `unstated`.
  bool quantized = false;
  bool unstated = false;  // there is no configuration: the tensors alone decide
  std::string method;     // "gptq"; "" where unstated
  std::string format;     // within the method: "pack-quantized", "NVFP4", "gemm"; may be ""
  std::string version;    // of the package that wrote it; "" where not said
  std::string where;      // for messages: "config.json: quantization_config.config_groups.group_0"

  int64_t bits = 0;  // 0: not said
  bool is_float = false;
  bool symmetric = true;
  Strategy strategy = Strategy::kUnstated;
  int64_t group = 0;    // kGroup: elements of K; 0 where not said
  int64_t block_n = 0;  // kBlock
  int64_t block_k = 0;
  bool act_order = false;       // a stored g_idx decides the groups
  bool zeros_less_one = false;  // GPTQ v1: zero points are stored less one
  perch_act_quant act{};        // of the module's input; static modes take their scale from tensors
};

// A scheme of 16- or 32-bit weights, with act NONE.
Scheme plain_scheme();

// The scheme of `module` ("model.layers.0.mlp.experts.3.gate_proj"; a fused tensor's module is
// "model.layers.0.mlp.experts.gate_up_proj", its parts are looked up as gate_proj and up_proj of
// expert 0 too and must agree). INVALID_ARGUMENT or UNSUPPORTED names file, key, found and wanted.
Result<Scheme> find_scheme(const ModelConfig& config, const std::string& module);

// One quant_method. `quantization` is its JSON object, `where` names it in messages.
struct QuantMethod {
  std::string_view name;  // the value of quant_method
  Result<Scheme> (*find)(const nlohmann::json& quantization, const std::string& where,
                         const std::string& module);
};

// The rows, one per file.
extern const QuantMethod kCompressedTensorsMethod;
extern const QuantMethod kModeloptMethod;
extern const QuantMethod kFp8Method;
extern const QuantMethod kGptqMethod;
extern const QuantMethod kAwqMethod;
extern const QuantMethod kMxfp4Method;

}  // namespace perch
