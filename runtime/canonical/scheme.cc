#include "canonical/scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/layer_config.h"
#include "base/nearest.h"
#include "canonical/module_names.h"
#include "canonical/scheme_parts.h"

namespace perch {
namespace {

using nlohmann::json;

constexpr std::array kMethods = {&kCompressedTensorsMethod,
                                 &kModeloptMethod,
                                 &kFp8Method,
                                 &kGptqMethod,
                                 &kAwqMethod,
                                 &kMxfp4Method};

// Methods that are recognised and not read, and what their files hold.
struct Foreign {
  std::string_view name;
  std::string_view what;
};
constexpr std::array kForeign = {
    Foreign{"bitsandbytes", "nf4, fp4 or LLM.int8() weights in blocks over the flat order"},
    Foreign{"fbgemm_fp8", "fp8 weights with a scale per row and an upper bound of input scales"},
    Foreign{"auto-round", "GPTQ or AWQ tensors with per-layer settings in extra_config"},
    Foreign{"intel/auto-round", "GPTQ or AWQ tensors with per-layer settings in extra_config"},
    Foreign{"inc", "GPTQ or AWQ tensors with per-layer settings in extra_config"},
    Foreign{"quark", "AMD Quark's weights, packed as export.pack_method says"},
    Foreign{"hqq", "half-quadratic weights with float zero points"},
    Foreign{"quanto", "optimum-quanto's tensors"},
    Foreign{"torchao", "torchao's serialized tensor classes"},
    Foreign{"bitnet", "ternary weights, four to a byte"},
    Foreign{"aqlm", "additive codebooks"},
    Foreign{"vptq", "vector codebooks"},
    Foreign{"higgs", "Hadamard-rotated grids"},
    Foreign{"spqr", "sparse outliers beside quantized weights"},
    Foreign{"quip", "incoherence-processed codebooks"},
    Foreign{"fp_quant", "Hadamard-rotated fp4 weights"},
    Foreign{"exl2", "ExLlamaV2's mixed-width weights"},
    Foreign{"exl3", "ExLlamaV3's trellis codes"},
    Foreign{"gguf", "ggml blocks inside a GGUF file"},
    Foreign{"eetq", "int8 rows in a kernel's own order"},
    Foreign{"marlin", "int4 weights in the Marlin kernel's own order"},
    Foreign{"mlx", "MLX's affine groups"},
};

bool has_any(const Place& quantization, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const char* key) { return quantization.value().contains(key); });
}

// The method of a configuration that does not name it, by keys that no other one has; "" for none.
std::string_view method_by_keys(const Place& quantization) {
  if (has_any(quantization, {"quant_algo"})) return kModeloptMethod.name;
  if (has_any(quantization, {"config_groups"})) return kCompressedTensorsMethod.name;
  if (has_any(quantization, {"load_in_4bit", "load_in_8bit"})) return "bitsandbytes";
  if (has_any(quantization, {"w_bit", "q_group_size", "zero_point"})) return kAwqMethod.name;
  if (has_any(quantization, {"desc_act", "sym", "damp_percent", "true_sequential",
                             "checkpoint_format", "is_marlin_format"})) {
    return kGptqMethod.name;
  }
  if (has_any(quantization, {"weight_block_size", "activation_scheme"})) return kFp8Method.name;
  // MLX repeats its own settings under quantization_config, without a name.
  if (has_any(quantization, {"bits"}) && has_any(quantization, {"group_size"})) return "mlx";
  return "";
}

std::vector<std::string_view> method_names() {
  std::vector<std::string_view> names;
  for (const QuantMethod* method : kMethods) names.push_back(method->name);
  return names;
}

