// The tensors of a case: weights, rows, routing. All of it by coordinate, so that a smaller case
// holds the same numbers where it overlaps with a larger one, and a row keeps its numbers wherever
// in whatever batch it stands.
//
// Not where buffers lie (memory.h) and not what comes out (runtime/agree).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/case_line.h"

namespace perch_check {

// What the numbers are for.
enum class Fill {
  kReal,        // realistic: signed values of order 1; every scale, zero and code differs
  kSameSign,    // nothing cancels: the worst case of a long sum
  kExact,       // small integers on the format's grid, power-of-two scales: sums are exact
  kAccumulate,  // one large term and many small ones: a narrow accumulator loses the small
};

// One canonical tensor of one expert, owned: see backend.h for the layout.
struct CaseTensor {
  perch::TensorSpec spec;
  std::vector<std::byte> data;
};

// Every tensor of one expert, in the order of tensor_specs. expert: 0 for a linear layer. What is
// not exact grid data has no NaN, and no value whose magnitude is above 8 before scales.
std::vector<CaseTensor> make_expert(const perch::LayerConfig& config, int64_t expert, uint64_t seed,
                                    Fill fill);

// A row is named by its key: its numbers and its routing come from (seed, key) alone.
using RowKey = int64_t;

// The tensors of one call, row i being the row of keys[i]. Ids are global and distinct within a
// row; weights are positive and sum to about 1 (kExact: powers of two).
struct CallData {
  std::vector<RowKey> keys;
  int64_t columns = 0;              // K of x
  std::vector<std::byte> x;         // [rows, K] in in_dtype; BATCHED [E, Tmax, K]
  std::vector<int64_t> ids;         // STANDARD [rows, topk]
  std::vector<float> weights;       // STANDARD [rows, topk]
  std::vector<int32_t> expert_map;  // [num_experts_global] or empty
  std::vector<int64_t> counts;      // BATCHED [E]
  std::vector<int64_t> offsets;     // GROUPED [E+1]
  // Row of y (and of x) that holds keys[i]: i but for BATCHED and GROUPED, where rows are sorted by
  // expert; expert[i] is then the local expert it goes to.
  std::vector<int64_t> place;
  std::vector<int64_t> expert;
  int64_t num_tokens = 0;  // of perch_call_shape: T, Tmax or rows
};

// The rows of `keys` in this order. `load` decides the routing of the keys that are not in `fixed`,
// which keep the routing that the case's own load gives them.
CallData make_call(const perch::Case& problem, const std::vector<RowKey>& keys, Fill fill,
                   const std::string& load, const std::vector<RowKey>& fixed = {});

// Bytes of one element of F32, F16 or BF16, and its number as DLPack says it.
int64_t float_bytes(uint32_t type);
DLDataType float_dlpack(uint32_t type);

}  // namespace perch_check
