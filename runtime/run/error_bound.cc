#include "run/error_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "numeric/decode.h"
#include "run/activation_slope.h"

namespace perch {
namespace {

// The tensors of one matrix of one expert, by name.
class MatrixView {
 public:
  MatrixView(const std::vector<CanonicalTensor>& tensors, const std::string& name,
             const perch_quant& quant, int64_t columns)
      : quant_(quant), columns_(columns), row_(static_cast<size_t>(columns)) {
    const auto find = [&](const std::string& suffix) -> const void* {
      for (const CanonicalTensor& tensor : tensors) {
        if (tensor.spec.name == name + suffix) return tensor.data.data();
      }
      return nullptr;
    };
    views_.w = find("");
    views_.scale = find(".scale");
    views_.scale2 = static_cast<const float*>(find(".scale2"));
    views_.zero = find(".zero");
    views_.offset = static_cast<const float*>(find(".offset"));
    views_.lut = static_cast<const float*>(find(".lut"));
    g_idx_ = static_cast<const int32_t*>(find(".g_idx"));
    bias_ = static_cast<const float*>(find(".bias"));
    pre_scale_ = static_cast<const float*>(find(".pre_scale"));
  }

  // Row n as values; `g_idx_row` is 1 for the up rows of a gated w13.
  const std::vector<float>& row(int64_t n, int64_t g_idx_row) {
    views_.g_idx = g_idx_ == nullptr ? nullptr : g_idx_ + g_idx_row * columns_;
    numeric::decode_weight_row(quant_, views_, columns_, n, row_.data());
    if (pre_scale_ != nullptr) {
      for (size_t k = 0; k < row_.size(); ++k) row_[k] *= pre_scale_[k];
    }
    return row_;
  }
  double bias(int64_t n) const { return bias_ == nullptr ? 0.0 : double{bias_[n]}; }

 private:
  perch_quant quant_;
  int64_t columns_;
  std::vector<float> row_;
  numeric::MatrixTensors views_{};
  const int32_t* g_idx_ = nullptr;
  const float* bias_ = nullptr;
  const float* pre_scale_ = nullptr;
};

struct Sum {
  double value = 0;
  double absolute = 0;
};

Sum dot(const std::vector<float>& w, const double* x, double bias) {
  Sum sum{bias, std::fabs(bias)};
  for (size_t k = 0; k < w.size(); ++k) {
    const double product = double{w[k]} * x[k];
    sum.value += product;
    sum.absolute += std::fabs(product);
  }
  return sum;
}

std::vector<double> load_rows(const DLTensor& tensor, uint32_t type) {
  const int64_t columns = tensor.shape[1];
  const int64_t stride = tensor.strides == nullptr ? columns : tensor.strides[0];
  const void* data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  std::vector<double> rows(static_cast<size_t>(tensor.shape[0] * columns));
  for (int64_t t = 0; t < tensor.shape[0]; ++t) {
    for (int64_t k = 0; k < columns; ++k) {
      rows[static_cast<size_t>(t * columns + k)] =
          double{numeric::load_float(type, data, t * stride + k)};
    }
  }
  return rows;
}

// Largest step between neighbouring codes of a quantized row, as a share of its absmax.
double code_step(uint32_t dtype) {
  if (dtype == PERCH_TYPE_INT8) return 1.0 / 127;
  return dtype == PERCH_TYPE_E4M3FN ? 32.0 / 448 : 2.0 / 6;
}

// One (token, slot) on its expert.
struct Visit {
  int64_t token = 0;
  double weight = 0;  // of the output
};

class MoeBound {
 public:
  MoeBound(const CanonicalLayer& layer, const LayerConfig& config, ErrorBound* bound)
      : layer_(layer), config_(config), moe_(config.moe()), bound_(bound) {
    const bool bf16 = config.abi().out_dtype == PERCH_TYPE_BF16;
    quantized_ = config.act_second().mode != PERCH_ACT_NONE;
    u_mid_ = bf16 && !quantized_ ? unit_roundoff(PERCH_TYPE_BF16) : 0.0;
    // f16 is too narrow for h and y_e: of the three only a may be rounded to it.
    u_a_ = config.abi().out_dtype == PERCH_TYPE_F16 && !quantized_ ? unit_roundoff(PERCH_TYPE_F16)
                                                                   : u_mid_;
    u_x_ = (moe_.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) != 0
               ? unit_roundoff(config.abi().in_dtype)
               : 0.0;
  }