Result<const QuantMethod*> find_method(const Place& quantization) {
  PERCH_RETURN_IF_ERROR(quantization.check_object("an object with quant_method"));
  const Place stated = quantization.at("quant_method");
  PERCH_ASSIGN_OR_RETURN(std::string name, stated.text(method_by_keys(quantization)));
  // vLLM's names for the same files: modelopt_fp4, modelopt_mxfp8, modelopt_mixed.
  if (name.starts_with("modelopt_")) name = kModeloptMethod.name;
  for (const QuantMethod* method : kMethods) {
    if (name == method->name) return method;
  }
  const std::vector<std::string_view> known = method_names();
  const std::string want = fmt::format("one of {}", fmt::join(known, ", "));
  if (name.empty()) return stated.wrong(want);
  for (const Foreign& row : kForeign) {
    if (name != row.name) continue;
    return unsupported(fmt::format("{}: got {}\"{}\", which is {}; want {}", stated.path(),
                                   stated.is_absent() ? "the keys of " : "", row.name, row.what,
                                   want));
  }
  return stated.unread(want + did_you_mean(name, known));
}

// The modules of one expert whose tensors a fused tensor joins; empty for others.
std::vector<std::string> parts_of(const std::string& module) {
  const std::string_view experts = experts_module(module);
  if (experts.empty() || experts.size() == module.size()) return {};
  const std::string_view name = std::string_view(module).substr(experts.size() + 1);
  std::vector<std::string> parts;
  if (name == "gate_up_proj") parts.push_back(fmt::format("{}.0.gate_proj", experts));
  if (name == "gate_up_proj" || name == "up_proj") {
    parts.push_back(fmt::format("{}.0.up_proj", experts));
  }
  if (name == "down_proj") parts.push_back(fmt::format("{}.0.down_proj", experts));
  return parts;
}

bool same_scheme(const Scheme& a, const Scheme& b) {
  return a.quantized == b.quantized && a.format == b.format && a.bits == b.bits &&
         a.is_float == b.is_float && a.symmetric == b.symmetric && a.strategy == b.strategy &&
         a.group == b.group && a.block_n == b.block_n && a.block_k == b.block_k &&
         a.act_order == b.act_order && same_act(a.act, b.act);
}

std::string print_scheme(const Scheme& scheme) {
  if (!scheme.quantized) return fmt::format("not quantized ({})", scheme.where);
  return fmt::format("{} bits {}{}{} ({})", scheme.bits, scheme.is_float ? "float" : "int",
                     scheme.format.empty() ? "" : ", ", scheme.format, scheme.where);
}

}  // namespace

Scheme plain_scheme() {
  Scheme scheme;
  scheme.act = make_act_none();
  return scheme;
}

Result<Scheme> find_scheme(const ModelConfig& config, const std::string& module) {
  if (config.quantization.is_null()) {
    Scheme scheme = plain_scheme();
    scheme.unstated = true;
    return scheme;
  }
  const std::string& where = config.quantization_where;
  PERCH_ASSIGN_OR_RETURN(const QuantMethod* method, find_method({config.quantization, where}));
  PERCH_ASSIGN_OR_RETURN(Scheme chosen, method->find(config.quantization, where, module));
  // A rule that excludes the fused tensor by its own name was written for it. A plain scheme whose
  // place is the whole configuration comes from no rule, so others may still have one.
  const auto is_stated = [&](const Scheme& scheme) {
    return scheme.quantized || scheme.where != where;
  };
  if (!chosen.quantized && is_stated(chosen)) return chosen;
  const auto differ = [&](const Scheme& a, const std::string& name, const Scheme& b,
                          const std::string& other) {
    return invalid_argument(fmt::format(
        "{}: got {} for \"{}\" and {} for \"{}\" in the fused tensor \"{}\"; want one scheme for "
        "all of it",
        where, print_scheme(a), name, print_scheme(b), other, module));
  };
  std::optional<Scheme> of_parts;
  const std::vector<std::string> parts = parts_of(module);
  for (const std::string& part : parts) {
    PERCH_ASSIGN_OR_RETURN(Scheme scheme, method->find(config.quantization, where, part));
    if (of_parts && !same_scheme(*of_parts, scheme)) {
      return differ(*of_parts, parts[0], scheme, part);
    }
    of_parts = std::move(scheme);
  }
  if (!of_parts || !is_stated(*of_parts)) return chosen;
  if (is_stated(chosen) && !same_scheme(chosen, *of_parts)) {
    return differ(chosen, module, *of_parts, parts[0]);
  }
  return is_stated(chosen) ? chosen : *of_parts;
}

}  // namespace perch
