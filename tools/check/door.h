// The backend under test, called directly: library, instance, prepared layer, one call.
//
// No runtime in between: what is checked here is what the backend does with calls that a runtime
// would let through. Refusals are values, so that a check can ask for them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "check/case_data.h"
#include "check/host.h"
#include "perch/backend.h"

namespace perch_check {

// What a backend answered.
struct Reply {
  perch_status status = PERCH_OK;
  std::string message;
  bool ok() const { return status == PERCH_OK; }
  std::string print() const;  // "PERCH_E_UNSUPPORTED: ..."
};

// The table of a library, for the life of the process. Throws std::runtime_error.
const perch_backend_api* open_table(const std::string& path);

// query_support's answer with all its reasons.
struct Answer {
  Reply reply;
  perch_support support{};
  std::vector<perch_reason> reasons;
  bool yes() const { return reply.ok() && support.verdict == PERCH_VERDICT_YES; }
  bool promises(perch_caps caps) const { return (support.caps & caps) == caps; }
  std::string print_reasons() const;
};

class Prepared;

// One instance on one host. Throws std::runtime_error when create fails.
class Instance {
 public:
  Instance(const perch_backend_api* api, const HostOptions& options);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const perch_backend_api& api() const { return *api_; }
  perch_backend* handle() const { return backend_; }
  CheckHost& host() { return host_; }

  Answer query(const perch_layer_config& config, uint32_t variant) const;
  uint32_t variants(const perch_layer_config& config) const;

 private:
  const perch_backend_api* api_;
  CheckHost host_;
  perch_backend* backend_ = nullptr;
};

// Canonical tensors lent to a backend: each in a buffer of its own, read-only.
class LentTensors {
 public:
  LentTensors(const std::vector<CaseTensor>& tensors, Side side);
  std::span<const perch_named_tensor> named() const { return named_; }
  // The lender has them back: who reads them now faults.
  void give_back();

 private:
  struct Entry {
    std::string name;
    GuardedBuffer buffer;
    std::vector<int64_t> shape, strides;
    DLTensor tensor{};
  };
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<perch_named_tensor> named_;
};

// How weights are made and lent.
struct PrepareOptions {
  Fill fill = Fill::kReal;
  uint64_t seed = 0;
  Side side = Side::kTail;
  bool backwards = false;  // the last expert first
  // This expert alone takes its numbers from another seed.
  int64_t other_expert = -1;
  uint64_t other_seed = 0;
};

class Prepared {
 public:
  // reply() says whether it worked. The instance outlives it.
  Prepared(Instance& instance, const perch::LayerConfig& config, uint32_t variant,
           const PrepareOptions& options);
  ~Prepared();
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  const Reply& reply() const { return reply_; }
  Instance& instance() const { return instance_; }
  const perch::LayerConfig& config() const { return config_; }
  perch_prepared* handle() const { return handle_; }

  perch_workspace_req workspace(int64_t num_tokens) const;
  Reply update(int32_t expert, const LentTensors& tensors);

 private:
  Reply put(perch_builder* builder, int64_t expert, const PrepareOptions& options);

  Instance& instance_;
  perch::LayerConfig config_;
  Reply reply_;
  perch_prepared* handle_ = nullptr;
  bool zero_copy_ = false;
  // Lent for good under ZERO_COPY_WEIGHTS; else given back, and mapped so that nothing else takes
  // their addresses.
  std::vector<std::unique_ptr<LentTensors>> lent_;
};

struct CallOptions {
  Side side = Side::kTail;
  std::byte poison{0xFF};                         // of y and workspace
  const std::vector<std::byte>* stale = nullptr;  // else: y is prefilled with this
  bool read_only_weights = false;                 // allocations of the backend, during execute
  bool strided = false;                           // rows of x and y lie apart
  bool ids64 = false;
  bool count_allocations = false;
  enum class Overlap { kNone, kInPlace, kWorkspaceHead, kWorkspaceTail } overlap = Overlap::kNone;
};

struct Output {
  Reply reply;
  int64_t row_bytes = 0;
  std::vector<std::byte> y;    // all rows, as stored, without gaps
  std::vector<int64_t> place;  // row of y that holds row i of the call
  int64_t allocations = 0;     // during execute, where counted
  std::string damage;          // memory that was written and must not be, in words; ""

  std::span<const std::byte> row(size_t i) const {
    return {y.data() + place[i] * row_bytes, static_cast<size_t>(row_bytes)};
  }
};

Output execute(const Prepared& prepared, const CallData& call, const CallOptions& options = {});

// Rows of y as numbers, in the order of the call's rows.
std::vector<double> output_values(const perch::LayerConfig& config, const Output& output);

}  // namespace perch_check
