#include "agree/weight_rows.h"

#include "agree/quantize_input.h"

namespace perch {

void NumberRow::set_low_bits() {
  low.resize(values.size());
  for (size_t k = 0; k < values.size(); ++k) low[k] = lowest_bit(values[k]);
}

WeightRows::WeightRows(const LayerConfig& config, int matrix, const std::vector<NamedData>& tensors,
                       bool with_low)
    : quant_(matrix == 0 ? config.first() : config.second()),
      act_(matrix == 0 ? config.act_first() : config.act_second()),
      columns_(config.columns(matrix)),
      in_dtype_(config.abi().in_dtype),
      with_low_(with_low),
      decoded_(static_cast<size_t>(columns_)) {
  const std::string name = !config.is_moe() ? "w" : matrix == 0 ? "w13" : "w2";
  const auto find = [&](const char* suffix) -> const void* {
    for (const NamedData& tensor : tensors) {
      if (tensor.name == name + suffix) return tensor.data;
    }
    return nullptr;
  };
  const auto find_floats = [&](const char* suffix) {
    return static_cast<const float*>(find(suffix));
  };
  tensors_ = numeric::matrix_tensors(find);
  g_idx_ = tensors_.g_idx;
  bias_ = find_floats(".bias");
  pre_scale_ = find_floats(".pre_scale");
  if (const float* scale = find_floats(".input_scale")) input_scale_ = *scale;
}

void WeightRows::load(int64_t n, int64_t g_idx_row, WeightRow* row) {
  tensors_.g_idx = g_idx_ == nullptr ? nullptr : g_idx_ + g_idx_row * columns_;
  numeric::decode_weight_row(quant_, tensors_, columns_, n, decoded_.data());
  row->numbers.values.assign(decoded_.begin(), decoded_.end());
  row->bias = bias_ == nullptr ? 0.0 : double{bias_[n]};
  if (!with_low_) return;
  row->numbers.set_low_bits();
  if (numeric::code_bits(quant_.weight) <= 8 || quant_.scale_kind != PERCH_SCALE_NONE) {
    mark_rounded(n, row);
  }
}

void WeightRows::mark_rounded(int64_t n, WeightRow* row) {
  numeric::decode_code_row(quant_, tensors_, columns_, n, decoded_.data());
  int64_t of_group = -1;
  numeric::GroupTerms terms{};
  for (int64_t k = 0; k < columns_; ++k) {
    int64_t group = quant_.group_k == 0 ? 0 : k / quant_.group_k;
    if (quant_.k_order == PERCH_K_G_IDX) group = tensors_.g_idx[k];
    if (group != of_group) terms = numeric::group_terms(quant_, tensors_, columns_, n, group);
    of_group = group;
    const auto at = static_cast<size_t>(k);
    const double row_value = row->numbers.values[at];
    // 9 bits times 24 times 24: what a long double's 64 hold.
    const long double value =
        (static_cast<long double>(decoded_[at]) - terms.zero) * terms.scale * terms.scale2 +
        terms.offset;
    const bool is_operand = act_.mode != PERCH_ACT_NONE || holds(in_dtype_, row_value);
    const bool clean = is_operand && value == static_cast<long double>(row_value);
    if (!clean) row->numbers.low[at] = kRoundedBit;
  }
}

NumberRow WeightRows::make_input(std::vector<float> x) const {
  const bool quantized = act_.mode != PERCH_ACT_NONE;
  if (pre_scale_ != nullptr) {
    for (size_t k = 0; k < x.size(); ++k) {
      const float product = x[k] * pre_scale_[k];
      x[k] = quantized ? product : round_once(in_dtype_, product);
    }
  }
  NumberRow row;
  row.values.assign(x.begin(), x.end());
  if (quantized) quantize_input(act_, input_scale_, x, row.values.data());
  if (with_low_) row.set_low_bits();
  return row;
}

}  // namespace perch
