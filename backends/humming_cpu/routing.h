// routing.h - which expert each row goes to, whatever the call's form.
#pragma once

#include "objects.h"
#include "scratch.h"

namespace humming_cpu {

// A chunk's rows, seen as rows * slots pairs (row, slot); lives in the workspace.
struct Routing {
  int32_t* expert;  // [pairs] local expert, or -1: contributes nothing
  int32_t* order;   // [valid pairs] pairs by expert, rising within one
  float* weight;    // [pairs]
  int32_t* begin;   // [E + 1] an expert's part of order
  int32_t* active;  // [num_active] experts with rows, rising
  int64_t num_active;
  int64_t num_valid;
};

// Rows [first, first + rows) of the call, as routed by its ids, counts or offsets.
Routing route(const LayerPlan& plan, const Scratch& scratch, const perch_exec_args& args,
              int64_t first, int64_t rows);

// Where row `row` of the call lies in x or y, in elements from the beginning of the data.
int64_t row_offset(const LayerPlan& plan, const DLTensor& tensor, int64_t row);

}  // namespace humming_cpu
