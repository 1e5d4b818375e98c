// What the formats share: looking up a projection's parts, checking them, reading small values.
//
// Every function that fails names the tensor, what was found and what is wanted.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "canonical/format.h"

namespace perch {

// "model.safetensors: tensor "x": shape: got [2, 3]; want [2, 4] (N x K/8)"
Status wrong_shape(const RawView& view, const std::string& want);
Status wrong_dtype(const RawView& view, std::string_view want);
// "model.safetensors: module "m": weight_scale: missing; want <want>"
Status missing_part(const Projection& projection, std::string_view suffix, const std::string& want);
// The scheme and the tensors of `projection` contradict each other: "config.json: ...: got <got>
// for module "m"; want <want>".
Status wrong_scheme(const Scheme& scheme, const Projection& projection, const std::string& got,
                    const std::string& want);

// Of F32, F16, BF16, F8_E4M3, F8_E5M2 or F8_E8M0; U8 is E8M0 where `u8_is_e8m0`. nullopt else.
std::optional<uint32_t> scale_type(RawDtype dtype, bool u8_is_e8m0);

// Sets scale, scale_kind, scale_dtype, group_k and group_n of *plan (whose n and k are set) from
// the array `scale` and the scheme's strategy; the shape must be that of the strategy:
//   tensor   [], [1] or [1,1]        channel  [N] or [N,1]
//   group    [N, ceil(K/group)]      block    [ceil((N + first_row)/bn), ceil(K/bk)], or larger
// Strategy kUnstated takes the one that the shape fits, in this order: tensor, channel, group (by
// scheme.group, else K / columns where that is whole), block.
Status plan_scale(const Scheme& scheme, const Projection& projection, const RawView& scale,
                  bool u8_is_e8m0, MatrixPlan* plan);

// Sets bias and its flag, where there is a "bias" part.
Status plan_bias(const Projection& projection, MatrixPlan* plan);

// Sets act from the scheme, and input_scale of its static modes from the part `suffix`, inverted
// where `inverted`. Missing, zero, subnormal, NaN or infinite is refused.
Status plan_act(const Scheme& scheme, const Projection& projection, std::string_view suffix,
                bool inverted, MatrixPlan* plan);

// The one value of a [] or [1] or [1,1] tensor of a 16- or 32-bit float.
Result<float> read_scalar(const RawView& view);
// Element (row, column) of a 16- or 32-bit float array.
float float_at(const RawView& view, int64_t row, int64_t column);
bool is_float_dtype(RawDtype dtype);

}  // namespace perch
