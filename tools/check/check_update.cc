// Replacing one expert of a prepared layer.
#include <fmt/format.h>

#include <algorithm>

#include "check/check.h"

namespace perch_check {
namespace {

constexpr uint64_t kOther = 77;

int32_t number_of(const Context& context, int64_t expert) {
  return context.config().is_moe() ? static_cast<int32_t>(expert) : -1;
}

// All tensors but the last: what came before it must not have been taken.
std::vector<CaseTensor> bad_tensors(const Context& context, int64_t expert) {
  auto tensors =
      make_expert(context.config(), expert, context.problem().seed + kOther + 1, Fill::kReal);
  tensors.pop_back();
  return tensors;
}

}  // namespace

void check_update(Context& context) {
  const perch_backend_api* api = context.api();
  if (!PERCH_HAS_FIELD(api, perch_backend_api, update) || api->update == nullptr) {
    throw Skipped{Skipped::Reason::kNotOffered, "no in-place update"};
  }
  const int64_t experts = context.config().is_moe() ? context.config().moe().num_experts : 1;
  const CallData call = context.own_call(Fill::kReal);
  const bool promised = context.promises(PERCH_CAP_DETERMINISTIC);
  for (const int64_t expert : {int64_t{0}, experts - 1}) {
    PrepareOptions replaced;
    replaced.other_expert = expert;
    replaced.other_seed = context.problem().seed + kOther;
    const auto setup = context.setup();
    const std::set<const void*> addresses = setup->instance.host().addresses();
    const auto expect = [&](const std::string& what) {
      const Output got = context.run(*setup->layer, call);
      if (promised) {
        const Output want = context.run(*context.setup({}, replaced)->layer, call);
        expect_same_rows(context, what, got, want);
      } else {
        context.expect_numbers(call, got, Fill::kReal, replaced);
      }
    };
    LentTensors fresh(make_expert(context.config(), expert, replaced.other_seed, Fill::kReal),
                      Side::kTail);
    const Reply good = setup->layer->update(number_of(context, expert), fresh);
    if (good.status == PERCH_E_UNSUPPORTED) {
      throw Skipped{Skipped::Reason::kNotOffered, good.print()};
    }
    if (!good.ok()) throw Failed{fmt::format("update of expert {}", expert), good.print(), "OK"};
    if (!context.promises(PERCH_CAP_ZERO_COPY_WEIGHTS)) fresh.give_back();
    expect(fmt::format("expert {} replaced against prepared anew", expert));
    if (setup->instance.host().addresses() != addresses) {
      throw Failed{"the weights after an update", "at other addresses", "where they were"};
    }
    const LentTensors bad(bad_tensors(context, expert), Side::kTail);
    const Reply refused = setup->layer->update(number_of(context, expert), bad);
    if (refused.ok()) {
      throw Failed{fmt::format("update of expert {} with a tensor missing", expert), "PERCH_OK",
                   "a refusal that names it"};
    }
    expect("after a refused update");
  }
}

}  // namespace perch_check
