// What every format asks of its tensors before a byte of them is read, and the parts that are
// checked alike in several formats. Beside format_parts.h, which plans scales, biases and inputs.
//
// Every function that fails names the tensor, or the module and the configuration's key, with what
// was found and what is wanted.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "canonical/format_parts.h"

namespace perch {

// The number format that tensors hold, against what the configuration says of the module: quantized
// at all, and of this kind and width. `weight` is the tensor that tells.
struct StoredNumber {
  int64_t bits = 0;
  bool is_float = false;
};
Status check_number(const Scheme& scheme, const Projection& projection, const RawView& weight,
                    StoredNumber stored);

// The configuration's method is `method`, or there is none.
Status check_method(const Scheme& scheme, const Projection& projection, const RawView& weight,
                    std::string_view method);

// Sets n and k. Sizes of 1 to 2^31 - 1, so that products of two of them and a width in bits fit.
// `rows_times` matrix rows per stored row, then k = columns * codes / elements, which must be
// whole.
Status set_size(const RawView& weight, int64_t n, int64_t k, MatrixPlan* plan);
// The stored dimensions of `view` are 1 to 2^31 - 1. What is computed from them cannot overflow.
Status check_dimensions(const RawView& view);

// [size] floats; `letter` names the size.
Status check_floats(const RawView& view, int64_t size, const char* letter);

// The weight's scales under whichever of their names: weight_scale, weight_scale_inv, scale_inv or
// scale, all of which multiply. One of them must be there, and only one.
Result<const RawView*> find_scale(const Projection& projection);

// The value of a scalar scale, or 1/value. 0, subnormal, negative, NaN and infinite are refused,
// before and after: a scale that was never calibrated would make every output 0 or NaN.
Result<float> positive_scalar(const RawView& view, bool inverted);

// Sets scale2 and its kind.
Status plan_scale2(const RawView& view, bool inverted, MatrixPlan* plan);

// Sets pre_scale and its flag, where there is a "pre_quant_scale" part.
Status plan_pre_scale(const Projection& projection, MatrixPlan* plan);

// Sets g_idx and the order of K from the part `suffix`, after plan_scale. The natural order, stored
// or not, is NATURAL; another one must be what the configuration says.
Status plan_g_idx(const Scheme& scheme, const Projection& projection, std::string_view suffix,
                  MatrixPlan* plan);

// One scale for all rows, seen as one scale for each: stored zero points need one of the two.
void widen_to_channel(MatrixPlan* plan);

}  // namespace perch
