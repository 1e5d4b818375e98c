// Each line is one line of the table in layer.h.
#include "activations.h"

#include <cmath>
#include <limits>

namespace reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

float silu(float x) {
  const double wide = x;
  return static_cast<float>(wide / (1 + std::exp(-wide)));
}

float gelu(float x) {
  const double wide = x;
  return static_cast<float>(0.5 * wide * (1 + std::erf(wide / std::sqrt(2.0))));
}

float gelu_tanh(float x) {
  const double wide = x;
  const double inner = 0.7978845608 * (wide + 0.044715 * wide * wide * wide);
  return static_cast<float>(0.5 * wide * (1 + std::tanh(inner)));
}

float relu2(float x) {
  const float positive = x < 0 ? 0.0f : x;
  return positive * positive;
}

// min and clamp that keep NaN.
float at_most(float x, float limit) { return x > limit ? limit : x; }
float clamped(float x, float limit) { return x < -limit ? -limit : at_most(x, limit); }

float swiglu_oai(const perch_moe_config& moe, float gate, float up) {
  const double g = at_most(gate, moe.act_limit);
  const float gated = static_cast<float>(g * sigmoid(static_cast<double>(moe.act_alpha) * g));
  return gated * (clamped(up, moe.act_limit) + moe.act_beta);
}

float situ(const perch_moe_config& moe, float gate, float up) {
  const double g = gate;
  const double beta = moe.act_beta;
  const float gated = static_cast<float>(beta * std::tanh(g / beta) * sigmoid(g));
  const double alpha = (moe.flags & PERCH_MOE_HAS_ALPHA) ? moe.act_alpha : 0.0f;
  if (!(alpha > 0)) return gated * up;
  const double u = up;
  return gated * static_cast<float>(alpha * std::tanh(u / alpha));
}

}  // namespace

float activate(const perch_moe_config& moe, float gate, float up) {
  switch (moe.activation) {
    case PERCH_ACTIVATION_SILU:
      if (!(moe.flags & PERCH_MOE_HAS_LIMIT)) return silu(gate) * up;
      return silu(at_most(gate, moe.act_limit)) * clamped(up, moe.act_limit);
    case PERCH_ACTIVATION_GELU:
      return gelu(gate) * up;
    case PERCH_ACTIVATION_GELU_TANH:
      return gelu_tanh(gate) * up;
    case PERCH_ACTIVATION_SWIGLUOAI:
      return swiglu_oai(moe, gate, up);
    case PERCH_ACTIVATION_SWIGLUSTEP:
      return at_most(silu(gate), moe.act_limit) * clamped(up, moe.act_limit);
    case PERCH_ACTIVATION_RELU2:
      return relu2(gate) * up;
    case PERCH_ACTIVATION_SITU:
      return situ(moe, gate, up);
    case PERCH_ACTIVATION_SILU_NO_MUL:
      return silu(gate);
    case PERCH_ACTIVATION_GELU_NO_MUL:
      return gelu(gate);
    case PERCH_ACTIVATION_GELU_TANH_NO_MUL:
      return gelu_tanh(gate);
    case PERCH_ACTIVATION_RELU2_NO_MUL:
      return relu2(gate);
    default:  // query_support says no to any other
      return std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace reference
