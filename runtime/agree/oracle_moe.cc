#include "agree/oracle_moe.h"

#include <algorithm>
#include <cmath>

#include "agree/activation_slope.h"
#include "agree/agreement.h"
#include "agree/quantize_input.h"
#include "agree/sums.h"

namespace perch {
namespace {

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
    per_s_ = sum_error(config);
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

  void add_expert(int64_t expert, const std::vector<NamedData>& tensors,
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
    visit.x = w13.make_input(std::move(x));
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
    errors.add_rounding(u_mid_ * a.near_gate * std::fabs(gate.value));
    errors.add_rounding(u_mid_ * a.by_up * std::fabs(up.value));
    errors.add_rounding(u_a_ * std::fabs(a.value));
    errors.input = a.near_gate * input_error(gate) + a.by_up * input_error(up);
    // relu2 makes 0 of -infinity: there is nothing to be off by.
    if (!std::isfinite(errors.s)) {
      errors = Errors();
      errors.s = std::fabs(a.value);
    }
    visit->a.values[i] = a.value;
    if (!may_be_exact_) return;
    const bool exact = gate.exact() && up.exact() && holds(mid_dtype_, gate.value) &&
                       holds(mid_dtype_, up.value) && holds(a_dtype_, a.value);
    visit->a.low[i] = exact ? lowest_bit(a.value) : kRoundedBit;
  }

  // From a to what the second GEMM reads.
  void finish_hidden(const WeightRows& w2, Visit* visit) const {
    if (quantized_) return quantize_hidden(w2, visit);
    for (size_t i = 0; i < visit->errors.size(); ++i) {
      const double factor = w2.pre_scale(i);
      if (factor == 1) continue;
      double& a = visit->a.values[i];
      a *= factor;
      Errors scaled;
      scaled.add(factor, visit->errors[i]);
      visit->errors[i] = scaled;
      if (!may_be_exact_ || visit->a.low[i] == kRoundedBit) continue;
      visit->a.low[i] = holds(a_dtype_, a) ? lowest_bit(a) : kRoundedBit;
    }
  }

  // h and a are f32, so errors are those of f32 sums alone. They end here: as codes, numbers are
  // the same or those of a neighbour.
  void quantize_hidden(const WeightRows& w2, Visit* visit) const {
    std::vector<float> a;
    std::vector<double> off_by;
    for (size_t i = 0; i < visit->errors.size(); ++i) {
      const double factor = w2.pre_scale(i);
      const Errors& errors = visit->errors[i];
      a.push_back(static_cast<float>(visit->a.values[i]) * static_cast<float>(factor));
      off_by.push_back(tolerance().margin * std::fabs(factor) * (per_s_ * errors.s + errors.input));
    }
    std::vector<QuantizedError> quantized(a.size());
    quantize_input(config_.act_second(), w2.input_scale(), a, visit->a.values.data());
    quantized_errors(config_.act_second(), w2.input_scale(), a, off_by, quantized.data(),
                     &visit->step);
    for (size_t i = 0; i < a.size(); ++i) {
      visit->errors[i] = Errors();
      visit->errors[i].s = std::fabs(visit->a.values[i]);
      visit->errors[i].tie = quantized[i].tie;
      visit->errors[i].scale = quantized[i].scale;
      if (!may_be_exact_ || visit->a.low[i] == kRoundedBit) continue;
      visit->a.low[i] = lowest_bit(visit->a.values[i]);
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
        Errors errors;
        errors.s = std::fabs(row.bias);
        for (size_t i = 0; i < w.size(); ++i) errors.add(w[i], visit.errors[i]);
        const Sum y = multiply(row, visit.a);
        errors.add_rounding(u_mid_ * std::fabs(y.value));
        Cell& cell = cells_[visit.row * static_cast<size_t>(moe_.hidden) + static_cast<size_t>(h)];
        cell.value += visit.weight * y.value;
        cell.errors.add(visit.weight, errors);
        cell.flips += std::fabs(visit.weight) *
                      (std::min(errors.tie, flips * largest * visit.step) + errors.scale);
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

}  // namespace

Status evaluate_moe(const LayerConfig& config, const ReadTensors& read,
                    const std::vector<OracleRow>& rows, Oracle* oracle) {
  std::vector<bool> visited(config.moe().num_experts, false);
  for (const OracleRow& row : rows) {
    for (const OracleVisit& visit : row.visits) visited[static_cast<size_t>(visit.expert)] = true;
  }
  MoeOracle moe(config, rows.size());
  for (size_t expert = 0; expert < visited.size(); ++expert) {
    if (!visited[expert]) continue;
    std::vector<NamedData> tensors;
    PERCH_RETURN_IF_ERROR(read(static_cast<int64_t>(expert), &tensors));
    moe.add_expert(static_cast<int64_t>(expert), tensors, rows);
  }
  moe.store(oracle);
  return {};
}

}  // namespace perch
