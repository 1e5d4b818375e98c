// Slices: which part of a layer a tensor- or expert-parallel rank holds.
//
// One rule for all formats: ranks take contiguous runs of whole units (a quantization group, a
// packed byte), as even as that allows, so that no scale is ever cut. Sums over ranks give the
// whole.
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
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Rank `rank` of `ranks`: units [ceil(U*rank/ranks), ceil(U*(rank+1)/ranks)) of U =
// ceil(size/unit). Refuses, naming `what`, the sizes and the largest number of ranks that works,
// where one of the ranks would hold nothing.
Result<Range> tensor_parallel_range(const std::string& what, int64_t size, int64_t unit,
                                    const Split& split);

// Linear placement: E/ranks experts each, one more for the first E mod ranks. May be empty.
Range expert_parallel_range(int64_t experts, const Split& split);

// [E]: the local index of each expert, -1 for those elsewhere.
std::vector<int32_t> expert_map(int64_t experts, const Range& local);

Status check_split(const Split& split);

}  // namespace perch
