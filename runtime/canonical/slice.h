// Slices: which part of a layer a tensor- or expert-parallel rank holds.
//
// Tensor parallel: one rule for all formats, so that sums over ranks give the whole. Ranks take
// contiguous runs; a scale is never cut, but a group may be made finer (its scale repeated) where
// that balances the ranks. Expert parallel: linear or round-robin placement, empty ranks allowed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace perch {

struct Split {
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  uint32_t ep_rank = 0;
  uint32_t ep_size = 1;
  bool round_robin = false;  // expert e on rank e mod ep_size; else runs of experts
};

// Where a dimension may be cut. `group` elements share a scale; cutting finer than that repeats it,
// down to `finest`, which divides group. Both 1: anywhere.
struct Grain {
  int64_t group = 1;
  int64_t finest = 1;
};

// Where the ranks' parts begin and end: 0 = edges[0] < ... < edges[tp_size] = size. In this order:
// whole groups, as many for each; equal parts, if groups no finer than `finest` fit; whole groups,
// one more for some; the largest finer group of which each rank gets one. Refuses, naming `what`,
// the sizes and the largest tp that works, where a rank would hold nothing.
Result<std::vector<int64_t>> tensor_parallel_edges(const std::string& what, int64_t size,
                                                   const Grain& grain, int64_t tp_size);

// The global ids of this rank's experts, ascending. Linear: E/ranks each, one more for the first
// E mod ranks.
std::vector<int64_t> expert_parallel_ids(int64_t experts, const Split& split);

// [experts]: the local index of each expert, -1 for those elsewhere.
std::vector<int32_t> expert_map(int64_t experts, const std::vector<int64_t>& local);

Status check_split(const Split& split);

}  // namespace perch
