#include "bench/limits/floor.h"

#include <algorithm>

namespace perch_bench {

Floor floor_of(const Work& work, const Limits& limits) {
  const double read_ms = work.bytes / limits.read_gbps / 1e6;
  const double dot_ms = work.operations / limits.peak_gflops / 1e6;
  return {std::max(read_ms, dot_ms), read_ms >= dot_ms};
}

Standing judge(double share, std::optional<double> required) {
  if (share > kShareMax) return Standing::kVoid;
  return required && share < *required ? Standing::kShort : Standing::kFine;
}

DotClass dot_class_of(const perch_layer_config& config) {
  const perch_act_quant* act =
      config.kind == PERCH_KIND_MOE ? config.moe->act13 : config.linear->act;
  if (act != nullptr && act->dtype == PERCH_TYPE_INT8) return DotClass::kInt8;
  return config.in_dtype == PERCH_TYPE_BF16 ? DotClass::kBf16 : DotClass::kF32;
}

double operations_per_visit(const perch_layer_config& config) {
  if (config.kind != PERCH_KIND_MOE) {
    return 2.0 * static_cast<double>(config.linear->out_features) *
           static_cast<double>(config.linear->in_features);
  }
  const perch_moe_config& moe = *config.moe;
  const int64_t rows = perch_gate_up_width(moe.activation, moe.intermediate) + moe.intermediate;
  return 2.0 * static_cast<double>(rows) * static_cast<double>(moe.hidden);
}

}  // namespace perch_bench
