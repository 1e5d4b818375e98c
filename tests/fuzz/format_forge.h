// Projections and schemes from bytes: one that some format stores, and edits of it.
//
// A projection made of nothing but bytes is refused at its first tensor. So the first byte names a
// sound one, in each way that formats store a matrix, and what follows are edits of one tensor, one
// view or one key each; a dimension is rather one that the projection has already, or a multiple of
// one, than any number. Every tensor is as the safetensors reader may give it, and every view lies
// inside its tensor.
#pragma once

#include <limits>
#include <string>

#include "../unit/sound_projections.h"
#include "../unit/stored_matrices.h"
#include "base/checked.h"
#include "canonical/format.h"
#include "canonical/orient.h"
#include "format_scheme.h"
#include "fuzz.h"

namespace perch::fuzz {

using perch_unit::ProjectionRig;

struct Forged {
  ProjectionRig rig;
  Scheme scheme;
  int64_t cuts[8] = {};  // of two slices: n0, n1, k0, k1
};

inline constexpr int64_t kTensorBytesMax = 1 << 13;

class Forge {
 public:
  explicit Forge(Bytes bytes) : in_(bytes) {}

  // Header: start, N, K, cuts. Then edits to the end.
  Forged make() {
    start();
    for (int64_t& cut : made_.cuts) cut = in_.take<uint8_t>();
    for (int edits = 0; edits < kEditsMax && !in_.empty(); ++edits) edit();
    return std::move(made_);
  }

 private:
  static constexpr int kEditsMax = 24;
  static constexpr const char* kSuffixes[] = {"weight",
                                              "weight_packed",
                                              "qweight",
                                              "blocks",
                                              "scales",
                                              "weight_scale",
                                              "bias",
                                              "weight_zero_point",
                                              "qzeros",
                                              "g_idx",
                                              "weight_g_idx",
                                              "weight_shape",
                                              "input_scale",
                                              "pre_quant_scale",
                                              "weight_scale_2",
                                              "scale",
                                              "scale_inv",
                                              "weight_scale_inv",
                                              "activation_scale",
                                              "weight_global_scale",
                                              "input_global_scale",
                                              "SCB",
                                              "trellis"};
  static constexpr int64_t kVast[] = {0,
                                      -1,
                                      int64_t{1} << 31,
                                      (int64_t{1} << 31) - 1,
                                      int64_t{1} << 33,
                                      int64_t{1} << 61,
                                      int64_t{1} << 62,
                                      std::numeric_limits<int64_t>::max()};

  // N is a multiple of 8 and K of 32, mostly the first few; some cross the tiles of the readers.
  void start() {
    constexpr size_t kSound = std::size(perch_unit::kSoundProjections);
    const size_t choice = in_.take<uint8_t>() % (kSound + std::size(perch_unit::kStoredMatrices));
    const auto rows = in_.take<uint8_t>();
    const auto columns = in_.take<uint8_t>();
    if (choice < kSound) {
      made_.rig = perch_unit::kSoundProjections[choice].rig();
      made_.scheme = perch_unit::kSoundProjections[choice].scheme();
      return;
    }
    const perch_unit::StoredMatrix& stored = perch_unit::kStoredMatrices[choice - kSound];
    const int64_t n = 8 * (1 + (rows < 224 ? rows % 3 : rows % 20));
    const int64_t k = 32 * (1 + (columns < 224 || n > 8 * 17 ? columns % 2 : columns % 12));
    stored.build(made_.rig, n, k, stored.dtype, rows % 2 != 0);
    made_.scheme = stored.scheme;
  }

  std::vector<std::pair<std::string, RawView>>& parts() { return made_.rig.projection.parts; }

  // One of its own, or any.
  std::string take_suffix() {
    const auto byte = in_.take<uint8_t>();
    if (byte < 128 && !parts().empty()) return parts()[byte % parts().size()].first;
    return kSuffixes[byte % std::size(kSuffixes)];
  }

  // A small number, one of the projection's dimensions times or by a small one, or a vast one.
  int64_t take_dim() {
    const auto byte = in_.take<uint8_t>();
    if (byte < 64) return byte;
    if (byte >= 240) return kVast[byte % std::size(kVast)];
    std::vector<int64_t> known = {1};
    for (const auto& [suffix, view] : parts()) {
      known.push_back(view.rows);
      known.push_back(view.columns);
    }
    const int64_t dim = std::min(known[byte % known.size()], kTensorBytesMax);
    constexpr int64_t kFactors[] = {1, 1, 2, 3, 4, 8, 16, 32};
    const auto change = in_.take<uint8_t>();
    const int64_t factor = kFactors[change % std::size(kFactors)];
    return change < 128 ? dim * factor : (dim + factor - 1) / factor;
  }

