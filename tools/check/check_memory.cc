// Does a call touch what it may and nothing else, and is all of its answer its own?
#include <fmt/format.h>

#include <algorithm>

#include "check/check.h"

namespace perch_check {
namespace {

// Bytes that are NaN, zero, and a large finite number in every output type.
constexpr std::byte kPoisons[] = {std::byte{0xFF}, std::byte{0x00}, std::byte{0x7B}};

// The first row of y that belongs to no row of the call and is not as it was before.
void expect_unplaced_rows_untouched(const Output& output, std::byte poison) {
  const auto rows = static_cast<int64_t>(output.y.size()) / std::max<int64_t>(1, output.row_bytes);
  for (int64_t row = 0; row < rows; ++row) {
    if (std::find(output.place.begin(), output.place.end(), row) != output.place.end()) continue;
    const auto begin = output.y.begin() + row * output.row_bytes;
    const auto hit = std::find_if(begin, begin + output.row_bytes,
                                  [&](std::byte byte) { return byte != poison; });
    if (hit == begin + output.row_bytes) continue;
    throw Failed{fmt::format("row {} of y, which is beyond its expert's count", row),
                 fmt::format("byte {} was written", hit - begin), "untouched"};
  }
}

void expect_same_or_right(Context& context, const std::string& where, const CallData& call,
                          const Output& got, const Output& want) {
  if (context.promises(PERCH_CAP_DETERMINISTIC)) {
    expect_same_rows(context, where, got, want);
  } else {
    context.expect_numbers(call, got, Fill::kReal);
  }
}

}  // namespace

void check_memory(Context& context) {
  const CallData call = context.own_call(Fill::kReal);
  const Output want = context.run(context.layer(), call);
  for (const Side side : {Side::kTail, Side::kHead}) {
    HostOptions host;
    host.guarded = true;
    host.side = side;
    host.threads = 2;
    host.schedule = Schedule::kShuffled;
    PrepareOptions prepare;
    prepare.side = side;
    const auto setup = context.setup(host, prepare);
    CallOptions options;
    options.side = side;
    // Who may run on many threads at once keeps nothing of a call in the weights.
    options.read_only_weights = context.promises(PERCH_CAP_CONCURRENT_EXECUTE);
    const Output got = context.run(*setup->layer, call, options);
    expect_same_or_right(context, "between guard pages", call, got, want);
  }
}

void check_poison(Context& context) {
  const CallData call = context.own_call(Fill::kReal);
  const Output want = context.run(context.layer(), call);
  expect_unplaced_rows_untouched(want, CallOptions{}.poison);
  for (const std::byte poison : kPoisons) {
    CallOptions options;
    options.poison = poison;
    const Output got = context.run(context.layer(), call, options);
    expect_same_or_right(
        context, fmt::format("y and workspace filled with {:02x}", static_cast<unsigned>(poison)),
        call, got, want);
    expect_unplaced_rows_untouched(got, poison);
  }
  // The answer of another call, where this one's is expected.
  std::vector<std::byte> stale(want.y.rbegin(), want.y.rend());
  CallOptions options;
  options.stale = &stale;
  expect_same_or_right(context, "y filled with another call's answer", call,
                       context.run(context.layer(), call, options), want);
}

void check_strided(Context& context) {
  const CallData call = context.own_call(Fill::kReal);
  CallOptions dense, apart;
  apart.strided = true;
  const Output want = execute(context.layer(), call, dense);
  const Output got = context.run(context.layer(), call, apart);
  expect_same_or_right(context, "rows of x and y apart", call, got, want);
}

void check_aliasing(Context& context) {
  using Overlap = CallOptions::Overlap;
  const perch::LayerConfig& config = context.config();
  const bool square = config.columns(0) == config.rows(config.is_moe() ? 1 : 0) &&
                      config.abi().in_dtype == config.abi().out_dtype;
  std::vector<std::pair<Overlap, const char*>> tried;
  if (context.promises(PERCH_CAP_INPLACE) && square) {
    tried.emplace_back(Overlap::kInPlace, "y is x");
  }
  if (context.promises(PERCH_CAP_Y_MAY_ALIAS_WORKSPACE)) {
    tried.emplace_back(Overlap::kWorkspaceHead, "y at the workspace's begin");
    tried.emplace_back(Overlap::kWorkspaceTail, "y at the workspace's end");
  }
  if (tried.empty()) {
    throw Skipped{Skipped::Reason::kNotPromised, "no overlap is promised for this case"};
  }
  const CallData call = context.own_call(Fill::kReal);
  const Output want = context.run(context.layer(), call);
  for (const auto& [overlap, what] : tried) {
    CallOptions options;
    options.overlap = overlap;
    expect_same_or_right(context, what, call, context.run(context.layer(), call, options), want);
  }
}

}  // namespace perch_check
