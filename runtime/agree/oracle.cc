#include "agree/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "agree/activation_slope.h"
#include "agree/agreement.h"
#include "agree/weight_rows.h"

namespace perch {
namespace {

// A sum of products, with what the bounds need of it.
struct Sum {
  double value = 0;
  double absolute = 0;  // of |w||x|
  double squares = 0;   // of (w x)^2
  int low = kZeroBit;   // the least lowest bit of a product

  bool exact() const { return std::isfinite(value) && is_exact_sum(low, absolute); }
};

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

// How far errors of n independent roundings, each uniform within its bound and these of the given
// sum of squares, add up: a rounding's standard deviation is its bound over sqrt(3).
double walk(double squares) { return tolerance().mid_sigma * std::sqrt(squares / 3); }

// What is known of the distance between a number here and a backend's.
struct Errors {
  double s = 0;        // absolute products, carried through
  double linear = 0;   // the allowed roundings, added up
  double squares = 0;  // the squares of each
  double input = 0;    // what rounding x * w may add

  void add(double factor, const Errors& of) {
    const double absolute = std::fabs(factor);
    s += absolute * of.s;
    linear += absolute * of.linear;
    squares += factor * factor * of.squares;
    input += absolute * of.input;
  }
  void add_rounding(double size) {
    linear += size;
    squares += size * size;
  }
};

// One element of y on its way: the sum over slots.
struct Cell {
  double value = 0;
  Errors errors;
  double flips = 0;
  double absolute = 0;  // of |weight * y_e|
  int low = kZeroBit;   // of weight * y_e
};

// One (row, slot) on its expert.
struct Visit {
  size_t row = 0;
  double weight = 1;  // of the output
  bool on_input = false;
  NumberRow x;
  NumberRow a;  // as w2 reads it
  std::vector<Errors> errors;
  double step = 0;  // between neighbouring codes of a quantized a
};

class MoeOracle {
 public:
  MoeOracle(const LayerConfig& config, size_t rows)
      : config_(config),
        moe_(config.moe()),
        gated_(perch_activation_is_gated(moe_.activation) != 0),
        quantized_(config.act_second().mode != PERCH_ACT_NONE),
        cells_(rows * static_cast<size_t>(moe_.hidden)) {
    const uint32_t out_dtype = config.abi().out_dtype;
    const double k = double(std::max(config.columns(0), config.columns(1)));
    per_s_ = (tolerance().accumulation * std::sqrt(k) + tolerance().constant) *
             unit_roundoff(PERCH_TYPE_F32);
    if (!quantized_) {
      // f16 is too narrow for h and y_e: of the three only a may be rounded to it.
      if (out_dtype == PERCH_TYPE_BF16) mid_dtype_ = a_dtype_ = PERCH_TYPE_BF16;
      if (out_dtype == PERCH_TYPE_F16) a_dtype_ = PERCH_TYPE_F16;
    }
    u_mid_ = mid_dtype_ == PERCH_TYPE_F32 ? 0.0 : unit_roundoff(mid_dtype_);
    u_a_ = a_dtype_ == PERCH_TYPE_F32 ? 0.0 : unit_roundoff(a_dtype_);
    u_x_ = unit_roundoff(config.abi().in_dtype);
    // A dynamic scale is a division of numbers that f32 sums made.
    const bool dynamic = quantized_ && config.act_second().mode != PERCH_ACT_STATIC;
    may_be_exact_ = is_exact_activation(moe_.activation) && !dynamic;
  }

  Status add_expert(int64_t expert, const std::vector<NamedData>& tensors,
                    const std::vector<OracleRow>& rows) {
    WeightRows w13(config_, 0, tensors, may_be_exact_);
    WeightRows w2(config_, 1, tensors, may_be_exact_);
    std::vector<Visit> visits;
    for (size_t row = 0; row < rows.size(); ++row) {
      for (const OracleVisit& visit : rows[row].visits) {
        if (visit.expert == expert) visits.push_back(begin_visit(row, rows[row], visit, w13));
      }
    }
    first_gemm(&w13, &visits);
    for (Visit& visit : visits) finish_hidden(w2, &visit);
    second_gemm(&w2, visits);
    return {};
  }

