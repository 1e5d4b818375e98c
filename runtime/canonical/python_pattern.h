// python's re.match, the language of patterns in configurations.
//
// Not std::regex: it reads another language (\Z, {,3} and []a] mean something else there or
// nothing), throws, and takes exponential time on patterns made for it. Here a match is a set of
// positions that moves through the pattern, so the time is bounded, and what is not read is
// refused. Which name a pattern is tried on is module_names.h's business.
#pragma once

#include <string_view>

#include "base/status.h"

namespace perch {

// Whether python's re.match(pattern, text) succeeds: anchored at the start, not at the end.
// UNSUPPORTED, as "got the pattern "..."; want ...", for what is not read (flags in the pattern,
// look-behind, references back, possessive repeats), for a pattern over 1000 or a text over 511
// bytes, and for one that takes too many steps.
Result<bool> python_match(std::string_view pattern, std::string_view text);

}  // namespace perch
