#include "agree/activation_slope.h"

#include <cmath>

namespace perch {
namespace {

// A function with its slope here, its largest slope, and its largest curvature.
struct Curve {
  double value;
  double slope;
  double steepest;
  double curvature;

  // The largest slope within `error`.
  double near(double error) const {
    return std::fmin(std::fabs(slope) + curvature * error, steepest);
  }
};

// min and clamp that keep NaN.
double at_most(double x, double limit) { return x > limit ? limit : x; }
double clamped(double x, double limit) { return x < -limit ? -limit : at_most(x, limit); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// x sigmoid(alpha x): silu where alpha is 1. With z = alpha x its slope is silu'(z), at most
// 1.0998; silu'' is at most 0.5.
Curve swish(double x, double alpha) {
  const double z = alpha * x;
  const double s = sigmoid(z);
  return {x * s, s + z * s * (1 - s), 1.1, 0.5 * std::fabs(alpha)};
}

// gelu' is at most 1.1290, gelu'' 2 / sqrt(2 pi) = 0.798.
Curve gelu(double x) {
  const double cumulative = 0.5 * std::erfc(-x / std::sqrt(2.0));
  const double density = std::exp(-0.5 * x * x) * 0.3989422804;
  return {x * cumulative, cumulative + x * density, 1.13, 0.8};
}

// Its slope differs from gelu's by less than 1e-3; the other two do not, in these digits.
Curve gelu_tanh(double x) {
  const double t = std::tanh(0.7978845608 * (x + 0.044715 * x * x * x));
  return {0.5 * x * (1.0 + t), std::fabs(gelu(x).slope) + 1e-3, 1.13, 0.8};
}

// Not Lipschitz: the steepest is at the far end of where the gate may be.
Curve relu2(Uncertain x) {
  const double positive = x.value < 0 ? 0.0 : x.value;
  return {positive * positive, 2.0 * positive, 2.0 * std::fmax(x.value + x.error, 0.0), 2.0};
}

// beta tanh(x / beta) sigmoid(x): beta tanh has slope 1, sigmoid 1/4.
Curve situ_gate(double x, double beta) {
  const double steepest = 1.0 + 0.25 * std::fmin(std::fabs(x), beta);
  return {beta * std::tanh(x / beta) * sigmoid(x), steepest, steepest, 0};
}

}  // namespace

ActivationSlope activation_slope(const perch_moe_config& moe, Uncertain gate, Uncertain up) {
  const bool limited = (moe.flags & PERCH_MOE_HAS_LIMIT) != 0;
  const double limit = limited ? double{moe.act_limit} : HUGE_VAL;
  const double alpha = (moe.flags & PERCH_MOE_HAS_ALPHA) != 0 ? double{moe.act_alpha} : 0.0;
  const double beta = (moe.flags & PERCH_MOE_HAS_BETA) != 0 ? double{moe.act_beta} : 0.0;
  const double g = gate.value;
  const double u = up.value;
  const double capped = at_most(g, limit);
  const auto alone = [&](const Curve& f) {
    return ActivationSlope{f.value, f.near(gate.error), f.steepest, 0};
  };
  // Each slope counts what the other's error adds, so that two inputs that cancel to 0 leave no
  // claim that their product is exact.
  const auto times = [&](const Curve& f, double factor) {
    const double largest = std::fabs(factor) + up.error;
    return ActivationSlope{f.value * factor, f.near(gate.error) * largest, f.steepest * largest,
                           std::fabs(f.value) + f.steepest * gate.error};
  };
  switch (moe.activation) {
    case PERCH_ACTIVATION_SILU:
      return times(swish(capped, 1), clamped(u, limit));
    case PERCH_ACTIVATION_GELU:
      return times(gelu(g), u);
    case PERCH_ACTIVATION_GELU_TANH:
      return times(gelu_tanh(g), u);
    case PERCH_ACTIVATION_SWIGLUOAI:
      return times(swish(capped, alpha), clamped(u, limit) + beta);
    case PERCH_ACTIVATION_SWIGLUSTEP: {
      Curve stepped = swish(g, 1);
      stepped.value = at_most(stepped.value, limit);
      return times(stepped, clamped(u, limit));
    }
    case PERCH_ACTIVATION_RELU2:
      return times(relu2(gate), u);
    case PERCH_ACTIVATION_SITU:
      return times(situ_gate(g, beta), alpha > 0 ? alpha * std::tanh(u / alpha) : u);
    case PERCH_ACTIVATION_SILU_NO_MUL:
      return alone(swish(g, 1));
    case PERCH_ACTIVATION_GELU_NO_MUL:
      return alone(gelu(g));
    case PERCH_ACTIVATION_GELU_TANH_NO_MUL:
      return alone(gelu_tanh(g));
    case PERCH_ACTIVATION_RELU2_NO_MUL:
      return alone(relu2(gate));
    default:
      return {std::nan(""), 0, 0, 0};
  }
}

}  // namespace perch