  void store(Oracle* oracle) const {
    for (size_t at = 0; at < cells_.size(); ++at) {
      const Cell& cell = cells_[at];
      oracle->value[at] = cell.value;
      oracle->s[at] = cell.errors.s;
      oracle->mid[at] = std::min(cell.errors.linear, walk(cell.errors.squares)) + cell.errors.input;
      oracle->flips[at] = cell.flips;
      oracle->exact[at] = std::isfinite(cell.value) && is_exact_sum(cell.low, cell.absolute);
    }
  }

 private:
  Visit begin_visit(size_t row, const OracleRow& input, const OracleVisit& to,
                    const WeightRows& w13) const {
    Visit visit;
    visit.row = row;
    visit.weight = double{to.weight};
    std::vector<float> x = input.x;
    if ((moe_.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) != 0) {
      visit.weight = 1;
      visit.on_input = to.weight != 1;
      for (float& value : x) value = round_once(config_.abi().in_dtype, value * to.weight);
    }
    double step = 0;
    visit.x = w13.make_input(std::move(x), config_.abi().in_dtype, &step);
    visit.a.values.resize(static_cast<size_t>(moe_.intermediate));
    visit.a.low.resize(may_be_exact_ ? visit.a.values.size() : 0);
    visit.errors.resize(visit.a.values.size());
    return visit;
  }

  void first_gemm(WeightRows* w13, std::vector<Visit>* visits) const {
    WeightRow gate_row, up_row;
    for (int64_t i = 0; i < moe_.intermediate; ++i) {
      w13->load(i, 0, &gate_row);
      if (gated_) w13->load(i + moe_.intermediate, 1, &up_row);
      for (Visit& visit : *visits) {
        const Sum gate = multiply(gate_row, visit.x);
        activate(gate, gated_ ? multiply(up_row, visit.x) : Sum{}, static_cast<size_t>(i), &visit);
      }
    }
  }

  void activate(const Sum& gate, const Sum& up, size_t i, Visit* visit) const {
    const auto input_error = [&](const Sum& h) {
      return visit->on_input ? u_x_ * std::min(h.absolute, walk(h.squares)) : 0.0;
    };
    const auto error = [&](const Sum& h) {
      return per_s_ * h.absolute + u_mid_ * std::fabs(h.value) + input_error(h);
    };
    const ActivationSlope a =
        activation_slope(moe_, {gate.value, error(gate)}, {up.value, error(up)});
    Errors& errors = visit->errors[i];
    errors.s = a.by_gate * gate.absolute + a.by_up * up.absolute + std::fabs(a.value);
    errors.add_rounding(u_mid_ * a.by_gate * std::fabs(gate.value));
    errors.add_rounding(u_mid_ * a.by_up * std::fabs(up.value));
    errors.add_rounding(u_a_ * std::fabs(a.value));
    errors.input = a.by_gate * input_error(gate) + a.by_up * input_error(up);
    // relu2 makes 0 of -infinity: there is nothing to be off by.
    if (!std::isfinite(errors.s)) errors = {std::fabs(a.value), 0, 0, 0};
    visit->a.values[i] = a.value;
    if (!may_be_exact_) return;
    const bool exact = gate.exact() && up.exact() && holds(mid_dtype_, gate.value) &&
                       holds(mid_dtype_, up.value) && holds(a_dtype_, a.value);
    visit->a.low[i] = exact ? lowest_bit(a.value) : kRoundedBit;
  }

