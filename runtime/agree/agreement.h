// Does an output agree with what it should be? Element by element and row by row, never on average.
#pragma once

#include <span>

#include "agree/oracle.h"

namespace perch {

// The constants of contract §2, from tolerance.inc. Loosening one needs a row in
// tests/cases/ledger.
struct Tolerance {
  double margin;        // m
  double accumulation;  // c = accumulation * sqrt(K) + constant
  double constant;
  double mid_sigma;  // the allowed roundings add at most this many standard deviations
  double row_share;  // a row's error, as a share of the L2 norm of what its elements are allowed
};
const Tolerance& tolerance();

struct Agreement {
  bool ok = true;
  double worst_ratio = 0;  // |got - want| / allowed; infinite where one of them is no number
  int64_t row = 0;         // of the worst
  int64_t column = 0;
  double got = 0;
  double want = 0;
  double allowed = 0;
  double worst_row_l2 = 0;     // |got - want| / |want| of a row
  double worst_row_share = 0;  // |got - want| / |allowed| of a row, over row_share
};

// got, want: [rows, columns] of `oracle` as f64. `support_flags`: PERCH_SUPPORT_* of the candidate
// that made `got`. `makers`: 1 where `want` is as good as exact, 2 where it was made by a backend
// that is allowed the same error.
Agreement compare_rows(const LayerConfig& config, uint32_t support_flags, const Oracle& oracle,
                       std::span<const double> got, std::span<const double> want, int makers = 1);

// Elements of `got` that are not `oracle.value` rounded once to out_dtype, among those that are
// `exact`. ok: none differs. worst_ratio counts units in the last place.
struct ExactAgreement {
  bool ok = true;
  int64_t compared = 0;  // exact elements
  int64_t differing = 0;
  int64_t row = 0;  // of the first that differs
  int64_t column = 0;
  double got = 0;
  double want = 0;
};
ExactAgreement compare_exact(const LayerConfig& config, const Oracle& oracle,
                             std::span<const double> got);

}  // namespace perch
