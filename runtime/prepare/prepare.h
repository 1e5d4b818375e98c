// Step 6: canonical tensors -> prepared weights, expert by expert, in the chosen backend.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "canonical/canonical_layer.h"
#include "prepare/expert_tensors.h"
#include "prepare/requantize.h"
#include "select/candidate.h"

namespace perch {

// The status of a backend's call, with the backend's name in front of its text.
Status backend_status(const std::string& backend, const char* call, perch_status status,
                      const perch_error& error);

// Weights that a backend holds. Owns them.
class Prepared {
 public:
  Prepared(const perch_backend_api* api, perch_prepared* handle) : api_(api), handle_(handle) {}
  ~Prepared() {
    if (handle_ != nullptr) api_->prepared_destroy(handle_);
  }
  Prepared(Prepared&& other) noexcept : api_(other.api_), handle_(other.handle_) {
    other.handle_ = nullptr;
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  Prepared& operator=(Prepared&&) = delete;

  const perch_backend_api& api() const { return *api_; }
  perch_prepared* handle() const { return handle_; }

 private:
  const perch_backend_api* api_;
  perch_prepared* handle_;
};

// One prepare under way. Aborts it when dropped before end().
class Preparation {
 public:
  static Result<std::unique_ptr<Preparation>> begin(const Candidate& candidate,
                                                    const LayerConfig& config,
                                                    const perch_stream& stream);
  ~Preparation();
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  const LayerConfig& config() const { return config_; }
  // expert: -1 for a linear layer. Each once.
  Status put(int32_t expert, const ExpertTensors& tensors);
  // Refuses, naming it, while an expert is missing; the preparation then still lives.
  Result<Prepared> end();

 private:
  Preparation(const Candidate& candidate, const LayerConfig& config)
      : candidate_(candidate), config_(config) {}

  Candidate candidate_;
  LayerConfig config_;
  perch_builder* builder_ = nullptr;
  std::vector<bool> have_;  // per expert; one entry for a linear layer
};

// What loading one layer took.
struct LoadReport {
  int64_t bytes_read = 0;  // of the checkpoint
  double seconds = 0;      // reading, converting and packing
  RequantError requant;    // where the selection asks for another format
};

// The whole of a checkpoint's layer: one expert's canonical tensors exist at a time, two while they
// are converted, and the checkpoint's pages of an expert are given back once it is packed.
Result<Prepared> prepare_layer(const CanonicalLayer& layer, const Selection& selection,
                               const Candidate& candidate, const perch_stream& stream,
                               LoadReport* report);

// Expert `expert` in the format that the selection asks for.
Result<CanonicalExpert> selected_expert(const CanonicalLayer& layer, const Selection& selection,
                                        int64_t expert, RequantError* error);

// Replaces all weights of a prepared layer by those of `layer`, in place. Every expert is first
// prepared alone and thrown away, so that one which the backend refuses is found before anything is
// written: on an error the old weights are whole.
Status update_all(const CanonicalLayer& layer, const Selection& selection,
                  const Candidate& candidate, const Prepared& prepared);

// Replaces one expert of prepared weights.
Status update_expert(const Prepared& prepared, const Candidate& candidate, int32_t expert,
                     const ExpertTensors& tensors);

}  // namespace perch
