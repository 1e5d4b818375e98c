// Candidate and Selection: what could run a layer, what could not and why, and what was chosen.
//
// The plain structs of steps 4 and 5. `explain` prints them; nothing is thrown away.
#pragma once

#include <string>
#include <vector>

#include "base/layer_config.h"
#include "perch/backend.h"

namespace perch {

struct Reason {
  int32_t code = 0;   // PERCH_REASON_*
  std::string field;  // "moe.w13.weight"
  std::string text;
};
const char* reason_name(int32_t code);  // "CAP_MISSING"

// (backend, variant, device). A library that did not load is a candidate too, with its reason.
struct Candidate {
  std::string backend;
  uint32_t variant = 0;
  std::string kernel;
  perch_device device{};
  std::string device_name;
  bool fits = false;
  perch_caps caps = 0;
  int32_t score = 0;
  uint32_t flags = 0;  // PERCH_SUPPORT_*
  uint32_t align = 0;
  uint64_t packed_bytes = 0;
  uint64_t workspace_bytes = 0;
  std::vector<Reason> reasons;
  int use_rank = 0;    // position in the rule's `use`
  bool listed = true;  // allowed by the rule's `use`
  const perch_backend_api* api = nullptr;
  perch_backend* instance = nullptr;
};

struct Selection {
  LayerConfig config;  // in force: with the rule's options, promises and activation recipe
  std::vector<Candidate> candidates;  // those that fit, best first, then the others
  bool found = false;                 // candidates[0] is the choice
  bool fallback = false;              // the choice is outside the rule's `use`
  bool try_next_on_prepare_error = false;
  std::string requant;             // the weight format to convert to, "" for none; lossy
  std::string rule;                // "perch.yaml:12:7", "" when no rule matched
  std::vector<std::string> notes;  // what the rule changed

  const Candidate* chosen() const { return found ? &candidates.front() : nullptr; }
};

// "cpu:0", "cuda:1"
std::string print_device(perch_device device);

}  // namespace perch
