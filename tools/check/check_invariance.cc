// Does a row's answer depend on who shares the batch? Compared by bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "check/check.h"
#include "numeric/decode.h"

namespace perch_check {
namespace {

// Sizes around the tiles and splits that kernels choose by.
constexpr int64_t kSizes[] = {1, 2, 3, 4, 7, 8, 16, 17, 63, 64, 65, 257};
constexpr RowKey kNeighbour = 1000;  // keys of rows that only keep others company

std::vector<int64_t> sizes_up_to(int64_t tokens) {
  std::set<int64_t> sizes = {tokens};
  for (const int64_t size : kSizes) {
    if (size < tokens) sizes.insert(size);
  }
  return {sizes.begin(), sizes.end()};
}

// `size` rows: neighbours, with the followed ones at the first, middle and last place. Smaller
// batches hold fewer of them: `turn` says which.
std::vector<RowKey> batch(const std::vector<RowKey>& followed, int64_t size, size_t turn) {
  std::vector<RowKey> keys;
  for (int64_t i = 0; i < size; ++i) keys.push_back(kNeighbour + i);
  const int64_t places[3] = {0, size - 1, size / 2};
  for (size_t p = 0; p < 3; ++p) {
    if (static_cast<int64_t>(p) >= size) break;
    keys[static_cast<size_t>(places[p])] = followed[(p + turn) % followed.size()];
  }
  // Followed by fewer than three rows, places repeat a row: a duplicate is company too.
  return keys;
}

class Follower {
 public:
  explicit Follower(Context& context) : context_(context) {
    for (RowKey key = 0; key < std::min<int64_t>(3, context.tokens()); ++key) {
      followed_.push_back(key);
      const CallData call = context.call({key}, context.problem().load, {key});
      const Output output = context.run(context.layer(), call);
      const auto row = output.row(0);
      alone_.emplace_back(row.begin(), row.end());
    }
  }

  const std::vector<RowKey>& rows() const { return followed_; }

  // Every followed row in the batch has the bytes it has alone.
  void expect_unmoved(const CallData& call, const std::string& what) {
    const Output output = context_.run(context_.layer(), call);
    for (size_t i = 0; i < call.keys.size(); ++i) {
      const auto found = std::find(followed_.begin(), followed_.end(), call.keys[i]);
      if (found == followed_.end()) continue;
      expect_same_row(context_,
                      fmt::format("row {} of a batch of {} ({}) against the same row alone", i,
                                  call.keys.size(), what),
                      output.row(i), alone_[static_cast<size_t>(found - followed_.begin())]);
    }
  }

 private:
  Context& context_;
  std::vector<RowKey> followed_;
  std::vector<std::vector<std::byte>> alone_;
};

// Loads under which kernels choose otherwise: many rows for one expert, none for another; among
// them all of the company for the expert of the row `key`, and none of it.
std::vector<std::string> loads_of(const Context& context, RowKey key) {
  if (!context.config().is_moe()) return {};
  const CallData call = context.call({key}, context.problem().load, {key});
  const int64_t own = call.ids.empty() ? call.expert[0] : call.ids[0];
  std::set<std::string> loads = {"zipf", "one:0", fmt::format("one:{}", own)};
  const uint32_t experts = context.config().moe().num_experts_global;
  if (experts > 1) {
    loads.insert(fmt::format("one:{}", experts - 1));
    loads.insert("empty:0");
    loads.insert(fmt::format("empty:{}", own));
  }
  return {loads.begin(), loads.end()};
}

void poison_neighbours(const Context& context, CallData* call) {
  const uint32_t type = context.config().abi().in_dtype;
  for (size_t i = 0; i < call->keys.size(); ++i) {
    if (call->keys[i] < kNeighbour) continue;
    for (int64_t k = 0; k < call->columns; ++k) {
      perch::numeric::store_float(type, k % 2 == 0 ? std::nanf("") : HUGE_VALF, call->x.data(),
                                  call->place[i] * call->columns + k);
    }
  }
}

}  // namespace

void check_batch_invariance(Context& context) {
  if (context.tokens() < 2) {
    throw Skipped{Skipped::Reason::kNotApplicable, "a batch of one row has no company"};
  }
  Follower follower(context);
  const std::string own = context.problem().load;
  for (const int64_t size : sizes_up_to(context.tokens())) {
    for (size_t turn = 0; turn < follower.rows().size(); ++turn) {
      // Every row at every place in small batches, each row at one place in large ones.
      if (size > 8 && turn > 0) break;
      const auto keys = batch(follower.rows(), size, turn);
      follower.expect_unmoved(context.call(keys, own, follower.rows()), "random company");
    }
  }
  const int64_t most = context.tokens();
  const auto keys = batch(follower.rows(), most, 1);
  for (const std::string& load : loads_of(context, follower.rows()[0])) {
    follower.expect_unmoved(context.call(keys, load, follower.rows()), "load " + load);
  }
  std::vector<RowKey> copies(static_cast<size_t>(most), follower.rows()[0]);
  follower.expect_unmoved(context.call(copies, own, follower.rows()), "copies of itself");
  std::vector<RowKey> reversed(keys.rbegin(), keys.rend());
  follower.expect_unmoved(context.call(reversed, own, follower.rows()), "in reverse order");
  CallData bad = context.call(keys, own, follower.rows());
  poison_neighbours(context, &bad);
  follower.expect_unmoved(bad, "company of NaN and infinity");
}

void check_load_invariance(Context& context) {
  if (!context.config().is_moe() || context.tokens() < 2) {
    throw Skipped{Skipped::Reason::kNotApplicable, "no expert is shared"};
  }
  // The batch's size and the rows' places stay; only where the neighbours go changes.
  const int64_t size = context.tokens();
  const std::vector<RowKey> followed = {0};
  std::vector<RowKey> keys = {0};
  while (static_cast<int64_t>(keys.size()) < size) {
    keys.push_back(kNeighbour + static_cast<RowKey>(keys.size()));
  }
  const Output want =
      context.run(context.layer(), context.call(keys, context.problem().load, followed));
  for (const std::string& load : loads_of(context, 0)) {
    const Output got = context.run(context.layer(), context.call(keys, load, followed));
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] != 0) continue;
      expect_same_row(context, fmt::format("row {} of {} under load {}", i, size, load), got.row(i),
                      want.row(i));
    }
  }
}

}  // namespace perch_check
