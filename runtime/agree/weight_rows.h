// One matrix of one expert, row by row in f64, with what the oracle has to know of each number; and
// the rows that it is multiplied with.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "agree/exact_sum.h"
#include "agree/oracle.h"
#include "numeric/decode.h"

namespace perch {

// A vector of numbers; `low` only where exactness is asked for.
struct NumberRow {
  std::vector<double> values;
  std::vector<LowBit> low;

  void set_low_bits();
};

struct WeightRow {
  NumberRow numbers;
  double bias = 0;
};

class WeightRows {
 public:
  // matrix: 0 for w13 or w, 1 for w2. `tensors` has every tensor of tensor_specs(config).
  // with_low: rows come with their lowest bits.
  WeightRows(const LayerConfig& config, int matrix, const std::vector<NamedData>& tensors,
             bool with_low);

  // Row n into *row; `g_idx_row` is 1 for the up rows of a gated w13. A weight that some order of
  // code, zero and scales rounds, or that a 16-bit operand does not hold, has kRoundedBit.
  void load(int64_t n, int64_t g_idx_row, WeightRow* row);

  // What the first GEMM reads in place of x: times pre_scale in f32, rounded to in_dtype where it
  // is not quantized, quantized where the recipe says so.
  NumberRow make_input(std::vector<float> x) const;
  // 1 without.
  double pre_scale(size_t k) const { return pre_scale_ == nullptr ? 1.0 : double{pre_scale_[k]}; }
  // Of a recipe with a static scale.
  float input_scale() const { return input_scale_; }

 private:
  void mark_rounded(int64_t n, WeightRow* row);

  const perch_quant& quant_;
  const perch_act_quant& act_;
  const int64_t columns_;
  const uint32_t in_dtype_;
  const bool with_low_;
  numeric::MatrixTensors tensors_;
  const int32_t* g_idx_ = nullptr;
  const float* bias_ = nullptr;
  const float* pre_scale_ = nullptr;
  float input_scale_ = 0;
  std::vector<float> decoded_;
};

}  // namespace perch