  // From a to what the second GEMM reads.
  void finish_hidden(const WeightRows& w2, Visit* visit) const {
    const float* pre_scale = w2.pre_scale();
    const std::vector<LowBit> low = visit->a.low;
    if (quantized_) {
      const std::vector<float> a(visit->a.values.begin(), visit->a.values.end());
      visit->a = w2.make_input(a, PERCH_TYPE_F32, &visit->step);
    } else if (pre_scale != nullptr) {
      for (size_t i = 0; i < low.size(); ++i) {
        visit->a.low[i] = holds(a_dtype_, visit->a.values[i] * double{pre_scale[i]})
                              ? lowest_bit(visit->a.values[i] * double{pre_scale[i]})
                              : kRoundedBit;
      }
      for (size_t i = 0; i < visit->a.values.size(); ++i) {
        visit->a.values[i] *= double{pre_scale[i]};
      }
    }
    for (size_t i = 0; i < low.size(); ++i) {
      if (low[i] == kRoundedBit) visit->a.low[i] = kRoundedBit;
    }
    if (pre_scale == nullptr) return;
    for (size_t i = 0; i < visit->errors.size(); ++i) {
      Errors scaled;
      scaled.add(double{pre_scale[i]}, visit->errors[i]);
      visit->errors[i] = scaled;
    }
  }

  void second_gemm(WeightRows* w2, const std::vector<Visit>& visits) {
    const double flips = std::ceil(double(moe_.intermediate) / 1000) + 2;
    WeightRow row;
    for (int64_t h = 0; h < moe_.hidden; ++h) {
      w2->load(h, 0, &row);
      const std::vector<double>& w = row.numbers.values;
      double largest = 0;
      for (const double weight : w) largest = std::max(largest, std::fabs(weight));
      for (const Visit& visit : visits) {
        Errors errors{std::fabs(row.bias), 0, 0, 0};
        for (size_t i = 0; i < w.size(); ++i) errors.add(w[i], visit.errors[i]);
        const Sum y = multiply(row, visit.a);
        errors.add_rounding(u_mid_ * std::fabs(y.value));
        Cell& cell = cells_[visit.row * static_cast<size_t>(moe_.hidden) + static_cast<size_t>(h)];
        cell.value += visit.weight * y.value;
        cell.errors.add(visit.weight, errors);
        cell.flips += std::fabs(visit.weight) * flips * largest * visit.step;
        cell.absolute += std::fabs(visit.weight * y.value);
        const bool exact = may_be_exact_ && y.exact() && holds(mid_dtype_, y.value);
        const int low = exact ? lowest_bit(y.value) : kRoundedBit;
        cell.low = std::min(cell.low, lowest_bit(visit.weight) + low);
      }
    }
  }

  const LayerConfig& config_;
  const perch_moe_config& moe_;
  const bool gated_;
  const bool quantized_;
  bool may_be_exact_ = false;
  uint32_t mid_dtype_ = PERCH_TYPE_F32;  // what h and y_e may be rounded to
  uint32_t a_dtype_ = PERCH_TYPE_F32;
  double per_s_ = 0, u_mid_ = 0, u_a_ = 0, u_x_ = 0;
  std::vector<Cell> cells_;
};

Status evaluate_moe(const LayerConfig& config, const ReadTensors& read,
                    const std::vector<OracleRow>& rows, Oracle* oracle) {
  std::vector<bool> visited(config.moe().num_experts, false);
  for (const OracleRow& row : rows) {
    for (const OracleVisit& visit : row.visits)
      visited.at(static_cast<size_t>(visit.expert)) = true;
  }
  MoeOracle moe(config, rows.size());
  for (size_t expert = 0; expert < visited.size(); ++expert) {
    if (!visited[expert]) continue;
    std::vector<NamedData> tensors;
    PERCH_RETURN_IF_ERROR(read(static_cast<int64_t>(expert), &tensors));
    PERCH_RETURN_IF_ERROR(moe.add_expert(static_cast<int64_t>(expert), tensors, rows));
  }
  moe.store(oracle);
  return {};
}

Status evaluate_linear(const LayerConfig& config, const ReadTensors& read,
                       const std::vector<OracleRow>& rows, Oracle* oracle) {
  std::vector<NamedData> tensors;
  PERCH_RETURN_IF_ERROR(read(0, &tensors));
  WeightRows w(config, 0, tensors, true);
  std::vector<NumberRow> inputs;
  for (const OracleRow& row : rows) {
    double step = 0;
    inputs.push_back(w.make_input(row.x, config.abi().in_dtype, &step));
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
