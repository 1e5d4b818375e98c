#include "run/activation_slope.h"

#include <algorithm>
#include <cmath>

namespace perch {
namespace {

// The largest slopes of silu and gelu: 1.0998 and 1.1290.
constexpr double kSiluSlope = 1.1;
constexpr double kGeluSlope = 1.13;

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double gelu(double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }
double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}
double relu2(double x) { return x > 0 ? x * x : 0.0; }

// f(g) * u with |f'| <= slope.
ActivationSlope product(double f, double slope, double u) {
  return {f * u, slope * std::fabs(u), std::fabs(f)};
}

}  // namespace

ActivationSlope activation_slope(const perch_moe_config& moe, double g, double u) {
  const bool limited = (moe.flags & PERCH_MOE_HAS_LIMIT) != 0;
  const double limit = limited ? double{moe.act_limit} : HUGE_VAL;
  const double alpha = (moe.flags & PERCH_MOE_HAS_ALPHA) != 0 ? double{moe.act_alpha} : 0.0;
  const double beta = (moe.flags & PERCH_MOE_HAS_BETA) != 0 ? double{moe.act_beta} : 0.0;
  const double clamped = std::clamp(u, -limit, limit);
  const double capped = std::min(g, limit);
  switch (moe.activation) {
    case PERCH_ACTIVATION_SILU:
      return product(silu(capped), kSiluSlope, clamped);
    case PERCH_ACTIVATION_GELU:
      return product(gelu(g), kGeluSlope, u);
    case PERCH_ACTIVATION_GELU_TANH:
      return product(gelu_tanh(g), kGeluSlope, u);
    case PERCH_ACTIVATION_SWIGLUOAI:
      return product(capped * sigmoid(alpha * capped), kSiluSlope, clamped + beta);
    case PERCH_ACTIVATION_SWIGLUSTEP:
      return product(std::min(silu(g), limit), kSiluSlope, clamped);
    case PERCH_ACTIVATION_RELU2:
      return product(relu2(g), 2.0 * std::fabs(g), u);
    case PERCH_ACTIVATION_SITU: {
      const double cap = alpha > 0 ? alpha * std::tanh(u / alpha) : u;
      const double f = beta * std::tanh(g / beta) * sigmoid(g);
      return product(f, 1.0 + 0.25 * std::min(std::fabs(g), beta), cap);
    }
    case PERCH_ACTIVATION_SILU_NO_MUL:
      return {silu(g), kSiluSlope, 0};
    case PERCH_ACTIVATION_GELU_NO_MUL:
      return {gelu(g), kGeluSlope, 0};
    case PERCH_ACTIVATION_GELU_TANH_NO_MUL:
      return {gelu_tanh(g), kGeluSlope, 0};
    case PERCH_ACTIVATION_RELU2_NO_MUL:
      return {relu2(g), 2.0 * std::fabs(g), 0};
    default:
      return {};
  }
}

}  // namespace perch
