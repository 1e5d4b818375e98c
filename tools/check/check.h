// One check of one candidate on one case, and the list of all of them.
//
// A check is a function that returns when all is well and throws when it is not: Failed, Skipped or
// Untrusted. It runs in a process of its own (isolate.h), so it may crash.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agree/agreement.h"
#include "check/door.h"

namespace perch_check {

// Thrown by a check.
struct Failed {
  std::string where;
  std::string got;
  std::string want;
};
// Reasons are an enumeration, so that they can be counted.
struct Skipped {
  enum class Reason {
    kNotPromised,    // the capability is not claimed for this config
    kNotOffered,     // an optional function of the ABI is absent
    kNotApplicable,  // the case has nothing that this check looks at
    kNotExact,       // no exact answer exists for this recipe
    kNoHeapWatch,    // a sanitizer owns the heap
    kUnsupported,    // the candidate refuses the case, with reasons
  };
  Reason reason = Reason::kNotApplicable;
  std::string text;
};
// The check ran and proved too little.
struct Untrusted {
  std::string text;
};
const char* skip_name(Skipped::Reason reason);  // "NOT_PROMISED"

// An instance with a prepared layer on it.
struct Setup {
  Setup(const perch_backend_api* api, const HostOptions& host) : instance(api, host) {}
  Instance instance;
  std::unique_ptr<Prepared> layer;
};

// What a check knows: the case, the candidate, and things that several checks make.
// What a backend must leave as it found it, as text by name: process_state.cc.
using ProcessState = std::map<std::string, std::string>;
ProcessState process_state();

class Context {
 public:
  // Throws std::runtime_error when the library cannot be opened or created.
  Context(const perch::Case& problem, std::string library, uint32_t variant);

  const perch::Case& problem() const { return problem_; }
  const perch::LayerConfig& config() const { return problem_.config; }
  const std::string& library() const { return library_; }
  const perch_backend_api* api() const { return api_; }
  uint32_t variant() const { return variant_; }
  const Answer& answer() const { return answer_; }
  bool promises(perch_caps caps) const { return answer_.promises(caps); }
  int64_t tokens() const { return problem_.t; }

  // Throws Failed when preparing fails.
  std::unique_ptr<Setup> setup(const HostOptions& host = {}, PrepareOptions prepare = {}) const;
  // One that is made once: one thread, tasks in order, plain memory, real data.
  const Prepared& layer();
  Instance& instance();

  // The rows 0 .. tokens()-1 under the case's own load, with slots that name no expert and experts
  // that are named twice where there is room for them.
  CallData own_call(Fill fill) const;
  CallData call(const std::vector<RowKey>& keys, const std::string& load,
                const std::vector<RowKey>& fixed = {}) const {
    return make_call(problem_, keys, Fill::kReal, load, fixed);
  }

  // Runs and throws Failed when the call is refused or memory is damaged.
  Output run(const Prepared& layer, const CallData& call, CallOptions options = {}) const;

  // What rows `picked` (indices into the call) should give.
  perch::Oracle oracle(const CallData& call, Fill fill, const std::vector<size_t>& picked,
                       PrepareOptions weights = {}) const;
  // Element and row tiers over at most 16 rows of the call; throws Failed. Returns the comparison.
  perch::Agreement expect_numbers(const CallData& call, const Output& output, Fill fill,
                                  const PrepareOptions& weights = {}) const;

  // The process before the library was opened.
  const ProcessState& state_before() const { return state_before_; }

  // Numbers that a report shows, by name: "worst_ratio".
  std::map<std::string, double>& figures() { return figures_; }

  // "row 3, column 5, experts 1 7" of a call.
  std::string name_element(const CallData& call, int64_t row, int64_t column) const;

  // Another candidate on the same case: what `perch diff` compares with. Null for the checks.
  void compare_with(std::unique_ptr<Context> other) { other_ = std::move(other); }
  Context* other() { return other_.get(); }
  // Who wants to know, before it happens, what may crash.
  void on_stage(std::function<void(const std::string&)> hear) { hear_stage_ = std::move(hear); }
  void begin_stage(const std::string& stage) const {
    if (hear_stage_) hear_stage_(stage);
  }

 private:
  perch::Case problem_;
  std::string library_;
  ProcessState state_before_ = process_state();
  const perch_backend_api* api_;
  uint32_t variant_;
  std::unique_ptr<Instance> asking_;
  Answer answer_;
  std::unique_ptr<Setup> setup_;
  std::map<std::string, double> figures_;
  std::unique_ptr<Context> other_;
  std::function<void(const std::string&)> hear_stage_;
};

struct Check {
  const char* name;
  perch_caps needs;  // skipped unless all of these are promised
  void (*run)(Context&);
  const char* about;  // for --help
};
std::span<const Check> all_checks();
const Check* find_check(const std::string& name);

// Each check, for the table.
void check_numbers(Context& context);
void check_exact(Context& context);
void check_accumulation(Context& context);
void check_nan_rows(Context& context);
void check_batch_invariance(Context& context);
void check_load_invariance(Context& context);
void check_determinism(Context& context);
void check_threads(Context& context);
void check_memory(Context& context);
void check_poison(Context& context);
void check_strided(Context& context);
void check_aliasing(Context& context);
void check_claims(Context& context);
void check_no_alloc(Context& context);
void check_host_threads(Context& context);
void check_concurrency(Context& context);
void check_sequences(Context& context);
void check_errors(Context& context);
void check_process_state(Context& context);
void check_update(Context& context);

// Throws Failed unless the rows hold the same bytes; `where` says which rows these are.
void expect_same_row(const Context& context, const std::string& where,
                     std::span<const std::byte> got, std::span<const std::byte> want);
// Every row of two outputs of the same call.
void expect_same_rows(const Context& context, const std::string& where, const Output& got,
                      const Output& want);

// At most `most` of 0 .. count-1, the first and the last among them, evenly spread.
std::vector<size_t> spread(size_t count, size_t most);

}  // namespace perch_check
