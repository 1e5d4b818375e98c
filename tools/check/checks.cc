// The list of checks. Each name is what mutants, reports and --check call it.
#include <algorithm>
#include <iterator>

#include "check/check.h"

namespace perch_check {
namespace {

constexpr Check kChecks[] = {
    {"claims", 0, check_claims, "yes runs, no refuses, unknown things are refused, bytes hold"},
    {"errors", 0, check_errors, "wrong tensors and wrong calls are refused by name; T = 0 is fine"},
    {"exact", 0, check_exact, "grid data: the correctly rounded result, to the last bit"},
    {"numbers", 0, check_numbers, "realistic data: every element and every row within the bound"},
    {"accumulation", PERCH_CAP_FP32_ACCUM, check_accumulation, "sums are kept in f32 or wider"},
    {"nan_rows", 0, check_nan_rows, "a row of NaN or infinity spoils itself alone"},
    {"batch_invariance", PERCH_CAP_BATCH_INVARIANT, check_batch_invariance,
     "a row's bytes in every batch, place, company, load and order"},
    {"load_invariance", PERCH_CAP_EXPERT_LOAD_INVARIANT, check_load_invariance,
     "a row's bytes however many rows share its experts"},
    {"determinism", PERCH_CAP_DETERMINISTIC, check_determinism,
     "the same bytes again, elsewhere, in another process, prepared anew"},
    {"threads", 0, check_threads, "any number of threads, tasks in any order"},
    {"memory", 0, check_memory, "guard pages on both sides of everything, read-only inputs"},
    {"poison", 0, check_poison, "every element is written, from nothing that lay there before"},
    {"strided", PERCH_CAP_ROW_STRIDED_ACT, check_strided, "rows of x and y that lie apart"},
    {"aliasing", 0, check_aliasing, "the overlaps that are promised"},
    {"no_alloc", PERCH_CAP_NO_ALLOC_EXECUTE, check_no_alloc, "execute takes no memory"},
    {"host_threads", PERCH_CAP_THREADS_FROM_HOST, check_host_threads, "no thread of its own"},
    {"concurrency", PERCH_CAP_CONCURRENT_EXECUTE, check_concurrency,
     "one layer in several calls at once, one call inside another"},
    {"sequences", 0, check_sequences, "many calls and two layers: nothing is remembered"},
    {"process_state", 0, check_process_state,
     "floating-point state, locale, signals and the rest stay as they were"},
    {"update", 0, check_update, "one expert replaced, or refused with the old one answering"},
};

}  // namespace

std::span<const Check> all_checks() { return kChecks; }

const Check* find_check(const std::string& name) {
  const auto found = std::find_if(std::begin(kChecks), std::end(kChecks),
                                  [&](const Check& check) { return check.name == name; });
  return found == std::end(kChecks) ? nullptr : &*found;
}

}  // namespace perch_check
