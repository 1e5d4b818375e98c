// Two candidates on one case: each against the oracle, and one against the other.
#pragma once

#include "check/check.h"

namespace perch_check {

// Context::other is B. Figures, all of realistic data:
//   a_b                  worst |a - b|, as a share of twice the bound: each of them may be off
//   a_oracle, b_oracle   worst distance from the oracle, as a share of the bound
//   identical            1: all rows of the call hold the same bytes
//   wrong_a, wrong_b     1: that one is beyond what is allowed, also on data with an exact answer
// Failed when any of the three is above 1, and says which of the two is wrong.
void check_diff(Context& a);

// "A reference/reference gives 0.5 (its worst element is 0.3 of what is allowed)". worst_row: its
// share of what a row is allowed, said where above 1.
std::string print_side(const std::string& side, double value, double worst_element,
                       double worst_row = 0);
// Which of two is wrong, in words.
std::string print_wrong(const std::string& a, bool a_wrong, const std::string& b, bool b_wrong);

// No part of a conformance run, so not in all_checks().
inline constexpr Check kDiff{"diff", 0, check_diff, "two candidates against each other"};

}  // namespace perch_check
