// An expert is loaded and checked as a whole before it takes its place.
#include "prepare.h"

#include <cstddef>
#include <memory>
#include <utility>

namespace reference {
namespace {

Status check_index(const LayerSpec& spec, int32_t expert, size_t* index) {
  if (!spec.is_moe()) {
    if (expert != -1) return invalid(text("expert %d of a linear layer, want -1", expert));
    *index = 0;
    return {};
  }
  if (expert < 0 || expert >= spec.num_experts) {
    return invalid(
        text("expert %d, want 0..%lld", expert, static_cast<long long>(spec.num_experts - 1)));
  }
  *index = static_cast<size_t>(expert);
  return {};
}

Status load_expert(const perch_prepared& layer, TensorSet* tensors, Expert* expert) {
  for (int i = 0; i < layer.spec.num_matrices; ++i) {
    Matrix matrix(layer.backend.host);
    REFERENCE_RETURN_IF_BAD(
        matrix.load(layer.spec.matrices[i], layer.backend.formats, layer.spec.allow_nan, tensors));
    expert->push_back(std::move(matrix));
  }
  return tensors->finish();
}

}  // namespace

perch_builder* begin_layer(const perch_backend& backend, const LayerSpec& spec) {
  auto builder = std::make_unique<perch_builder>();
  builder->layer = std::make_unique<perch_prepared>(backend, spec);
  builder->layer->experts.resize(static_cast<size_t>(spec.num_experts));
  builder->present.assign(builder->layer->experts.size(), 0);
  return builder.release();
}

Status put_expert(perch_builder* builder, int32_t expert, const perch_named_tensor* tensors,
                  uint32_t num_tensors) {
  size_t index = 0;
  REFERENCE_RETURN_IF_BAD(check_index(builder->layer->spec, expert, &index));
  if (builder->present[index]) return invalid(text("expert %d was put already", expert));
  TensorSet set(tensors, num_tensors);
  Expert loaded;
  REFERENCE_RETURN_IF_BAD(load_expert(*builder->layer, &set, &loaded));
  builder->layer->experts[index] = std::move(loaded);
  builder->present[index] = 1;
  return {};
}

Status finish_layer(perch_builder* builder, perch_prepared** prepared) {
  for (size_t i = 0; i < builder->present.size(); ++i) {
    if (builder->present[i]) continue;
    if (!builder->layer->spec.is_moe()) return invalid("the weights were not put");
    return invalid(text("expert %zu of %zu is missing", i, builder->present.size()));
  }
  *prepared = builder->layer.release();
  delete builder;
  return {};
}

Status replace_expert(perch_prepared* layer, int32_t expert, const perch_named_tensor* tensors,
                      uint32_t num_tensors) {
  size_t index = 0;
  REFERENCE_RETURN_IF_BAD(check_index(layer->spec, expert, &index));
  TensorSet set(tensors, num_tensors);
  Expert loaded;
  REFERENCE_RETURN_IF_BAD(load_expert(*layer, &set, &loaded));
  // Same spec, same sizes: each copy goes into the memory that is there, and so cannot fail.
  for (size_t i = 0; i < loaded.size(); ++i) layer->experts[index][i] = loaded[i];
  return {};
}

}  // namespace reference
