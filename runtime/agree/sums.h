// The sums that the oracle takes over products, and what it carries along to know how far off a
// backend's may be.
#pragma once

#include <cmath>

#include "agree/weight_rows.h"

namespace perch {

// A sum of products, with what the bounds need of it.
struct Sum {
  double value = 0;
  double absolute = 0;  // of |w||x|
  double squares = 0;   // of (w x)^2
  int low = kZeroBit;   // the least lowest bit of a product

  bool exact() const { return std::isfinite(value) && is_exact_sum(low, absolute); }
};

// row * x + bias.
Sum multiply(const WeightRow& row, const NumberRow& x);

// c * u_f32 of contract §2: what f32 sums in any order may be off by, as a share of S.
double sum_error(const LayerConfig& config);

// How far errors of n independent roundings, each uniform within its bound and these of the given
// sum of squares, add up: a rounding's standard deviation is its bound over sqrt(3).
double walk(double squares);

// What is known of the distance between a number here and a backend's.
struct Errors {
  double s = 0;        // absolute products, carried through
  double linear = 0;   // the allowed roundings, added up
  double squares = 0;  // the squares of each
  double input = 0;    // what rounding x * w may add
  double tie = 0;      // codes of a quantized a that may be their neighbour
  double scale = 0;    // scales of a quantized a that may be another

  void add(double factor, const Errors& of) {
    const double absolute = std::fabs(factor);
    s += absolute * of.s;
    linear += absolute * of.linear;
    squares += factor * factor * of.squares;
    input += absolute * of.input;
    tie += absolute * of.tie;
    scale += absolute * of.scale;
  }
  void add_rounding(double size) {
    linear += size;
    squares += size * size;
  }
};

}  // namespace perch
