#include "agree/agreement.h"

#include <algorithm>
#include <cmath>

#include "agree/sums.h"
#include "base/check.h"

namespace perch {
namespace {

// From here on a number rounds to infinity.
double overflow_threshold(uint32_t type) {
  if (type == PERCH_TYPE_F16) return 65520.0;
  return std::ldexp(2.0 - unit_roundoff(type), 127);
}

// Whether `x` may stand where the exact value is `exact`: both NaN, the same infinity, both finite,
// or an infinity where rounding may have overflowed.
bool may_stand_for(double x, double exact, double allowed, uint32_t type) {
  if (std::isnan(x) || std::isnan(exact)) return std::isnan(x) && std::isnan(exact);
  if (std::isinf(x) && std::isfinite(exact)) {
    return std::copysign(1.0, x) * exact + allowed >= overflow_threshold(type);
  }
  return std::isinf(x) ? x == exact : std::isfinite(exact);
}

// |got - want| / allowed.
double ratio_of(double got, double want, double allowed) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0;
  if (!std::isfinite(got) || !std::isfinite(want)) {
    return std::isnan(got) || std::isnan(want) ? HUGE_VAL : 0;  // an overflow that may be
  }
  const double ratio = std::fabs(got - want) / allowed;
  return std::isnan(ratio) ? HUGE_VAL : ratio;
}

// Of the elements of one row that are numbers.
struct RowNorms {
  double difference = 0, want = 0, allowed = 0;

  void add(double got, double reference, double may_differ) {
    if (!std::isfinite(got) || !std::isfinite(reference) || !std::isfinite(may_differ)) return;
    difference += (got - reference) * (got - reference);
    want += reference * reference;
    allowed += may_differ * may_differ;
  }
};

double root_of_quotient(double a, double b) { return a == 0 ? 0.0 : std::sqrt(a / b); }

}  // namespace

const Tolerance& tolerance() {
#define PERCH_TOLERANCE(name, value) .name = (value),
  static constexpr Tolerance kTolerance = {
#include "agree/tolerance.inc"
  };
#undef PERCH_TOLERANCE
  return kTolerance;
}

Agreement compare_rows(const LayerConfig& config, uint32_t support_flags, const Oracle& oracle,
                       std::span<const double> got, std::span<const double> want, int makers) {
  PERCH_CHECK(got.size() == oracle.value.size());
  PERCH_CHECK(want.size() == oracle.value.size());
  const uint32_t out_type = config.abi().out_dtype;
  const bool rounds = (support_flags & PERCH_SUPPORT_ROUNDS_WEIGHTS) != 0;
  const double per_s = sum_error(config) + (rounds ? unit_roundoff(config.abi().in_dtype) : 0.0);
  Agreement agreement;
  bool first = true;
  for (int64_t row = 0; row < oracle.rows; ++row) {
    RowNorms norms;
    for (int64_t column = 0; column < oracle.columns; ++column) {
      const auto at = static_cast<size_t>(row * oracle.columns + column);
      const double exact = oracle.value[at];
      const double size = std::fabs(std::isfinite(want[at]) ? want[at] : exact);
      const double magnitude = std::max(size, smallest_normal(out_type));
      const double allowed = double(makers) * tolerance().margin *
                             (unit_roundoff(out_type) * magnitude + oracle.mid[at] +
                              per_s * oracle.s[at] + oracle.flips[at]);
      norms.add(got[at], want[at], allowed);
      const bool alike = may_stand_for(got[at], exact, allowed, out_type) &&
                         may_stand_for(want[at], exact, allowed, out_type);
      const double ratio = alike ? ratio_of(got[at], want[at], allowed) : HUGE_VAL;
      if (!first && !(ratio > agreement.worst_ratio)) continue;
      first = false;
      agreement.worst_ratio = ratio;
      agreement.row = row;
      agreement.column = column;
      agreement.got = got[at];
      agreement.want = want[at];
      agreement.allowed = allowed;
    }
    const double l2 = norms.want == 0 ? 0.0 : root_of_quotient(norms.difference, norms.want);
    const double share = root_of_quotient(norms.difference, norms.allowed) / tolerance().row_share;
    agreement.worst_row_l2 = std::max(agreement.worst_row_l2, l2);
    agreement.worst_row_share = std::max(agreement.worst_row_share, share);
  }
  agreement.ok = agreement.worst_ratio <= 1.0 && agreement.worst_row_share <= 1.0;
  return agreement;
}

ExactAgreement compare_exact(const LayerConfig& config, const Oracle& oracle,
                             std::span<const double> got) {
  PERCH_CHECK(got.size() == oracle.value.size());
  ExactAgreement agreement;
  for (size_t at = 0; at < got.size(); ++at) {
    if (!oracle.exact[at]) continue;
    ++agreement.compared;
    // Where the sum is exact, f32 holds it.
    const double want =
        double{round_once(config.abi().out_dtype, static_cast<float>(oracle.value[at]))};
    if (got[at] == want) continue;
    if (agreement.differing++ > 0) continue;
    agreement.ok = false;
    agreement.row = static_cast<int64_t>(at) / oracle.columns;
    agreement.column = static_cast<int64_t>(at) % oracle.columns;
    agreement.got = got[at];
    agreement.want = want;
  }
  return agreement;
}

}  // namespace perch
