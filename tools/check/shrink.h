// From a case that fails to the smallest one that still does.
//
// Data is by coordinate, so a smaller case holds the same numbers; what is left of the case is then
// what the failure needs.
#pragma once

#include "check/isolate.h"

namespace perch_check {

struct Shrunk {
  perch::Case problem;
  CheckResult result;  // how the smallest one fails
  int tries = 0;
};

// `failing`: a job of one check that failed with `result`. At most `seconds` long.
Shrunk shrink(const Job& failing, const CheckResult& result, const JobOptions& options,
              double seconds);

// Cases a step smaller than this one, the boldest first; each parses and differs from it.
std::vector<perch::Case> smaller_cases(const perch::Case& problem);

}  // namespace perch_check
