#include "canonical/read_expert.h"

#include <fmt/format.h>

#include <algorithm>

#include "canonical/read_matrix.h"
#include "checkpoint/mapped_file.h"

namespace perch {
namespace {

int64_t row_bytes(const CanonicalTensor& tensor) {
  return tensor.spec.bytes() / std::max<int64_t>(1, tensor.spec.shape[0]);
}

// Where the matrix called `name` takes the rows from `first_row` on: half 1 of w13 begins in the
// middle of each tensor that has rows, and shares the others.
MatrixTarget make_target(CanonicalExpert* expert, const std::string& name, const perch_quant& quant,
                         int64_t first_row) {
  MatrixTarget target;
  CanonicalTensor* codes = expert->find(name);
  target.code_row_bytes = row_bytes(*codes);
  target.codes = codes->data.data() + first_row * target.code_row_bytes;
  if (CanonicalTensor* scale = expert->find(name + ".scale")) {
    target.scale_row_bytes = row_bytes(*scale);
    int64_t row = quant.scale_kind == PERCH_SCALE_TENSOR ? 0 : first_row;
    if (quant.scale_kind == PERCH_SCALE_BLOCK) row /= quant.group_n;
    target.scale = scale->data.data() + row * target.scale_row_bytes;
  }
  const auto floats = [&](const char* suffix, int64_t row) -> float* {
    CanonicalTensor* tensor = expert->find(name + suffix);
    return tensor == nullptr ? nullptr : reinterpret_cast<float*>(tensor->data.data()) + row;
  };
  target.scale2 = floats(".scale2", quant.scale2_kind == PERCH_SCALE2_CHANNEL ? first_row : 0);
  target.bias = floats(".bias", first_row);
  target.pre_scale = floats(".pre_scale", 0);
  target.input_scale = floats(".input_scale", 0);
  if (CanonicalTensor* zero = expert->find(name + ".zero")) {
    target.zero_columns = zero->spec.shape[1];
    target.zero = reinterpret_cast<uint8_t*>(zero->data.data()) + first_row * target.zero_columns;
  }
  if (CanonicalTensor* g_idx = expert->find(name + ".g_idx")) {
    const int64_t row = first_row > 0 ? g_idx->spec.shape[1] : 0;
    target.g_idx = reinterpret_cast<int32_t*>(g_idx->data.data()) + row;
  }
  return target;
}

Status read_moe(const CanonicalLayer& layer, const LayerConfig& config, int64_t expert,
                CanonicalExpert* out) {
  const auto global = static_cast<size_t>(layer.experts[static_cast<size_t>(expert)]);
  const ExpertSource& source = layer.source.experts[global];
  const ExpertPlan& plan = layer.plans[global];
  const perch_quant& w13 = config.first();
  const int64_t half = layer.first_slice.n1 - layer.first_slice.n0;
  if (layer.source.gated) {
    PERCH_RETURN_IF_ERROR(read_matrix(source.gate, plan.gate, w13, layer.first_slice,
                                      make_target(out, "w13", w13, 0), &out->bytes_read));
  }
  PERCH_RETURN_IF_ERROR(read_matrix(source.up, plan.up, w13, layer.first_slice,
                                    make_target(out, "w13", w13, layer.source.gated ? half : 0),
                                    &out->bytes_read));
  return read_matrix(source.down, plan.down, config.second(), layer.second_slice,
                     make_target(out, "w2", config.second(), 0), &out->bytes_read);
}

}  // namespace

namespace {

// An expert is one run of a fused tensor, whichever way that is turned.
void release_projection(const Projection& projection, size_t experts) {
  for (const auto& [suffix, view] : projection.parts) {
    const RawTensor& tensor = *view.tensor;
    // The host's own memory, and a tensor that is allowed to be there and read by no format.
    if (tensor.file == nullptr || tensor.bytes == 0) continue;
    const bool fused =
        experts > 0 && tensor.shape.size() >= 3 && tensor.shape[0] == static_cast<int64_t>(experts);
    const int64_t part = fused ? tensor.bytes / tensor.shape[0] : tensor.bytes;
    const int64_t at = fused ? view.offset * raw_dtype_bits(tensor.dtype) / 8 / part * part : 0;
    release_pages({tensor.data + at, static_cast<size_t>(part)});
  }
}

}  // namespace

void release_expert(const CanonicalLayer& layer, int64_t expert) {
  if (!layer.config.is_moe()) return release_projection(layer.source.linear, 0);
  const auto global = static_cast<size_t>(layer.experts[static_cast<size_t>(expert)]);
  const ExpertSource& source = layer.source.experts[global];
  for (const Projection* projection : {&source.gate, &source.up, &source.down}) {
    release_projection(*projection, layer.source.experts.size());
  }
}

CanonicalTensor* CanonicalExpert::find(std::string_view name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(),
                   [&](const CanonicalTensor& tensor) { return tensor.spec.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

const CanonicalTensor* CanonicalExpert::find(std::string_view name) const {
  return const_cast<CanonicalExpert*>(this)->find(name);
}

Result<CanonicalExpert> read_expert(const CanonicalLayer& layer, const LayerConfig& config,
                                    int64_t expert) {
  const auto count = static_cast<int64_t>(layer.experts.size());
  const bool moe = config.is_moe();
  if (moe ? (expert < 0 || expert >= count) : expert != -1) {
    return invalid_argument(
        fmt::format("layer \"{}\": expert: got {}; want {}", layer.source.name, expert,
                    moe ? fmt::format("0 to {}", count - 1) : std::string("-1 (linear)")));
  }
  CanonicalExpert result;
  for (TensorSpec& spec : tensor_specs(config)) {
    const auto bytes = static_cast<size_t>(spec.bytes());
    result.tensors.push_back({std::move(spec), std::vector<std::byte>(bytes)});
  }
  const Status status =
      moe ? read_moe(layer, config, expert, &result)
          : read_matrix(layer.source.linear, layer.linear, config.first(), layer.first_slice,
                        make_target(&result, "w", config.first(), 0), &result.bytes_read);
  if (!status.ok()) return status;
  return result;
}

}  // namespace perch
