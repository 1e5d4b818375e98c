// Quantization configs: config.json and the files beside it, and the scheme of some modules. What
// is refused says in one line where and what was wanted; what is found is a scheme that can be.
#include <string>

#include "base/quant_rules.h"
#include "canonical/scheme.h"
#include "fuzz.h"
#include "mutate.h"

namespace perch::fuzz {
namespace {

constexpr std::string_view kWords[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ":",
                                       ",",
                                       "null",
                                       "true",
                                       "false",
                                       "-1",
                                       "4",
                                       "8",
                                       "16",
                                       "32",
                                       "128",
                                       "1e3",
                                       "18446744073709551615",
                                       "\"quantization_config\": ",
                                       "\"text_config\": ",
                                       "\"quant_method\": ",
                                       "\"config_groups\": ",
                                       "\"targets\": ",
                                       "\"weights\": ",
                                       "\"input_activations\": ",
                                       "\"num_bits\": ",
                                       "\"group_size\": ",
                                       "\"block_structure\": ",
                                       "\"strategy\": ",
                                       "\"dynamic\": ",
                                       "\"ignore\": ",
                                       "\"quant_algo\": ",
                                       "\"quantized_layers\": ",
                                       "\"weight_block_size\": ",
                                       "\"modules_to_not_convert\": ",
                                       "\"bits\": ",
                                       "\"desc_act\": ",
                                       "\"version\": ",
                                       "\"compressed-tensors\"",
                                       "\"modelopt\"",
                                       "\"fp8\"",
                                       "\"gptq\"",
                                       "\"awq\"",
                                       "\"mxfp4\"",
                                       "\"Linear\"",
                                       "\"re:.*experts.*\"",
                                       "\"re:(a+)+$\"",
                                       "\"*gate*\"",
                                       "\"-:.*\"",
                                       "\"group\"",
                                       "\"block\"",
                                       "\"local\"",
                                       "\"MIXED_PRECISION\"",
                                       "(?!",
                                       "\\\\d",
                                       "{1,1000}",
                                       "[a-z]",
                                       "*"};

constexpr const char* kModules[] = {
    "model.layers.0.mlp.experts.3.gate_proj", "model.layers.0.mlp.experts.gate_up_proj",
    "model.language_model.layers.1.self_attn.q_proj", "lm_head", ""};

void check_scheme(const Scheme& scheme) {
  Breaches breaches;
  check_act_quant(breaches, "act", scheme.act);
  PERCH_FUZZ_CHECK(breaches.take().empty());
  if (!scheme.quantized) return;
  accept();
  PERCH_FUZZ_CHECK(scheme.bits >= 1 && scheme.bits <= 8 && !scheme.where.empty());
  PERCH_FUZZ_CHECK(scheme.group >= 0 && (scheme.group == 0 || scheme.strategy == Strategy::kGroup));
  const bool block = scheme.strategy == Strategy::kBlock;
  PERCH_FUZZ_CHECK(block == (scheme.block_n > 0) && block == (scheme.block_k > 0));
  PERCH_FUZZ_CHECK(!scheme.act_order || scheme.strategy == Strategy::kGroup);
  PERCH_FUZZ_BUG(scheme.group % 10 == 7);
}

void check_refusal(const Status& status) {
  const std::string message = status.message();
  PERCH_FUZZ_CHECK(status.code() == PERCH_E_INVALID_ARGUMENT ||
                   status.code() == PERCH_E_UNSUPPORTED);
  PERCH_FUZZ_CHECK(message.find(".json: ") < 24);
  PERCH_FUZZ_CHECK(message.find("want ") != std::string::npos);
}

void check_config(const std::string& config_json, const std::map<std::string, std::string>& extra) {
  const Result<ModelConfig> config = parse_model_config(config_json, extra);
  if (!config.ok()) return check_refusal(config.status());
  for (const char* module : kModules) {
    const Result<Scheme> scheme = find_scheme(*config, module);
    if (scheme.ok()) {
      check_scheme(*scheme);
    } else {
      check_refusal(scheme.status());
    }
  }
}

void fuzz_quant_config(Bytes bytes) {
  const std::string text(text_of(bytes));
  check_config(text, {});
  check_config("{}", {{"hf_quant_config.json", text}});
  check_config("{}", {{"quantize_config.json", text}});
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TEXT_TARGET(quant_config, perch::fuzz::fuzz_quant_config, perch::fuzz::kWords);
