// moe.cc - a chunk of rows goes through: route, load (and quantize), gate/up + activation,
// (quantize,) down, combine.
//
// "What makes a row independent of its neighbours?" Each element of h, a and y_e is one sum in one
// K order, whatever tile it fell in, and a row's slots are added in rising order by one task. Only
// `split` breaks this, for calls of a few rows: their K is cut into pieces, more for fewer rows.
#include "moe.h"

#include <cstring>

#include "gemm.h"
#include "routing.h"
#include "scratch.h"

namespace humming_cpu {
namespace {

// Below this many elements a phase is done before other threads have woken up.
constexpr int64_t kInlineElements = int64_t{1} << 15;

class MoeCall {
 public:
  MoeCall(const perch_prepared& prepared, const perch_exec_args& args)
      : plan_(prepared.plan),
        host_(*prepared.host),
        arena_(prepared.arena.data()),
        args_(args),
        rows_(find_row_kernels(plan_.isa)),
        base_(static_cast<uint8_t*>(args.workspace)) {}

  void run() {
    const bool batched = plan_.form == PERCH_FORM_BATCHED;
    const int64_t all_rows = plan_.rows(batched ? args_.x->shape[1] : args_.x->shape[0]);
    if (all_rows == 0) return;
    scratch_ = make_scratch(plan_, batched ? args_.x->shape[1] : args_.x->shape[0]);
    for (first_ = 0; first_ < all_rows; first_ += scratch_.rows) {
      num_rows_ = all_rows - first_ < scratch_.rows ? all_rows - first_ : scratch_.rows;
      routing_ = route(plan_, scratch_, args_, first_, num_rows_);
      if (routing_.num_valid == 0 && plan_.form != PERCH_FORM_STANDARD) continue;
      load();
      if (plan_.w13().input.per_expert()) quantize_pairs();
      if (scratch_.split_rows > 0) {
        gate_up_split();
        if (plan_.w2().input.changes_input()) quantize_activations();
        down_split();
      } else {
        gate_up();
        if (plan_.w2().input.changes_input()) quantize_activations();
        down();
      }
      combine();
    }
  }

 private:
  float* floats(int64_t offset) const { return reinterpret_cast<float*>(base_ + offset); }
  float* x_row(int64_t row) const { return floats(scratch_.x) + row * scratch_.x_stride; }
  // The input of the first GEMM at `at` of the order.
  float* input_row(int64_t at) const {
    if (!plan_.w13().input.per_expert()) return x_row(row_of(at));
    return floats(scratch_.xq) + at * scratch_.x_stride;
  }
  float* a_row(int64_t at) const { return floats(scratch_.a) + at * scratch_.a_stride; }
  float* ye_row(int64_t pair) const { return floats(scratch_.ye) + pair * scratch_.ye_stride; }
  // Row `at` of the order, of a piece of the GEMM that is being split.
  float* part_row(const MatrixPlan& matrix, int32_t piece, int64_t at) const {
    return floats(scratch_.part) + piece * scratch_.part_floats + at * matrix.columns();
  }
  const uint8_t* expert_data(int32_t expert) const { return arena_ + expert * plan_.expert_bytes; }
  int64_t row_of(int64_t at) const { return routing_.order[at] / plan_.slots(); }
  bool is_used(int64_t row) const {
    for (int64_t slot = 0; slot < plan_.slots(); ++slot) {
      if (routing_.expert[row * plan_.slots() + slot] >= 0) return true;
    }
    return false;
  }
  // Rows per task of a phase without weights.
  int64_t row_block(int64_t width) const {
    const int64_t block = kInlineElements / width;
    return block < 1 ? 1 : block;
  }
  static const uint8_t* data_of(const DLTensor& tensor) {
    return static_cast<const uint8_t*>(tensor.data) + tensor.byte_offset;
  }

