// Are the numbers right?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "check/check.h"
#include "numeric/decode.h"

namespace perch_check {
namespace {

// A share of exact elements below which a pass on grid data proves too little.
constexpr double kExactShare = 0.25;

bool act_may_be_exact(const perch_act_quant& act) {
  return act.mode == PERCH_ACT_NONE || act.mode == PERCH_ACT_STATIC;
}

// Whether grid data can give exact results under this recipe at all. Inputs that are quantized by
// their own maximum hold values up to the largest code: squared or cubed, they leave f32.
bool may_be_exact(const perch::LayerConfig& config) {
  if (!config.is_moe()) return true;
  const uint32_t activation = config.moe().activation;
  const bool polynomial =
      activation == PERCH_ACTIVATION_RELU2 || activation == PERCH_ACTIVATION_RELU2_NO_MUL;
  return polynomial && act_may_be_exact(config.act_first()) &&
         act_may_be_exact(config.act_second());
}

void record(Context& context, const perch::Agreement& agreement) {
  double& ratio = context.figures()["worst_ratio"];
  ratio = std::max(ratio, agreement.worst_ratio);
  double& share = context.figures()["worst_row_share"];
  share = std::max(share, agreement.worst_row_share);
}

std::vector<size_t> all_rows(const CallData& call) {
  std::vector<size_t> rows = spread(call.keys.size(), 32);
  return rows;
}

void compare_on_grid(Context& context, Fill fill) {
  PrepareOptions weights;
  weights.fill = fill;
  const auto setup = context.setup({}, weights);
  const CallData call = context.own_call(fill);
  const Output output = context.run(*setup->layer, call);
  const std::vector<size_t> picked = all_rows(call);
  const perch::Oracle oracle = context.oracle(call, fill, picked, weights);
  const std::vector<double> all = output_values(context.config(), output);
  std::vector<double> got;
  for (const size_t i : picked) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i) * oracle.columns;
    got.insert(got.end(), begin, begin + oracle.columns);
  }
  const perch::ExactAgreement exact = perch::compare_exact(context.config(), oracle, got);
  if (!exact.ok) {
    throw Failed{fmt::format("row {}, column {} ({} of {} exact elements differ)",
                             picked[static_cast<size_t>(exact.row)], exact.column, exact.differing,
                             exact.compared),
                 fmt::format("{:.9g}", exact.got), fmt::format("{:.9g} exactly", exact.want)};
  }
  const auto elements = static_cast<double>(oracle.rows * oracle.columns);
  const double share = elements == 0 ? 1 : static_cast<double>(exact.compared) / elements;
  const bool zero = std::all_of(oracle.value.begin(), oracle.value.end(),
                                [](double value) { return value == 0; });
  context.figures()["exact_share"] = share;
  if (share == 0) {
    throw Skipped{Skipped::Reason::kNotExact, "no sum of this size is exact whatever its order"};
  }
  if (elements > 0 && (share < kExactShare || (zero && elements > 8))) {
    throw Untrusted{fmt::format("{:.0f} % of {} elements are exact{}", 100 * share, elements,
                                zero ? ", all of them 0" : "")};
  }
}

}  // namespace

void check_numbers(Context& context) {
  for (const Fill fill : {Fill::kReal, Fill::kSameSign}) {
    // f16 overflows where nothing cancels; its range is not what is asked here.
    if (fill == Fill::kSameSign && context.config().abi().out_dtype == PERCH_TYPE_F16) continue;
    PrepareOptions weights;
    weights.fill = fill;
    const auto setup = context.setup({}, weights);
    const CallData call = context.own_call(fill);
    const Output output = context.run(*setup->layer, call);
    record(context, context.expect_numbers(call, output, fill, weights));
  }
}

void check_exact(Context& context) {
  if (!may_be_exact(context.config())) {
    throw Skipped{Skipped::Reason::kNotExact, "no input gives exact results under this recipe"};
  }
  compare_on_grid(context, Fill::kExact);
}

void check_accumulation(Context& context) {
  const perch::LayerConfig& config = context.config();
  if (config.is_moe() || config.act_first().mode != PERCH_ACT_NONE ||
      config.abi().out_dtype != PERCH_TYPE_F32 || config.columns(0) < 4) {
    throw Skipped{Skipped::Reason::kNotApplicable,
                  "seen only where one sum is stored in f32: linear, f32 out, K of 4 and more"};
  }
  compare_on_grid(context, Fill::kAccumulate);
}

void check_nan_rows(Context& context) {
  if (context.tokens() < 1) throw Skipped{Skipped::Reason::kNotApplicable, "no rows"};
  const CallData plain = context.own_call(Fill::kReal);
  const uint32_t type = context.config().abi().in_dtype;
  const bool quantized = context.config().act_first().mode != PERCH_ACT_NONE;
  for (const float bad : {std::nanf(""), HUGE_VALF}) {
    // Without quantization infinity is IEEE's business; a NaN is the contract's in both.
    if (!quantized && std::isinf(bad)) continue;
    CallData call = plain;
    const int64_t at = (call.place[0] + 1) * call.columns - 1;
    perch::numeric::store_float(type, bad, call.x.data(), at);
    const Output output = context.run(context.layer(), call);
    context.expect_numbers(call, output, Fill::kReal);
    if (!context.promises(PERCH_CAP_BATCH_INVARIANT)) continue;
    const Output clean = context.run(context.layer(), plain);
    for (size_t i = 1; i < call.keys.size(); ++i) {
      expect_same_row(context, fmt::format("row {} beside a row with {}", i, bad), output.row(i),
                      clean.row(i));
    }
  }
}

}  // namespace perch_check