  // What the safetensors reader lets pass, and not too large: dimensions that are not become 1.
  static void fit(RawDtype dtype, std::vector<int64_t>* shape) {
    const int64_t bits = raw_dtype_bits(dtype);
    const bool empty = std::find(shape->begin(), shape->end(), 0) != shape->end();
    int64_t numel = 1;  // zeros left out
    for (int64_t& dim : *shape) {
      const std::optional<int64_t> product = checked_mul(numel, std::max<int64_t>(dim, 1));
      if (dim >= 0 && product && (empty || *product <= kTensorBytesMax * 8 / bits)) {
        numel = *product;
      } else {
        dim = 1;
      }
    }
    if (!empty && numel * bits % 8 != 0) shape->push_back(8);
  }

  // `bytes` again and again, in whatever shape.
  void add(const std::string& suffix, RawDtype dtype, std::vector<int64_t> shape,
           const std::vector<uint8_t>& bytes) {
    fit(dtype, &shape);
    int64_t bits = raw_dtype_bits(dtype);
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) bits = 0;
    for (size_t i = 0; i < shape.size() && bits != 0; ++i) bits *= shape[i];
    std::vector<uint8_t> all(static_cast<size_t>(bits / 8));
    for (size_t i = 0; i < all.size() && !bytes.empty(); ++i) all[i] = bytes[i % bytes.size()];
    made_.rig.add(suffix, dtype, std::move(shape), all);
  }

  // An element or two that means something in that dtype: a one, a group, a size; or any bytes.
  std::vector<uint8_t> take_elements(RawDtype dtype) {
    const auto byte = in_.take<uint8_t>();
    if (byte >= 192) {
      const Bytes any = in_.take_bytes(1 + byte % 16);
      return {any.begin(), any.end()};
    }
    switch (dtype) {
      case RawDtype::kF32:
        return {0, 0, 0x80, 0x3f};
      case RawDtype::kF16:
        return {0, 0x3c};
      case RawDtype::kBF16:
        return {0x80, 0x3f};
      case RawDtype::kI32:
        return {byte, 0, 0, 0};
      case RawDtype::kI64:
        return {byte, 0, 0, 0, 0, 0, 0, 0, in_.take<uint8_t>(), 0, 0, 0, 0, 0, 0, 0};
      default:
        return {byte};
    }
  }

  RawDtype take_dtype() { return static_cast<RawDtype>(in_.take<uint8_t>() % kRawDtypes.size()); }

  void replace() {
    const std::string suffix = take_suffix();
    const RawDtype dtype = take_dtype();
    std::vector<int64_t> shape(in_.take<uint8_t>() % 5);
    for (int64_t& dim : shape) dim = take_dim();
    const std::vector<uint8_t> elements = take_elements(dtype);
    add(suffix, dtype, std::move(shape), elements);
  }

  // One dimension or the dtype of a tensor that is there.
  void alter() {
    const RawView* view = made_.rig.projection.find(take_suffix());
    if (view == nullptr) return;
    const RawTensor& tensor = *view->tensor;
    std::vector<int64_t> shape = tensor.shape;
    RawDtype dtype = tensor.dtype;
    const auto which = in_.take<uint8_t>();
    if (which >= 192 || shape.empty()) {
      dtype = take_dtype();
    } else {
      shape[which % shape.size()] = take_dim();
    }
    add(tensor.name.substr(2), dtype, std::move(shape), contents(tensor));
  }

