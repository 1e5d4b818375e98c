// The text of a recipe: what people write in case lines and YAML, and read in logs and reports.
//
//   weight      int4g32:bf16+z   e2m1g16:e4m3+s2t   e4m3b128:f32   bf16
//   input       int8t   e4m3g128   e2m1g32:e8m0   none
//   activation  silu   situ:-:2:-   swigluoai:1.702:1:7
//
// The grammar is contract §3's. Printing is canonical and parsing its inverse for every struct that
// config_rules.h accepts. Parsing checks the grammar only: whether a recipe makes sense is that
// file's business. Decisions where the contract is silent:
//   - a weight's scale dtype left out means f32; it is always printed
//   - an input's scale dtype left out means f32 (for e2m1: e8m0 with g, e4m3 with sg), and is
//     printed where it is not f32 or the input is e2m1; an input's mode left out means t
//   - b<n>x<k> is rows x columns, as in shapes; b<n> is b<n>x<n>
//   - gidx<int> says how many groups there are, where that is not ceil(K / group)
//   - mxfp4, mxfp8, nvfp4 and fp8 may be followed by extras: mxfp4+bias
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/layer_config.h"
#include "base/status.h"
#include "perch/layer.h"

namespace perch {

// Where a text stops making sense. `token` is what stands there, possibly empty at the end.
struct TextFault {
  std::size_t offset = 0;  // bytes from the text's start
  std::string token;
  std::string want;
};

std::string print_weight(const perch_quant& quant);
Result<perch_quant> parse_weight(std::string_view text);
// The same for a caller that reports positions itself. *quant is set only where there is no fault.
std::optional<TextFault> scan_weight(std::string_view text, perch_quant* quant);

std::string print_act(const perch_act_quant& act);
Result<perch_act_quant> parse_act(std::string_view text);
std::optional<TextFault> scan_act(std::string_view text, perch_act_quant* act);

// "w=int4g32:bf16 act=silu": w w2 a a2 in o act, less what is default. Part of every case line.
std::string recipe_text(const LayerConfig& config);

// The names under which a YAML rule may ask for this weight, most exact first and without
// repetition: "e2m1g32:e8m0+bias" "e2m1g32:e8m0" "e2m1g32" "mxfp4" "e2m1". Families: mxfp4 and
// mxfp8 (groups of 32, e8m0), mxfp6, nvfp4 (groups of 16, e4m3), fp8 (e4m3 or e5m2 that is not
// mxfp8).
std::vector<std::string> format_aliases(const perch_quant& quant);

// The type of that name ("bf16", "int4", "e4m3"), or nullopt.
std::optional<uint32_t> parse_type(std::string_view name);

// ---- Activations -------------------------------------------------------------------------------
struct ActivationInfo {
  uint32_t activation;  // PERCH_ACTIVATION_*
  const char* name;     // "swigluoai"
  uint32_t needs;       // PERCH_MOE_HAS_* that must be present
  uint32_t allows;      // PERCH_MOE_HAS_* that may be present; includes needs
};
std::span<const ActivationInfo> activation_table();
// nullptr for a number or a name that is not known.
const ActivationInfo* activation_info(uint32_t activation);
const ActivationInfo* activation_info(std::string_view name);

// name[:alpha:beta:limit], "-" for an absent parameter.
std::string print_activation(const perch_moe_config& moe);
// Sets activation, the three parameters and their presence flags; other flags stay.
std::optional<TextFault> scan_activation(std::string_view text, perch_moe_config* moe);

// ---- Capabilities ------------------------------------------------------------------------------
// "batch_invariant" and so on, in the order of their bits; an unknown bit is "bit17".
std::vector<std::string> cap_names(perch_caps caps);
std::string print_caps(perch_caps caps);  // joined by commas
// One name in any case; nullopt when there is none of that name.
std::optional<perch_caps> parse_cap(std::string_view name);
// What print_caps prints: names joined by commas. Not the empty text.
std::optional<TextFault> scan_caps(std::string_view text, perch_caps* caps);

}  // namespace perch