  // All visits of local expert `expert`; x [T,H] is already weighted where the input is.
  Status add_expert(int64_t expert, const std::vector<Visit>& visits,
                    const std::vector<double>& x) {
    PERCH_ASSIGN_OR_RETURN(const std::vector<CanonicalTensor> tensors, read_expert(layer_, expert));
    MatrixView w13(tensors, "w13", config_.first(), moe_.hidden);
    MatrixView w2(tensors, "w2", config_.second(), moe_.intermediate);
    std::vector<Hidden> hidden(visits.size());
    first_gemm(visits, x, &w13, &hidden);
    second_gemm(visits, &w2, hidden);
    return {};
  }

 private:
  struct Hidden {
    std::vector<double> a, s, mid;  // [I]
    double absmax = 0;
  };

  void first_gemm(const std::vector<Visit>& visits, const std::vector<double>& x, MatrixView* w13,
                  std::vector<Hidden>* hidden) const {
    const bool gated = perch_activation_is_gated(moe_.activation) != 0;
    for (int64_t i = 0; i < moe_.intermediate; ++i) {
      const std::vector<float> gate_row = w13->row(i, 0);
      const std::vector<float> up_row =
          gated ? w13->row(i + moe_.intermediate, 1) : std::vector<float>();
      const double up_bias = gated ? w13->bias(i + moe_.intermediate) : 0.0;
      for (size_t v = 0; v < visits.size(); ++v) {
        const double* row = x.data() + visits[v].token * moe_.hidden;
        const Sum gate = dot(gate_row, row, w13->bias(i));
        const Sum up = gated ? dot(up_row, row, up_bias) : Sum{};
        const ActivationSlope a = activation_slope(moe_, gate.value, up.value);
        Hidden& out = (*hidden)[v];
        out.a.push_back(a.value);
        out.s.push_back(a.by_gate * gate.absolute + a.by_up * up.absolute + std::fabs(a.value));
        out.mid.push_back(
            u_mid_ * (a.by_gate * std::fabs(gate.value) + a.by_up * std::fabs(up.value)) +
            u_x_ * (a.by_gate * gate.absolute + a.by_up * up.absolute) + u_a_ * std::fabs(a.value));
        out.absmax = std::max(out.absmax, std::fabs(a.value));
      }
    }
  }

  void second_gemm(const std::vector<Visit>& visits, MatrixView* w2,
                   const std::vector<Hidden>& hidden) const {
    const double flips = std::ceil(double(moe_.intermediate) / 1000) + 2;
    for (int64_t h = 0; h < moe_.hidden; ++h) {
      const std::vector<float>& row = w2->row(h, 0);
      double largest = 0;
      for (const float w : row) largest = std::max(largest, std::fabs(double{w}));
      for (size_t v = 0; v < visits.size(); ++v) {
        const Hidden& in = hidden[v];
        Sum y{w2->bias(h), std::fabs(w2->bias(h))};
        double mid = 0;
        for (size_t i = 0; i < row.size(); ++i) {
          const double w = std::fabs(double{row[i]});
          y.value += double{row[i]} * in.a[i];
          y.absolute += w * in.s[i];
          mid += w * in.mid[i];
        }
        mid += u_mid_ * std::fabs(y.value);
        const auto at = static_cast<size_t>(visits[v].token * moe_.hidden + h);
        const double weight = std::fabs(visits[v].weight);
        bound_->s[at] += weight * y.absolute;
        bound_->mid[at] += weight * mid;
        if (quantized_) {
          bound_->flips[at] +=
              weight * flips * largest * in.absmax * code_step(config_.act_second().dtype);
        }
      }
    }
  }