  static std::vector<uint8_t> contents(const RawTensor& tensor) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.data);
    return {bytes, bytes + tensor.bytes};
  }

  // Counts up as the groups of a g_idx do, or some bytes of one tensor.
  void write() {
    const RawView* view = made_.rig.projection.find(take_suffix());
    if (view == nullptr) return;
    const RawTensor& tensor = *view->tensor;
    std::vector<uint8_t> bytes = contents(tensor);
    const auto kind = in_.take<uint8_t>();
    if (kind >= 192 && tensor.dtype == RawDtype::kI32) {
      const size_t run = 1 + in_.take<uint8_t>();
      for (size_t i = 0; i + 3 < bytes.size(); i += 4) {
        const std::array<uint8_t, 4> id = {static_cast<uint8_t>(i / 4 / run), 0, 0, 0};
        std::copy(id.begin(), id.end(), bytes.begin() + static_cast<std::ptrdiff_t>(i));
      }
    } else {
      const size_t at = in_.take<uint8_t>();
      const Bytes some = in_.take_bytes(1 + kind % 8);
      for (size_t i = 0; i < some.size() && at + i < bytes.size(); ++i) bytes[at + i] = some[i];
    }
    // The view stays as it is.
    std::copy(bytes.begin(), bytes.end(),
              reinterpret_cast<uint8_t*>(const_cast<std::byte*>(tensor.data)));
  }

  void rename() {
    const std::string from = take_suffix();
    const std::string to = kSuffixes[in_.take<uint8_t>() % std::size(kSuffixes)];
    const RawView* view = made_.rig.projection.find(from);
    if (view == nullptr || from == to) return;
    const RawTensor& tensor = *view->tensor;
    add(to, tensor.dtype, tensor.shape, contents(tensor));
    made_.rig.drop(from);
  }

  // One more tensor that fits those that are there, where they make a plan.
  void complete() {
    const auto which = in_.take<uint8_t>();
    const Result<const Format*> format = find_format(made_.rig.projection);
    if (!format.ok()) return;
    const Result<MatrixPlan> plan = (*format)->plan(made_.scheme, made_.rig.projection);
    if (!plan.ok() || plan->n > kTensorBytesMax || plan->k > kTensorBytesMax) return;
    const std::vector<uint8_t> one = {0, 0, 0x80, 0x3f};
    switch (which % 5) {
      case 0:
        return add("bias", RawDtype::kF32, {plan->n}, one);
      case 1:
        return add("pre_quant_scale", RawDtype::kF32, {plan->k}, one);
      case 2:
        made_.scheme.act = perch_unit::static_act(PERCH_TYPE_E4M3FN);
        return add("input_scale", RawDtype::kF32, {1}, one);
      case 3:
        return plan->scale ? add_order(*plan) : void();
      default:
        return plan->scale ? add_zeros(*plan, which >= 128) : void();
    }
  }

  // Groups in turn, which is no natural order.
  void add_order(const MatrixPlan& plan) {
    const auto groups = static_cast<uint8_t>(std::min<int64_t>(plan.scale->view.columns, 16));
    std::vector<uint8_t> ids;
    for (uint8_t i = 0; i < groups; ++i) ids.insert(ids.end(), {i, 0, 0, 0});
    const bool packed = made_.rig.projection.find("weight_packed") != nullptr;
    made_.scheme.act_order = true;
    add(packed ? "weight_g_idx" : "g_idx", RawDtype::kI32, {plan.k}, ids);
  }

  void add_zeros(const MatrixPlan& plan, bool in_bytes) {
    const RawView& scale = plan.scale->view;
    const int64_t words = ceil_div(plan.n * type_bits(plan.quant.weight), 32);
    made_.scheme.symmetric = false;
    const std::vector<uint8_t> any = {1, 0, 2, 0xff, 0x77};
    if (made_.rig.projection.find("qweight") != nullptr) {
      return add("qzeros", RawDtype::kI32, {scale.columns, words}, any);
    }
    const bool packed = made_.rig.projection.find("weight_packed") != nullptr && !in_bytes;
    if (packed) return add("weight_zero_point", RawDtype::kI32, {words, scale.columns}, any);
    add("weight_zero_point", RawDtype::kI8, {scale.rows, scale.columns}, {1, 0, 0xff});
  }

  // As tensors of several experts, read as the loader reads them: one half of one expert of each.
  void fuse() {
    const auto mode = in_.take<uint8_t>();
    const OrientationChoice orientation = {(mode & 1) != 0, (mode & 2) != 0, "fuzz"};
    const int64_t experts = 1 + (mode >> 2 & 3);
    const int64_t half = mode >> 4 & 1;
    const auto before = parts();
    for (const auto& [suffix, view] : before) {
      const RawTensor tensor = *view.tensor;
      std::vector<int64_t> shape = tensor.shape;
      const bool matrix = shape.size() >= 2;
      const bool grid = matrix && made_.scheme.strategy == Strategy::kBlock &&
                        suffix.find("scale") != std::string::npos;
      if (!shape.empty()) shape[0] = std::min(shape[0], kTensorBytesMax) * 2;
      if (orientation.transposed && shape.size() == 2) std::swap(shape[0], shape[1]);
      shape.insert(shape.begin(), experts);
      if (shape.size() > 4) continue;
      add(suffix, tensor.dtype, shape, contents(tensor));
      RawView& part = made_.rig.view(suffix);
      const FusedRole role = grid     ? FusedRole::kBlocks
                             : matrix ? FusedRole::kMatrix
                                      : FusedRole::kRows;
      const Result<FusedView> fused = orient(*part.tensor, role, experts, orientation);
      if (!fused.ok() || fused->experts != experts ||
          (role != FusedRole::kBlocks && fused->rows > 1 && fused->rows % 2 != 0)) {
        continue;
      }
      part = grid ? expert_view(*fused, experts - 1)
                  : half_view(*fused, experts - 1, orientation, half);
    }
    if (!before.empty() && half == 1) {
      made_.rig.projection.fused_rows_before = std::min(before[0].second.rows, kTensorBytesMax);
    }
  }

  void edit() {
    switch (in_.take<uint8_t>() % 12) {
      case 0:
      case 1:
        return replace();
      case 2:
        return complete();
      case 3:
      case 4:
        return alter();
      case 5:
        return write();
      case 6: {
        made_.rig.drop(take_suffix());
        return;
      }
      case 7:
        return rename();
      case 8: {
        const std::string suffix = take_suffix();
        if (made_.rig.projection.find(suffix) != nullptr) made_.rig.turn(suffix);
        return;
      }
      case 9:
        return fuse();
      default:
        return SchemeEdit(&in_, &made_.scheme, take_dim()).make();
    }
  }

  Reader in_;
  Forged made_;
};

}  // namespace perch::fuzz
