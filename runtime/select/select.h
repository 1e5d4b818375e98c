// Steps 4 and 5: LayerConfig x backends -> candidates -> one.
//
// Deterministic: the same config, rules and libraries give the same choice, whatever the order of
// loading. Filters, in this order, each with its reasons: rules, device, kind, fields that the
// backend's headers do not have, the backend's own answer, promises, memory. Rank: the rule's `use`
// order, preferred promises met, score, bytes, id, variant.
#pragma once

#include "config/match.h"
#include "plugin/registry.h"
#include "select/candidate.h"

namespace perch {

// `model_type` is "" for a layer that comes from no model. `only` is an explicit backend id or "".
struct SelectRequest {
  const LayerConfig* config = nullptr;
  std::string model_type;
  std::string only;
  std::string requant;  // wins over the rule's; "" for none
};

// INVALID_ARGUMENT when the rule cannot be applied (an `act` or `requant` that does not parse).
// Nothing fitting is not an error here: see no_candidate_status.
Result<Selection> select_backend(const Config& config, const Registry& registry,
                                 const SelectRequest& request);

// UNSUPPORTED: the layer, what it requires, and each candidate with each of its reasons.
Status no_candidate_status(const Selection& selection);

}  // namespace perch
