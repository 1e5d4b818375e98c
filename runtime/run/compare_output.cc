#include "run/compare_output.h"

#include "agree/agreement.h"
#include "base/tensor_rules.h"
#include "numeric/decode.h"

namespace perch {
namespace {

uint32_t type_of(const DLTensor& tensor) {
  if (tensor.dtype.code == kDLBfloat) return PERCH_TYPE_BF16;
  return tensor.dtype.bits == 16 ? PERCH_TYPE_F16 : PERCH_TYPE_F32;
}

// The rows of a [rows, columns] tensor of `type`, one after the other.
template <typename Number>
std::vector<Number> load_rows(const DLTensor& tensor, uint32_t type, int64_t begin, int64_t end) {
  const int64_t columns = tensor.shape[1];
  const int64_t stride = tensor.strides == nullptr ? columns : tensor.strides[0];
  const void* data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  std::vector<Number> rows;
  rows.reserve(static_cast<size_t>((end - begin) * columns));
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t k = 0; k < columns; ++k) {
      rows.push_back(Number{numeric::load_float(type, data, row * stride + k)});
    }
  }
  return rows;
}

int64_t id_at(const DLTensor& ids, int64_t index) {
  const void* data = static_cast<const std::byte*>(ids.data) + ids.byte_offset;
  return ids.dtype.bits == 64 ? static_cast<const int64_t*>(data)[index]
                              : static_cast<const int32_t*>(data)[index];
}

std::vector<OracleRow> oracle_rows(const CanonicalLayer& layer, const LayerConfig& config,
                                   const perch_exec_args& args) {
  std::vector<OracleRow> rows(static_cast<size_t>(args.x->shape[0]));
  for (size_t t = 0; t < rows.size(); ++t) {
    const auto row = static_cast<int64_t>(t);
    rows[t].x = load_rows<float>(*args.x, config.abi().in_dtype, row, row + 1);
    if (!config.is_moe()) continue;
    const auto* weights = reinterpret_cast<const float*>(
        static_cast<const std::byte*>(args.topk_weights->data) + args.topk_weights->byte_offset);
    const int64_t topk = config.moe().topk;
    for (int64_t slot = row * topk; slot < (row + 1) * topk; ++slot) {
      const int64_t id = id_at(*args.topk_ids, slot);
      const auto held = std::lower_bound(layer.experts.begin(), layer.experts.end(), id);
      if (held == layer.experts.end() || *held != id) continue;
      rows[t].visits.push_back({held - layer.experts.begin(), weights[slot]});
    }
  }
  return rows;
}

// Reads the tensors of one expert at a time, as its backend got them, and keeps them until the
// next.
class CanonicalReader {
 public:
  CanonicalReader(const CanonicalLayer& layer, const Selection& selection)
      : layer_(layer), selection_(selection) {}

  Status read(int64_t expert, std::vector<NamedData>* tensors) {
    const int64_t index = layer_.config.is_moe() ? expert : -1;
    RequantError unused;
    PERCH_ASSIGN_OR_RETURN(expert_, selected_expert(layer_, selection_, index, &unused));
    for (const CanonicalTensor& tensor : expert_.tensors) {
      tensors->push_back({tensor.spec.name, tensor.data.data()});
    }
    return {};
  }

 private:
  const CanonicalLayer& layer_;
  const Selection& selection_;
  CanonicalExpert expert_;
};

}  // namespace

Status compare_output(const CanonicalLayer& layer, const Selection& selection,
                      uint32_t support_flags, const perch_exec_args& args, const DLTensor& expected,
                      perch_comparison* comparison) {
  const LayerConfig& config = selection.config;
  if (config.is_moe() && config.moe().form != PERCH_FORM_STANDARD) {
    return unsupported("perch_model_compare: form: got batched or grouped; want standard");
  }
  const int64_t rows = args.x->shape[0];
  const int64_t shape[2] = {rows,
                            config.is_moe() ? config.moe().hidden : config.linear().out_features};
  TensorWant want;
  want.function = "perch_model_compare";
  want.argument = "expected";
  want.elements = kElementF32 | kElementF16 | kElementBF16;
  want.shape = shape;
  want.ndim = 2;
  want.align = 1;
  NormalTensor checked;
  PERCH_RETURN_IF_ERROR(check_tensor(&expected, 0, want, &checked));

  CanonicalReader reader(layer, selection);
  PERCH_ASSIGN_OR_RETURN(const Oracle oracle,
                         evaluate_rows(
                             config,
                             [&](int64_t expert, std::vector<NamedData>* tensors) {
                               return reader.read(expert, tensors);
                             },
                             oracle_rows(layer, config, args)));
  const Agreement agreement = compare_rows(
      config, support_flags, oracle, load_rows<double>(*args.y, config.abi().out_dtype, 0, rows),
      load_rows<double>(checked.tensor, type_of(checked.tensor), 0, rows));
  comparison->ok = agreement.ok ? 1 : 0;
  comparison->worst_ratio = agreement.worst_ratio;
  comparison->worst_row = agreement.row;
  comparison->worst_column = agreement.column;
  comparison->got = agreement.got;
  comparison->want = agreement.want;
  comparison->allowed = agreement.allowed;
  comparison->worst_row_l2 = agreement.worst_row_l2;
  return {};
}

}  // namespace perch
