// Which weight formats can be made from weights alone, on request (`requant`).
//
// The rule only: the conversion is prepare/requantize.h.
#pragma once

#include <string>

#include "base/layer_config.h"
#include "base/status.h"

namespace perch {

// `config` with its weight formats replaced by `format` ("int4g32:bf16+z"); bias and input scaling
// stay. Refuses what cannot be made from weights alone: lut4, float zeros, offsets, act-order.
Result<LayerConfig> requantized_config(const LayerConfig& config, const std::string& format);

}  // namespace perch
