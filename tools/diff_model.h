// `perch diff` on a checkpoint: each layer on A and on B, over the host API, in a child process.
#pragma once

#include <functional>

#include "diff_report.h"
#include "layer_input.h"

namespace perch_command {

struct DiffModel {
  DiffSide a, b;
  CommonOptions common;  // whose runtime has the reference
  ModelOptions model;
  InputOptions input;
  bool isolate = true;
  double timeout_s = 60;
};

// Calls done once per layer, in order; a crash or a hang is the outcome of its layer. Throws
// Failure when the model itself is wrong.
void diff_model(const DiffModel& diff, const std::function<void(perch_check::CaseOutcome)>& done);

}  // namespace perch_command
