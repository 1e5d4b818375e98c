// linear.cc - y = x W^T + bias: the GEMM of moe.cc with one expert that takes every row.
#include "linear.h"

#include "gemm.h"
#include "scratch.h"

namespace humming_cpu {
namespace {

// Rows of x that a task takes: f32 rows that stay in the L2 while its panels pass.
constexpr int64_t kTaskRows = 64;
constexpr int64_t kInlineElements = int64_t{1} << 15;

class LinearCall {
 public:
  LinearCall(const perch_prepared& prepared, const perch_exec_args& args)
      : plan_(prepared.plan),
        w_(plan_.matrix[0]),
        host_(*prepared.host),
        arena_(prepared.arena.data()),
        args_(args),
        rows_(find_row_kernels(plan_.isa)),
        base_(static_cast<uint8_t*>(args.workspace)) {}

  void run() {
    const int64_t all_rows = args_.x->shape[0];
    if (all_rows == 0) return;
    scratch_ = make_scratch(plan_, all_rows);
    for (first_ = 0; first_ < all_rows; first_ += scratch_.rows) {
      num_rows_ = all_rows - first_ < scratch_.rows ? all_rows - first_ : scratch_.rows;
      load();
      if (scratch_.split_rows > 0) {
        multiply_split();
      } else {
        multiply();
      }
    }
  }

 private:
  float* x_row(int64_t row) const {
    return reinterpret_cast<float*>(base_ + scratch_.x) + row * scratch_.x_stride;
  }
  float* part_row(int32_t piece, int64_t row) const {
    return reinterpret_cast<float*>(base_ + scratch_.part) + piece * scratch_.part_floats +
           row * w_.columns();
  }
  static int64_t block_of(int64_t width) {
    return width >= kInlineElements ? 1 : kInlineElements / width;
  }

  void load() {
    const int64_t stride = args_.x->strides[0] * number_bytes_of(plan_.in);
    const uint8_t* x = static_cast<const uint8_t*>(args_.x->data) + args_.x->byte_offset;
    for_blocks(host_, num_rows_, block_of(w_.k), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        rows_.load(plan_.in, x + (first_ + row) * stride, w_.k, nullptr, x_row(row));
        if (w_.input.changes_input()) quantize_input(rows_, w_, arena_, x_row(row), x_row(row));
      }
    });
  }

  // The sums of a row from column `column` on: bias, one rounding, into y.
  void finish(int64_t row, int64_t column, int64_t columns, float* sums) const {
    const float* bias = bias_of(w_, arena_, column / kPanel);
    if (bias != nullptr) rows_.add(bias, columns, sums);
    const int64_t left = w_.n - column;
    const int64_t offset = (first_ + row) * args_.y->strides[0] + column;
    uint8_t* y = static_cast<uint8_t*>(args_.y->data) + args_.y->byte_offset;
    const int32_t expert = 0;
    const float weight = 1.0f;
    rows_.combine({sums, 0, &expert, &weight, 1, plan_.out, left < columns ? left : columns,
                   y + offset * number_bytes_of(plan_.out)});
  }

  void multiply() {
    const int64_t row_blocks = (num_rows_ + kTaskRows - 1) / kTaskRows;
    for_each(host_, task_blocks(w_) * row_blocks, [&](int64_t index) {
      GemmBlock block(plan_, 0, arena_, index / row_blocks, Piece{});
      const int64_t begin = index % row_blocks * kTaskRows;
      const int64_t end = begin + kTaskRows < num_rows_ ? begin + kTaskRows : num_rows_;
      alignas(64) float sums[kRowsMax][kPanelsMax * kPanel];
      const auto sums_of = [&](int64_t row) { return sums[(row - begin) % kRowsMax]; };
      block.run(
          begin, end, [&](int64_t row) { return x_row(row); }, sums_of,
          [&](int64_t row) { finish(row, block.panel * kPanel, block.columns, sums_of(row)); });
    });
  }

  void multiply_split() {
    const int32_t pieces = w_.pieces(scratch_.split_rows);
    for_each(host_, task_blocks(w_) * pieces, [&](int64_t index) {
      const int32_t piece = static_cast<int32_t>(index % pieces);
      GemmBlock block(plan_, 0, arena_, index / pieces, {piece, pieces});
      block.run(
          0, num_rows_, [&](int64_t row) { return x_row(row); },
          [&](int64_t row) { return part_row(piece, row) + block.panel * kPanel; }, [](int64_t) {});
    });
    const int64_t items = num_rows_ * w_.panels;
    for_blocks(host_, items, block_of(int64_t{4} * kPanel), [&](int64_t begin, int64_t end) {
      alignas(64) float sums[kPanel];
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item / w_.panels;
        const int64_t column = item % w_.panels * kPanel;
        rows_.sum(part_row(0, row) + column, scratch_.part_floats, pieces, kPanel, sums);
        finish(row, column, kPanel, sums);
      }
    });
  }

  const LayerPlan& plan_;
  const MatrixPlan& w_;
  const perch_host_api& host_;
  const uint8_t* arena_;
  const perch_exec_args& args_;
  const RowKernels& rows_;
  uint8_t* base_;
  Scratch scratch_;
  int64_t first_ = 0;
  int64_t num_rows_ = 0;
};

}  // namespace

void execute_linear(const perch_prepared& prepared, const perch_exec_args& args) {
  LinearCall(prepared, args).run();
}

}  // namespace humming_cpu
