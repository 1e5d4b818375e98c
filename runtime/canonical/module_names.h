// Module names: how a configuration's name for a module meets the name that its tensors have.
//
// The one rule for prefixes. Tools rename what stands before the layers: the same module is
// "model.layers.0.mlp.gate", "model.language_model.layers.0.mlp.gate" or "layers.0.mlp.gate". So
// leading segments model, language_model, backbone and transformer count for nothing when two names
// are compared, and a pattern is tried on the module's name under each prefix that is seen in the
// field. Any other prefix counts: "mtp.layers.0" is not "layers.0". Segments are compared whole:
// "mlp.gate" never is "mlp.gate_proj".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace perch {

// Without its leading segments that count for nothing.
std::string_view core_name(std::string_view name);

bool same_module(std::string_view entry, std::string_view module);

// entry is the module or a module around it: "model.layers.61" of all of layer 61.
bool is_within(std::string_view module, std::string_view entry);

// The rule of modules_to_not_convert (fp8, mxfp4): around the module as is_within(), or, where the
// entry does not begin at the layers, any whole segments of its name ("self_attn", "mlp.gate",
// "lm_head"); with `*` a wildcard for the module or one around it; after "re:" a pattern.
Result<bool> is_not_converted(std::string_view module, std::string_view entry);

// python's re.match of the pattern on one of the module's names. On its own name only, where the
// pattern begins with .* (which takes any prefix) or looks ahead for what must not follow (which a
// prefix that is not there would answer).
Result<bool> pattern_names(std::string_view pattern, std::string_view module);

// fnmatch on the module's name or that of its experts' module, both with and without prefixes.
bool wildcard_names(std::string_view wildcard, std::string_view module);

// Whether a wildcard has anything wild.
bool is_wildcard(std::string_view entry);

// python's fnmatch.fnmatchcase(text, wildcard): the whole text, and `*` spans dots.
bool wildcard_match(std::string_view wildcard, std::string_view text);

// The module's name, and where its prefix may be another, its names under each; own name first.
std::vector<std::string> names_of(std::string_view module);

// "model.layers.0.mlp.experts" of a module in it or of itself; "" of others.
std::string_view experts_module(std::string_view module);

}  // namespace perch
