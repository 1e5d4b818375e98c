#include "agree/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "agree/oracle_moe.h"
#include "agree/sums.h"

namespace perch {
namespace {

Status evaluate_linear(const LayerConfig& config, const ReadTensors& read,
                       const std::vector<OracleRow>& rows, Oracle* oracle) {
  std::vector<NamedData> tensors;
  PERCH_RETURN_IF_ERROR(read(0, &tensors));
  WeightRows w(config, 0, tensors, true);
  std::vector<NumberRow> inputs;
  inputs.reserve(rows.size());
  for (const OracleRow& row : rows) {
    inputs.push_back(w.make_input(row.x));
  }
  WeightRow weights;
  for (int64_t n = 0; n < oracle->columns; ++n) {
    w.load(n, 0, &weights);
    for (size_t row = 0; row < rows.size(); ++row) {
      const size_t at = row * static_cast<size_t>(oracle->columns) + static_cast<size_t>(n);
      const Sum sum = multiply(weights, inputs[row]);
      oracle->value[at] = sum.value;
      oracle->s[at] = sum.absolute;
      oracle->exact[at] = sum.exact();
    }
  }
  return {};
}

// Rows that the config can have; nothing is read before.
Status check_rows(const LayerConfig& config, const std::vector<OracleRow>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<int64_t>(rows[i].x.size()) != config.columns(0)) {
      return invalid_argument(fmt::format("evaluate_rows: row {}: got {} values; want {}", i,
                                          rows[i].x.size(), config.columns(0)));
    }
    for (const OracleVisit& visit : rows[i].visits) {
      const int64_t experts = config.is_moe() ? int64_t{config.moe().num_experts} : 0;
      if (visit.expert >= 0 && visit.expert < experts) continue;
      return invalid_argument(fmt::format("evaluate_rows: row {}: got expert {}; want 0..{}", i,
                                          visit.expert, experts - 1));
    }
  }
  return {};
}

}  // namespace

double unit_roundoff(uint32_t type) {
  if (type == PERCH_TYPE_F32) return std::ldexp(1.0, -24);
  return type == PERCH_TYPE_F16 ? std::ldexp(1.0, -11) : std::ldexp(1.0, -8);
}

double smallest_normal(uint32_t type) {
  return std::ldexp(1.0, type == PERCH_TYPE_F16 ? -14 : -126);
}

Result<Oracle> evaluate_rows(const LayerConfig& config, const ReadTensors& read,
                             const std::vector<OracleRow>& rows) {
  PERCH_RETURN_IF_ERROR(check_rows(config, rows));
  Oracle oracle;
  oracle.rows = static_cast<int64_t>(rows.size());
  oracle.columns = config.is_moe() ? config.moe().hidden : config.linear().out_features;
  const auto size = static_cast<size_t>(oracle.rows * oracle.columns);
  oracle.value.resize(size);
  oracle.s.resize(size);
  oracle.mid.resize(size);
  oracle.flips.resize(size);
  oracle.exact.resize(size);
  const ReadTensors checked = [&](int64_t expert, std::vector<NamedData>* tensors) -> Status {
    PERCH_RETURN_IF_ERROR(read(expert, tensors));
    for (const TensorSpec& spec : tensor_specs(config)) {
      const bool found = std::any_of(
          tensors->begin(), tensors->end(),
          [&](const NamedData& tensor) { return tensor.name == spec.name && tensor.data; });
      if (found) continue;
      return invalid_argument(
          fmt::format("evaluate_rows: expert {}: '{}' is missing", expert, spec.name));
    }
    return {};
  };
  const Status status = config.is_moe() ? evaluate_moe(config, checked, rows, &oracle)
                                        : evaluate_linear(config, checked, rows, &oracle);
  if (!status.ok()) return status;
  return oracle;
}

}  // namespace perch
