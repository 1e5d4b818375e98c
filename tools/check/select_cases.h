// From what a command line says to cases, and from a case to the candidates that it asks for.
#pragma once

#include <string>
#include <vector>

#include "check/isolate.h"
#include "check/suite.h"

namespace perch_check {

// Whether an argument is meant as a case line, not as a directory.
bool is_case(const std::string& text);

// The lines of `cases`, braces expanded, then those of `suite`: a name or a file; smoke where
// neither is given. *chosen: the suite's name, or "" when there is none. Throws
// perch_command::Failure.
std::vector<SuiteLine> select_cases(const std::vector<std::string>& cases, const std::string& suite,
                                    std::string* chosen);

// Those that say yes, promise what the case requires and are the kernel that it names, if any.
std::vector<CandidateInfo> fitting_candidates(const perch::Case& problem,
                                              const std::vector<CandidateInfo>& candidates);
// Why there are none, in one line.
std::string print_refusals(const perch::Case& problem,
                           const std::vector<CandidateInfo>& candidates);

}  // namespace perch_check
