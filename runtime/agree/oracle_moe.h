// The MoE part of the oracle: all rows of one expert at a time, so that each weight is decoded
// once.
#pragma once

#include "agree/oracle.h"

namespace perch {

// `rows` fit the config, and `oracle` has its arrays.
Status evaluate_moe(const LayerConfig& config, const ReadTensors& read,
                    const std::vector<OracleRow>& rows, Oracle* oracle);

}  // namespace perch
