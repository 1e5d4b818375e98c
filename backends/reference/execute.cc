// One row at a time, rows in parallel.
//
// Where this reference rounds, in order:
//   x from in_dtype to f32 (exact); x * w and x * pre_scale in f32, then once to in_dtype
//   weights in f32, operation by operation (matrix.h); quantized inputs are code * s, exact
//   sum over K in double, ascending k, then once to f32; bias added in f32
//   activation in f32 (activations.h); a stays f32
//   y = sum over slots, ascending, of w * y_e: product and sum in f32; once to out_dtype
// h, a and y_e are never rounded to 16 bits.
#include "execute.h"

#include <algorithm>
#include <cstddef>

#include "act_quant.h"
#include "activations.h"
#include "rows.h"

namespace reference {
namespace {

// Where one thread works: slices of the workspace.
struct Scratch {
  float* x;           // the row as it came
  float* row;         // one decoded row of weights
  float* gate_up;     // h
  float* activation;  // a
  float* scaled;      // x * pre_scale
  float* down;        // y_e
  float* sum;         // y before its rounding
  double* input;      // the quantized input of a GEMM
};

uint64_t aligned(int64_t bytes) {
  return (static_cast<uint64_t>(bytes) + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

// Lays the slices out from `base`, or from nowhere to learn the size. Returns the size.
uint64_t lay_out(const LayerSpec& spec, uint8_t* base, Scratch* scratch) {
  const MatrixSpec& first = spec.matrices[0];
  const MatrixSpec& last = spec.matrices[spec.num_matrices - 1];
  const int64_t widest = std::max(first.k, last.k);
  uint64_t used = 0;
  const auto take = [&](int64_t bytes) {
    uint8_t* slice = base == nullptr ? nullptr : base + used;
    used += aligned(bytes);
    return slice;
  };
  const auto floats = [&](int64_t count) { return reinterpret_cast<float*>(take(4 * count)); };
  scratch->x = floats(first.k);
  scratch->row = floats(widest);
  scratch->gate_up = floats(first.n);
  scratch->activation = floats(last.k);
  scratch->scaled = floats(widest);
  scratch->down = floats(last.n);
  scratch->sum = floats(last.n);
  scratch->input = reinterpret_cast<double*>(take(8 * widest));
  return used;
}

struct Call {
  const perch_prepared& layer;
  const perch_exec_args& args;
  uint64_t scratch_bytes;  // of one thread

  const LayerSpec& spec() const { return layer.spec; }
  const FormatSet& formats() const { return layer.backend.formats; }
  RowFormat in() const { return {formats(), spec().in_dtype}; }
  RowFormat out() const { return {formats(), spec().out_dtype}; }
  Scratch scratch(int32_t tid) const {
    Scratch result{};
    auto* workspace = static_cast<uint8_t*>(args.workspace);
    lay_out(spec(), workspace + static_cast<uint64_t>(tid) * scratch_bytes, &result);
    return result;
  }
};

struct Gemm {
  const FormatSet& formats;
  const MatrixSpec& spec;
  const Matrix& matrix;

  // out = W * q(x) + bias
  void run(const float* x, const Scratch& scratch, float* out) const {
    InputQuantizer(formats, spec.act, matrix.input_scale())
        .quantize(scaled(x, scratch.scaled), spec.k, scratch.input);
    for (int64_t n = 0; n < spec.n; ++n) {
      matrix.decode_row(spec, formats, n, scratch.row);
      double sum = 0;
      for (int64_t k = 0; k < spec.k; ++k) {
        sum += scratch.input[k] * static_cast<double>(scratch.row[k]);
      }
      out[n] = static_cast<float>(sum) + matrix.bias(n);
    }
  }

  // x * pre_scale, rounded to the input's dtype where it is not quantized.
  const float* scaled(const float* x, float* out) const {
    if (!(spec.quant.flags & PERCH_QUANT_HAS_PRE_SCALE)) return x;
    for (int64_t k = 0; k < spec.k; ++k) {
      const float product = x[k] * matrix.pre_scale()[k];
      const bool is_quantized = spec.act.mode != PERCH_ACT_NONE;
      out[k] = is_quantized ? product : round_to(formats, spec.input_dtype, product);
    }
    return out;
  }
};

// scratch.down = y_e of scratch.x.
void run_expert(const Call& call, const Expert& expert, const Scratch& scratch) {
  const perch_moe_config& moe = call.spec().moe;
  const Gemm w13{call.formats(), call.spec().matrices[0], expert[0]};
  const Gemm w2{call.formats(), call.spec().matrices[1], expert[1]};
  w13.run(scratch.x, scratch, scratch.gate_up);
  const float* gate = scratch.gate_up;
  const float* up = gate + (w13.spec.gate_and_up ? moe.intermediate : 0);
  for (int64_t i = 0; i < moe.intermediate; ++i) {
    scratch.activation[i] = activate(moe, gate[i], up[i]);
  }
  w2.run(scratch.activation, scratch, scratch.down);
}

void load_input(const Call& call, int64_t row, const Scratch& scratch) {
  call.in().load(row_address(*call.args.x, row), call.spec().matrices[0].k, scratch.x);
}

void store_output(const Call& call, const float* values, int64_t row) {
  const MatrixSpec& last = call.spec().matrices[call.spec().num_matrices - 1];
  call.out().store(values, last.n, row_address(*call.args.y, row));
}

void linear_row(const Call& call, int64_t row, const Scratch& scratch) {
  load_input(call, row, scratch);
  const Matrix& matrix = call.layer.experts[0][0];
  Gemm{call.formats(), call.spec().matrices[0], matrix}.run(scratch.x, scratch, scratch.down);
  store_output(call, scratch.down, row);
}

// The expert held here that a global id names, or -1.
int64_t local_expert(const Call& call, int64_t id) {
  if (id < 0) return -1;
  return call.args.expert_map == nullptr ? id : integer_at(*call.args.expert_map, id);
}

void standard_row(const Call& call, int64_t token, const Scratch& scratch) {
  const perch_moe_config& moe = call.spec().moe;
  const bool weigh_input = (moe.flags & PERCH_MOE_ROUTER_WEIGHT_ON_INPUT) != 0;
  std::fill(scratch.sum, scratch.sum + moe.hidden, 0.0f);
  for (int64_t slot = 0; slot < moe.topk; ++slot) {
    const int64_t at = token * moe.topk + slot;
    const int64_t local = local_expert(call, integer_at(*call.args.topk_ids, at));
    if (local < 0) continue;
    float weight = float_at(*call.args.topk_weights, at);
    load_input(call, token, scratch);
    if (weigh_input) {
      for (int64_t k = 0; k < moe.hidden; ++k) {
        scratch.x[k] = round_to(call.formats(), call.spec().in_dtype, scratch.x[k] * weight);
      }
      weight = 1;
    }
    run_expert(call, call.layer.experts[static_cast<size_t>(local)], scratch);
    for (int64_t h = 0; h < moe.hidden; ++h) scratch.sum[h] += weight * scratch.down[h];
  }
  store_output(call, scratch.sum, token);
}

// Row `row` of expert `expert`, not weighted.
void expert_row(const Call& call, int64_t expert, int64_t row, const Scratch& scratch) {
  load_input(call, row, scratch);
  run_expert(call, call.layer.experts[static_cast<size_t>(expert)], scratch);
  store_output(call, scratch.down, row);
}

void batched_row(const Call& call, int64_t row, const Scratch& scratch) {
  const int64_t rows_max = call.args.x->shape[1];
  const int64_t expert = row / rows_max;
  if (row % rows_max >= integer_at(*call.args.expert_counts, expert)) return;
  expert_row(call, expert, row, scratch);
}

void grouped_row(const Call& call, int64_t row, const Scratch& scratch) {
  const DLTensor& offsets = *call.args.expert_offsets;
  for (int64_t expert = 0; expert < call.spec().num_experts; ++expert) {
    if (row < integer_at(offsets, expert) || row >= integer_at(offsets, expert + 1)) continue;
    expert_row(call, expert, row, scratch);
  }
}

void PERCH_CALL run_row(void* arg, int64_t index, int32_t tid) {
  const Call& call = *static_cast<const Call*>(arg);
  const Scratch scratch = call.scratch(tid);
  if (!call.spec().is_moe()) return linear_row(call, index, scratch);
  if (call.spec().moe.form == PERCH_FORM_BATCHED) return batched_row(call, index, scratch);
  if (call.spec().moe.form == PERCH_FORM_GROUPED) return grouped_row(call, index, scratch);
  standard_row(call, index, scratch);
}

// The runtime has checked these numbers; here they keep every read inside its tensor.
Status check_routing(const Call& call) {
  const perch_moe_config& moe = call.spec().moe;
  const int64_t experts = call.spec().num_experts;
  if (moe.form == PERCH_FORM_BATCHED) {
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t count = integer_at(*call.args.expert_counts, e);
      if (count < 0 || count > call.args.x->shape[1]) return invalid("expert_counts out of range");
    }
    return {};
  }
  if (moe.form == PERCH_FORM_GROUPED) {
    int64_t last = 0;
    for (int64_t e = 0; e <= experts; ++e) {
      const int64_t offset = integer_at(*call.args.expert_offsets, e);
      if (offset < last || offset > call.args.x->shape[0]) {
        return invalid("expert_offsets are not ascending within the rows");
      }
      last = offset;
    }
    return {};
  }
  const int64_t slots = call.args.x->shape[0] * moe.topk;
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t id = integer_at(*call.args.topk_ids, i);
    const bool in_model = id < static_cast<int64_t>(moe.num_experts_global);
    if (in_model && local_expert(call, id) < experts) continue;
    return invalid(text("topk_ids: expert %lld at element %lld is not one of this layer's",
                        static_cast<long long>(id), static_cast<long long>(i)));
  }
  return {};
}

// Rows that may be written: of all experts in the form BATCHED.
int64_t count_rows(const DLTensor& x) { return x.ndim == 3 ? x.shape[0] * x.shape[1] : x.shape[0]; }

}  // namespace

uint64_t workspace_bytes(const perch_host_api& host, const LayerSpec& spec, int64_t num_tokens) {
  if (num_tokens <= 0) return 0;
  Scratch scratch{};
  return lay_out(spec, nullptr, &scratch) * static_cast<uint64_t>(host.num_threads(host.ctx));
}

Status execute(const perch_prepared& layer, const perch_exec_args& args) {
  const int64_t rows = count_rows(*args.x);
  if (rows == 0) return {};
  const perch_host_api& host = *layer.backend.host;
  const uint64_t needed = workspace_bytes(host, layer.spec, rows);
  if (args.workspace == nullptr || args.workspace_bytes < needed) {
    return invalid(text("workspace of %llu bytes, want %llu",
                        static_cast<unsigned long long>(args.workspace_bytes),
                        static_cast<unsigned long long>(needed)));
  }
  Scratch scratch{};
  Call call{layer, args, lay_out(layer.spec, nullptr, &scratch)};
  if (layer.spec.is_moe()) REFERENCE_RETURN_IF_BAD(check_routing(call));
  host.parallel_for(host.ctx, rows, run_row, &call);
  return {};
}

}  // namespace reference
