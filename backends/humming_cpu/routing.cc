#include "routing.h"

#include <cstring>

namespace humming_cpu {
namespace {

int64_t load_int(const DLTensor& tensor, int64_t offset) {
  const uint8_t* data = static_cast<const uint8_t*>(tensor.data) + tensor.byte_offset;
  if (tensor.dtype.bits == 32) return reinterpret_cast<const int32_t*>(data)[offset];
  return reinterpret_cast<const int64_t*>(data)[offset];
}

// -1 for whatever is not held here; the runtime has refused ids beyond the model's experts.
int32_t local_expert(const LayerPlan& plan, const perch_exec_args& args, int64_t id) {
  if (id < 0 || id >= plan.experts_global) return -1;
  if (args.expert_map != nullptr) {
    id = load_int(*args.expert_map, id * args.expert_map->strides[0]);
  }
  return id < 0 || id >= plan.experts ? -1 : static_cast<int32_t>(id);
}

void read_standard(const LayerPlan& plan, const perch_exec_args& args, int64_t first, int64_t rows,
                   Routing* routing) {
  const DLTensor& ids = *args.topk_ids;
  const DLTensor& weights = *args.topk_weights;
  const float* weight = reinterpret_cast<const float*>(static_cast<const uint8_t*>(weights.data) +
                                                       weights.byte_offset);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t slot = 0; slot < plan.topk; ++slot) {
      const int64_t pair = row * plan.topk + slot;
      const int64_t id = load_int(ids, (first + row) * ids.strides[0] + slot * ids.strides[1]);
      routing->expert[pair] = local_expert(plan, args, id);
      routing->weight[pair] =
          weight[(first + row) * weights.strides[0] + slot * weights.strides[1]];
    }
  }
}

void read_batched(const perch_exec_args& args, int64_t first, int64_t rows, Routing* routing) {
  const int64_t rows_per_expert = args.x->shape[1];
  const DLTensor& counts = *args.expert_counts;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t expert = (first + row) / rows_per_expert;
    const int64_t count = load_int(counts, expert * counts.strides[0]);
    const bool used = (first + row) % rows_per_expert < count;
    routing->expert[row] = used ? static_cast<int32_t>(expert) : -1;
  }
}

void read_grouped(const LayerPlan& plan, const perch_exec_args& args, int64_t first, int64_t rows,
                  Routing* routing) {
  const DLTensor& offsets = *args.expert_offsets;
  for (int64_t row = 0; row < rows; ++row) routing->expert[row] = -1;
  for (int64_t expert = 0; expert < plan.experts; ++expert) {
    const int64_t begin = load_int(offsets, expert * offsets.strides[0]) - first;
    const int64_t end = load_int(offsets, (expert + 1) * offsets.strides[0]) - first;
    for (int64_t row = begin > 0 ? begin : 0; row < end && row < rows; ++row) {
      routing->expert[row] = static_cast<int32_t>(expert);
    }
  }
}

// Counting sort of the valid pairs by expert.
void sort_pairs(const LayerPlan& plan, int64_t pairs, Routing* routing) {
  std::memset(routing->begin, 0, static_cast<size_t>(plan.experts + 1) * sizeof(int32_t));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (routing->expert[pair] >= 0) ++routing->begin[routing->expert[pair] + 1];
  }
  routing->num_active = 0;
  for (int64_t expert = 0; expert < plan.experts; ++expert) {
    if (routing->begin[expert + 1] > 0) {
      routing->active[routing->num_active++] = static_cast<int32_t>(expert);
    }
    routing->begin[expert + 1] += routing->begin[expert];
  }
  routing->num_valid = routing->begin[plan.experts];
  // begin[e] runs to the end of e's part, which is where begin[e + 1] started; then all move back.
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int32_t expert = routing->expert[pair];
    if (expert >= 0) routing->order[routing->begin[expert]++] = static_cast<int32_t>(pair);
  }
  for (int64_t expert = plan.experts; expert > 0; --expert) {
    routing->begin[expert] = routing->begin[expert - 1];
  }
  routing->begin[0] = 0;
}

}  // namespace

Routing route(const LayerPlan& plan, const Scratch& scratch, const perch_exec_args& args,
              int64_t first, int64_t rows) {
  uint8_t* base = static_cast<uint8_t*>(args.workspace);
  Routing routing{};
  routing.expert = reinterpret_cast<int32_t*>(base + scratch.expert);
  routing.order = reinterpret_cast<int32_t*>(base + scratch.order);
  routing.weight = reinterpret_cast<float*>(base + scratch.weight);
  routing.begin = reinterpret_cast<int32_t*>(base + scratch.begin);
  routing.active = reinterpret_cast<int32_t*>(base + scratch.active);
  const int64_t pairs = rows * plan.slots();
  if (plan.form == PERCH_FORM_STANDARD) {
    read_standard(plan, args, first, rows, &routing);
  } else {
    // These forms give y_e back as it is: one slot of weight 1.
    for (int64_t pair = 0; pair < pairs; ++pair) routing.weight[pair] = 1.0f;
    if (plan.form == PERCH_FORM_BATCHED) {
      read_batched(args, first, rows, &routing);
    } else {
      read_grouped(plan, args, first, rows, &routing);
    }
  }
  sort_pairs(plan, pairs, &routing);
  return routing;
}

int64_t row_offset(const LayerPlan& plan, const DLTensor& tensor, int64_t row) {
  if (plan.form != PERCH_FORM_BATCHED) return row * tensor.strides[0];
  const int64_t rows_per_expert = tensor.shape[1];
  return row / rows_per_expert * tensor.strides[0] + row % rows_per_expert * tensor.strides[1];
}

}  // namespace humming_cpu
