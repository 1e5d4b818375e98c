#include "agree/activation_slope.h"

#include <cmath>

namespace perch {
namespace {

// The largest slopes of silu and gelu: 1.0998 and 1.1290.
constexpr double kSiluSlope = 1.1;
constexpr double kGeluSlope = 1.13;

// min and clamp that keep NaN.
double at_most(double x, double limit) { return x > limit ? limit : x; }
double clamped(double x, double limit) { return x < -limit ? -limit : at_most(x, limit); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}
double relu2(double x) { return x < 0 ? 0.0 : x * x; }
// Not Lipschitz: the slope at the far end of where the gate may be.
double relu2_slope(Uncertain x) { return 2.0 * std::fmax(x.value + x.error, 0.0); }

// f(g) * u with |f'| <= slope. Each slope counts what the other's error adds, so that two inputs
// that cancel to 0 leave no claim that their product is exact.
ActivationSlope product(double f, double slope, double gate_error, double u, double up_error) {
  return {f * u, slope * (std::fabs(u) + up_error), std::fabs(f) + slope * gate_error};
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
  const auto times_up = [&](double f, double slope, double factor) {
    return product(f, slope, gate.error, factor, up.error);
  };
  switch (moe.activation) {
    case PERCH_ACTIVATION_SILU:
      return times_up(silu(capped), kSiluSlope, clamped(u, limit));
    case PERCH_ACTIVATION_GELU:
      return times_up(gelu(g), kGeluSlope, u);
    case PERCH_ACTIVATION_GELU_TANH:
      return times_up(gelu_tanh(g), kGeluSlope, u);
    case PERCH_ACTIVATION_SWIGLUOAI:
      return times_up(capped * sigmoid(alpha * capped), kSiluSlope, clamped(u, limit) + beta);
    case PERCH_ACTIVATION_SWIGLUSTEP:
      return times_up(at_most(silu(g), limit), kSiluSlope, clamped(u, limit));
    case PERCH_ACTIVATION_RELU2:
      return times_up(relu2(g), relu2_slope(gate), u);
    case PERCH_ACTIVATION_SITU: {
      const double cap = alpha > 0 ? alpha * std::tanh(u / alpha) : u;
      const double f = beta * std::tanh(g / beta) * sigmoid(g);
      return times_up(f, 1.0 + 0.25 * std::fmin(std::fabs(g), beta), cap);
    }
    case PERCH_ACTIVATION_SILU_NO_MUL:
      return {silu(g), kSiluSlope, 0};
    case PERCH_ACTIVATION_GELU_NO_MUL:
      return {gelu(g), kGeluSlope, 0};
    case PERCH_ACTIVATION_GELU_TANH_NO_MUL:
      return {gelu_tanh(g), kGeluSlope, 0};
    case PERCH_ACTIVATION_RELU2_NO_MUL:
      return {relu2(g), relu2_slope(gate), 0};
    default:
      return {std::nan(""), 0, 0};
  }
}

}  // namespace perch