  // A row of x, quantized where that is the same for every expert.
  void load() {
    const InputQuant& input = plan_.w13().input;
    const bool quantize = input.changes_input() && !input.per_expert();
    const int64_t bytes = number_bytes_of(plan_.in);
    const uint8_t* x = data_of(*args_.x);
    for_blocks(host_, num_rows_, row_block(plan_.hidden), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (!is_used(row)) continue;
        const float* weight = plan_.weight_on_input ? &routing_.weight[row] : nullptr;
        rows_.load(plan_.in, x + row_offset(plan_, *args_.x, first_ + row) * bytes, plan_.hidden,
                   weight, x_row(row));
        if (quantize) quantize_input(rows_, plan_.w13(), nullptr, x_row(row), x_row(row));
      }
    });
  }

  // task(at, the expert's part of the arena) for every pair, in expert order.
  template <class Task>
  void for_pairs(int64_t width, const Task& task) {
    for_blocks(host_, routing_.num_valid, row_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        task(at, expert_data(routing_.expert[routing_.order[at]]));
      }
    });
  }

  void quantize_pairs() {
    const MatrixPlan& w13 = plan_.w13();
    for_pairs(w13.k, [&](int64_t at, const uint8_t* expert) {
      float* out = input_row(at);
      quantize_input(rows_, w13, expert, x_row(row_of(at)), out);
      for (int64_t i = w13.k; i < scratch_.x_stride; ++i) out[i] = 0.0f;
    });
  }

  void quantize_activations() {
    const MatrixPlan& w2 = plan_.w2();
    for_pairs(w2.k, [&](int64_t at, const uint8_t* expert) {
      quantize_input(rows_, w2, expert, a_row(at), a_row(at));
    });
  }

  // Finished sums of panels [panel, panel + columns / 32) of a row: bias, activation, into a.
  void activate(const uint8_t* expert, int64_t at, int64_t panel, const float* sums,
                int64_t columns) const {
    const int64_t width = plan_.activation.gated ? kLanes : kPanel;
    const float* bias = bias_of(plan_.w13(), expert, panel);
    float* a = a_row(at);
    for (int64_t column = 0; column < columns; column += kPanel) {
      rows_.activate(plan_.activation, sums + column, bias == nullptr ? nullptr : bias + column,
                     a + (panel + column / kPanel) * width);
    }
    // Pad columns of w13 are 0 * x, NaN for an infinite x: the second GEMM must see 0 there.
    if (panel + columns / kPanel < plan_.w13().panels) return;
    for (int64_t i = plan_.intermediate; i < plan_.w2().k_end; ++i) a[i] = 0.0f;
  }

  void gate_up() {
    const int64_t blocks = task_blocks(plan_.w13());
    for_each(host_, routing_.num_active * blocks, [&](int64_t index) {
      const int32_t expert = routing_.active[index / blocks];
      const uint8_t* data = expert_data(expert);
      GemmBlock block(plan_, 0, data, index % blocks, Piece{});
      alignas(64) float sums[kRowsMax][kPanelsMax * kPanel];
      const int64_t begin = routing_.begin[expert];
      const auto sums_of = [&](int64_t at) { return sums[(at - begin) % kRowsMax]; };
      block.run(
          begin, routing_.begin[expert + 1], [&](int64_t at) { return input_row(at); }, sums_of,
          [&](int64_t at) { activate(data, at, block.panel, sums_of(at), block.columns); });
    });
  }

  void down() {
    const int64_t blocks = task_blocks(plan_.w2());
    for_each(host_, routing_.num_active * blocks, [&](int64_t index) {
      const int32_t expert = routing_.active[index / blocks];
      const uint8_t* data = expert_data(expert);
      GemmBlock block(plan_, 1, data, index % blocks, Piece{});
      const float* bias = bias_of(plan_.w2(), data, block.panel);
      const auto out = [&](int64_t at) {
        return ye_row(routing_.order[at]) + block.panel * kPanel;
      };
      block.run(
          routing_.begin[expert], routing_.begin[expert + 1], [&](int64_t at) { return a_row(at); },
          out,
          [&](int64_t at) {
            if (bias != nullptr) rows_.add(bias, block.columns, out(at));
          });
    });
  }

  // All pieces of all blocks of a GEMM into `part`; x(at) gives the input rows.
  template <class X>
  void multiply_pieces(int32_t index, const X& x) {
    const MatrixPlan& matrix = plan_.matrix[index];
    const int32_t pieces = matrix.pieces(scratch_.split_rows);
    const int64_t blocks = task_blocks(matrix) * pieces;
    for_each(host_, routing_.num_active * blocks, [&](int64_t task) {
      const int32_t expert = routing_.active[task / blocks];
      const int32_t piece = static_cast<int32_t>(task % pieces);
      GemmBlock block(plan_, index, expert_data(expert), task % blocks / pieces, {piece, pieces});
      block.run(
          routing_.begin[expert], routing_.begin[expert + 1], x,
          [&](int64_t at) { return part_row(matrix, piece, at) + block.panel * kPanel; },
          [](int64_t) {});
    });
  }

  void gate_up_split() {
    const MatrixPlan& w13 = plan_.w13();
    multiply_pieces(0, [&](int64_t at) { return input_row(at); });
    const int32_t pieces = w13.pieces(scratch_.split_rows);
    const int64_t items = routing_.num_valid * w13.panels;
    for_blocks(host_, items, row_block(int64_t{4} * kPanel), [&](int64_t begin, int64_t end) {
      alignas(64) float sums[kPanel];
      for (int64_t item = begin; item < end; ++item) {
        const int64_t at = item / w13.panels;
        const int64_t panel = item % w13.panels;
        rows_.sum(part_row(w13, 0, at) + panel * kPanel, scratch_.part_floats, pieces, kPanel,
                  sums);
        activate(expert_data(routing_.expert[routing_.order[at]]), at, panel, sums, kPanel);
      }
    });
  }

  void down_split() {
    const MatrixPlan& w2 = plan_.w2();
    const int32_t pieces = w2.pieces(scratch_.split_rows);
    multiply_pieces(1, [&](int64_t at) { return a_row(at); });
    for_blocks(host_, routing_.num_valid, row_block(w2.columns()), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const int32_t pair = routing_.order[at];
        rows_.sum(part_row(w2, 0, at), scratch_.part_floats, pieces, w2.columns(), ye_row(pair));
        const float* bias = bias_of(w2, expert_data(routing_.expert[pair]), 0);
        if (bias != nullptr) rows_.add(bias, w2.columns(), ye_row(pair));
      }
    });
  }

  void combine() {
    const bool standard = plan_.form == PERCH_FORM_STANDARD;
    const int64_t bytes = number_bytes_of(plan_.out);
    uint8_t* y = static_cast<uint8_t*>(args_.y->data) + args_.y->byte_offset;
    // The weight that went into x is not applied again.
    if (plan_.weight_on_input) {
      for (int64_t row = 0; row < num_rows_; ++row) routing_.weight[row] = 1.0f;
    }
    for_blocks(
        host_, num_rows_, row_block(plan_.hidden * plan_.slots()), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const int64_t pair = row * plan_.slots();
            if (!standard && routing_.expert[pair] < 0) continue;
            rows_.combine({ye_row(pair), scratch_.ye_stride, routing_.expert + pair,
                           routing_.weight + pair, static_cast<int32_t>(plan_.slots()), plan_.out,
                           plan_.hidden, y + row_offset(plan_, *args_.y, first_ + row) * bytes});
          }
        });
  }

  const LayerPlan& plan_;
  const perch_host_api& host_;
  const uint8_t* arena_;
  const perch_exec_args& args_;
  const RowKernels& rows_;
  uint8_t* base_;
  Scratch scratch_;
  Routing routing_{};
  int64_t first_ = 0;
  int64_t num_rows_ = 0;
};

}  // namespace

void execute_moe(const perch_prepared& prepared, const perch_exec_args& args) {
  MoeCall(prepared, args).run();
}

}  // namespace humming_cpu
