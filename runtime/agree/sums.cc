#include "agree/sums.h"

#include <algorithm>
#include <array>

#include "agree/agreement.h"

namespace perch {

// Four sums side by side: the order does not matter here and the compiler may not change it.
Sum multiply(const WeightRow& row, const NumberRow& x) {
  constexpr size_t kLanes = 4;
  std::array<double, kLanes> value{}, absolute{}, squares{};
  const double* w = row.numbers.values.data();
  const double* values = x.values.data();
  const size_t count = x.values.size();
  size_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double product = w[k + lane] * values[k + lane];
      value[lane] += product;
      absolute[lane] += std::fabs(product);
      squares[lane] += product * product;
    }
  }
  Sum sum{row.bias, std::fabs(row.bias), 0, kZeroBit};
  for (; k < count; ++k) {
    const double product = w[k] * values[k];
    sum.value += product;
    sum.absolute += std::fabs(product);
    sum.squares += product * product;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sum.value += value[lane];
    sum.absolute += absolute[lane];
    sum.squares += squares[lane];
  }
  if (row.numbers.low.empty()) return sum;
  sum.low = lowest_bit(row.bias);
  for (size_t i = 0; i < count; ++i) {
    sum.low = std::min(sum.low, row.numbers.low[i] + x.low[i]);
  }
  return sum;
}

double sum_error(const LayerConfig& config) {
  const int64_t k =
      config.is_moe() ? std::max(config.columns(0), config.columns(1)) : config.columns(0);
  const double c = tolerance().accumulation * std::sqrt(double(k)) + tolerance().constant;
  return c * unit_roundoff(PERCH_TYPE_F32);
}

double walk(double squares) { return tolerance().mid_sigma * std::sqrt(squares / 3); }

}  // namespace perch
