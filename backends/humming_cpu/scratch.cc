#include "scratch.h"

namespace humming_cpu {
namespace {

// Hands out the workspace from its beginning.
class Bump {
 public:
  int64_t take(int64_t count, int64_t element_bytes) {
    const int64_t at = bytes_;
    bytes_ += round_up(count * element_bytes, 64);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Fewer rows where each pair has an input of its own: their number is bounded then.
int64_t chunk_rows(const LayerPlan& plan) {
  if (!plan.moe || !plan.matrix[0].input.per_expert()) return kChunkRows;
  return plan.slots() < kChunkRows ? kChunkRows / plan.slots() : 1;
}

// The piece of a split GEMM over `num_rows` rows, the larger one of the two.
int64_t part_floats(const LayerPlan& plan, int64_t num_rows, int32_t* pieces) {
  int64_t columns = 0;
  *pieces = 1;
  for (int32_t i = 0; i < plan.num_matrices; ++i) {
    if (plan.matrix[i].columns() > columns) columns = plan.matrix[i].columns();
    const int32_t own = plan.matrix[i].pieces(num_rows);
    if (own > *pieces) *pieces = own;
  }
  return num_rows * plan.slots() * columns;
}

}  // namespace

Scratch make_scratch(const LayerPlan& plan, int64_t num_tokens) {
  Scratch scratch;
  const int64_t all_rows = plan.rows(num_tokens);
  scratch.rows = least(all_rows, chunk_rows(plan));
  scratch.pairs = scratch.rows * plan.slots();
  scratch.split_rows = plan.splits(all_rows) ? scratch.rows : 0;

  Bump bump;
  scratch.x_stride = round_up(plan.matrix[0].k, kLanes);
  scratch.x = bump.take(scratch.rows * scratch.x_stride, sizeof(float));
  // A workspace for more tokens must not be smaller: the split part is there for any number, and
  // pieces times rows grows with the rows.
  if (plan.variant == Variant::split) {
    int32_t pieces = 1;
    scratch.part_floats = part_floats(plan, least(scratch.rows, kSplitRowsMax), &pieces);
    scratch.part = bump.take(pieces * scratch.part_floats, sizeof(float));
  }
  if (plan.moe) {
    if (plan.matrix[0].input.per_expert()) {
      scratch.xq = bump.take(scratch.pairs * scratch.x_stride, sizeof(float));
    }
    scratch.a_stride = round_up(plan.intermediate, kPanel);
    scratch.a = bump.take(scratch.pairs * scratch.a_stride, sizeof(float));
    scratch.ye_stride = plan.w2().columns();
    scratch.ye = bump.take(scratch.pairs * scratch.ye_stride, sizeof(float));
    scratch.expert = bump.take(scratch.pairs, sizeof(int32_t));
    scratch.order = bump.take(scratch.pairs, sizeof(int32_t));
    scratch.weight = bump.take(scratch.pairs, sizeof(float));
    scratch.begin = bump.take(plan.experts + 1, sizeof(int32_t));
    scratch.active = bump.take(plan.experts, sizeof(int32_t));
  }
  scratch.bytes = bump.bytes();
  return scratch;
}

int64_t scratch_bytes(const LayerPlan& plan, int64_t num_tokens) {
  return num_tokens <= 0 ? 0 : make_scratch(plan, num_tokens).bytes;
}

}  // namespace humming_cpu
