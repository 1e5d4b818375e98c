// The layer once more, row by row in f64, with how far a correct backend may be from it.
//
// The second of two references: made from the contract's formulas and runtime/numeric's decoders,
// apart from backends/reference, so that neither can be wrong alone. `perch check` compares every
// backend with it (the reference too); perch_model_compare takes the bound from it. Scalar and
// slow. Step 8 of the flow.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "base/layer_config.h"
#include "base/status.h"

namespace perch {

// A canonical tensor of one expert (backend.h), borrowed.
struct NamedData {
  std::string_view name;  // "w13.scale"
  const void* data = nullptr;
};
// Fills the tensors of one local expert (0 for a linear layer); they live until the next call.
using ReadTensors = std::function<Status(int64_t expert, std::vector<NamedData>* tensors)>;

// One expert that a row goes to.
struct OracleVisit {
  int64_t expert = 0;  // local
  float weight = 1;    // of its output, or of the input under ROUTER_WEIGHT_ON_INPUT
};

// One row of a call, whatever the form: STANDARD has a visit per valid slot in slot order, BATCHED
// and GROUPED have one of weight 1, a linear layer has none.
struct OracleRow {
  std::vector<float> x;  // [K], the values that in_dtype holds
  std::vector<OracleVisit> visits;
};

// What the rows should give. All arrays are [rows, columns].
struct Oracle {
  int64_t rows = 0;
  int64_t columns = 0;
  // y before its rounding to out_dtype: f64, with the recipe's input quantization done exactly as
  // contract §2 says (scale and code in f32). NaN where the row's input asks for it.
  std::vector<double> value;
  std::vector<double> s;    // S: the absolute products, carried through
  std::vector<double> mid;  // what the allowed roundings of h, a and y_e (and x * w) may add
  // Codes of a quantized a that may be their neighbour (at most the contract's number of them, one
  // step times the largest |w2|), and scales of it that may be another.
  std::vector<double> flips;
  // 1: every intermediate of this element is an integer multiple of a power of two that f32 holds
  // whatever the order of the sum, and that the allowed roundings do not change. Its result is then
  // `value` rounded once, to the last bit.
  std::vector<unsigned char> exact;
};

Result<Oracle> evaluate_rows(const LayerConfig& config, const ReadTensors& read,
                             const std::vector<OracleRow>& rows);

// Unit roundoff of F32, F16 or BF16, and the smallest normal number.
double unit_roundoff(uint32_t type);
double smallest_normal(uint32_t type);

}  // namespace perch
