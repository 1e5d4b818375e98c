// describe.cc - what a layer really holds: padded sizes, and the buffers of the workspace.
#include <cstdio>
#include <cstring>

#include "scratch.h"
#include "support.h"

namespace humming_cpu {
namespace {

class Buffers {
 public:
  explicit Buffers(perch_layout* layout) : layout_(layout) { layout_->num_buffers = 0; }
  // Every buffer is f32 and has its own place: an alias group of its own.
  void add(const char* name, int64_t rows, int64_t width) {
    const uint32_t index = layout_->num_buffers++;
    if (index >= layout_->buffers_capacity) return;
    perch_buffer_layout& buffer = layout_->buffers[index];
    std::memset(&buffer, 0, sizeof(buffer));
    std::strncpy(buffer.name, name, sizeof(buffer.name) - 1);
    buffer.dtype = PERCH_TYPE_F32;
    buffer.alias_group = index + 1;
    buffer.shape[0] = rows;
    buffer.shape[1] = width;
  }

 private:
  perch_layout* layout_;
};

void fill_matrix(const MatrixPlan& plan, const char* name, perch_matrix_layout* out) {
  std::memset(out, 0, sizeof(*out));
  std::strncpy(out->name, name, sizeof(out->name) - 1);
  out->n = plan.n;
  out->k = plan.k;
  out->n_padded = plan.columns();
  out->k_padded = plan.k_end;
}

}  // namespace

void describe(const LayerPlan& plan, int64_t num_tokens, perch_layout* layout) {
  layout->num_matrices = static_cast<uint32_t>(plan.num_matrices);
  fill_matrix(plan.matrix[0], plan.moe ? "w13" : "w", &layout->matrices[0]);
  if (plan.moe) fill_matrix(plan.matrix[1], "w2", &layout->matrices[1]);
  layout->num_derived = 0;
  Buffers buffers(layout);
  const Scratch scratch = make_scratch(plan, num_tokens > 0 ? num_tokens : 0);
  buffers.add("input_f32", scratch.rows, plan.matrix[0].k);
  if (!plan.moe) {
    if (scratch.split_rows > 0) {
      buffers.add("output_parts", scratch.rows * plan.matrix[0].pieces(scratch.split_rows),
                  plan.matrix[0].n);
    }
    return;
  }
  if (plan.w13().input.per_expert()) buffers.add("input_quantized", scratch.pairs, plan.hidden);
  // The ordered way keeps a tile of the first GEMM in registers and stack: nothing to list.
  if (scratch.split_rows > 0) {
    buffers.add("gate_up_output", scratch.pairs * plan.w13().pieces(scratch.split_rows),
                plan.w13().n);
  }
  buffers.add("activation_output", scratch.pairs, plan.intermediate);
  buffers.add("expert_output", scratch.pairs, plan.hidden);
}

}  // namespace humming_cpu
