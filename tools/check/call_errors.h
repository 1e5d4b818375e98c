// Wrong calls of one layer, made through the host API: each must be refused with words and leave y
// as it was.
#pragma once

#include "check/check.h"

namespace perch_check {

void check_call_errors(Context& context);

}  // namespace perch_check