  const CanonicalLayer& layer_;
  const LayerConfig& config_;
  const perch_moe_config& moe_;
  ErrorBound* bound_;
  bool quantized_ = false;
  double u_mid_ = 0, u_a_ = 0, u_x_ = 0;
};

int64_t id_at(const DLTensor& ids, int64_t index) {
  const void* data = static_cast<const std::byte*>(ids.data) + ids.byte_offset;
  return ids.dtype.bits == 64 ? static_cast<const int64_t*>(data)[index]
                              : static_cast<const int32_t*>(data)[index];
}

Status bound_moe(const CanonicalLayer& layer, const LayerConfig& config,
                 const perch_exec_args& args, ErrorBound* bound) {
  const perch_moe_config& moe = config.moe();
  std::vector<double> x = load_rows(*args.x, config.abi().in_dtype);
  const auto* weights = reinterpret_cast<const float*>(
      static_cast<const std::byte*>(args.topk_weights->data) + args.topk_weights->byte_offset);
  const bool on_input = (moe.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) != 0;
  std::vector<std::vector<Visit>> visits(moe.num_experts);
  for (int64_t slot = 0; slot < bound->rows * moe.topk; ++slot) {
    const int64_t id = id_at(*args.topk_ids, slot);
    if (id < 0 || id >= moe.num_experts_global) continue;
    const int64_t local = id - layer.experts.begin;
    if (local < 0 || local >= layer.experts.size()) continue;
    const int64_t token = slot / moe.topk;
    if (on_input) {
      for (int64_t k = 0; k < moe.hidden; ++k) {
        x[static_cast<size_t>(token * moe.hidden + k)] *= double{weights[slot]};
      }
    }
    visits[static_cast<size_t>(local)].push_back({token, on_input ? 1.0 : double{weights[slot]}});
  }
  MoeBound moe_bound(layer, config, bound);
  for (size_t e = 0; e < visits.size(); ++e) {
    if (visits[e].empty()) continue;
    PERCH_RETURN_IF_ERROR(moe_bound.add_expert(static_cast<int64_t>(e), visits[e], x));
  }
  return {};
}

Status bound_linear(const CanonicalLayer& layer, const LayerConfig& config,
                    const perch_exec_args& args, ErrorBound* bound) {
  PERCH_ASSIGN_OR_RETURN(const std::vector<CanonicalTensor> tensors, read_expert(layer, -1));
  const int64_t columns = config.columns(0);
  MatrixView w(tensors, "w", config.first(), columns);
  const std::vector<double> x = load_rows(*args.x, config.abi().in_dtype);
  for (int64_t n = 0; n < bound->columns; ++n) {
    const std::vector<float>& row = w.row(n, 0);
    for (int64_t t = 0; t < bound->rows; ++t) {
      const Sum sum = dot(row, x.data() + t * columns, w.bias(n));
      bound->s[static_cast<size_t>(t * bound->columns + n)] = sum.absolute;
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

Result<ErrorBound> error_bound(const CanonicalLayer& layer, const LayerConfig& config,
                               const perch_exec_args& args) {
  if (config.is_moe() && config.moe().form != PERCH_FORM_STANDARD) {
    return unsupported("perch_model_compare: form: got batched or grouped; want standard");
  }
  ErrorBound bound;
  bound.rows = args.x->shape[0];
  bound.columns = config.is_moe() ? config.moe().hidden : config.linear().out_features;
  const auto size = static_cast<size_t>(bound.rows * bound.columns);
  bound.s.resize(size);
  bound.mid.resize(size);
  bound.flips.resize(size);
  const Status status = config.is_moe() ? bound_moe(layer, config, args, &bound)
                                        : bound_linear(layer, config, args, &bound);
  if (!status.ok()) return status;
  return bound;
}

}  // namespace perch
