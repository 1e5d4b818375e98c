// Projections of tensors made by hand, and the schemes that go with them, for the tests and the
// fuzzer of runtime/canonical's formats. Needs no test framework: a rig that is put together wrong
// throws.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/layer_config.h"
#include "canonical/format.h"
#include "numeric/float_formats.h"

namespace perch_unit {

using perch::Projection;
using perch::RawDtype;
using perch::RawTensor;
using perch::RawView;
using perch::Scheme;
using perch::Strategy;

// Tensors named "m.<suffix>". Their data lies at odd addresses, in blocks of exactly their size: a
// sanitizer sees every read that assumes an alignment or goes past the end.
class ProjectionRig {
 public:
  template <typename T>
  ProjectionRig& add(const std::string& suffix, RawDtype dtype, std::vector<int64_t> shape,
                     const std::vector<T>& values) {
    auto tensor = std::make_unique<RawTensor>();
    tensor->name = "m." + suffix;
    tensor->dtype = dtype;
    tensor->shape = std::move(shape);
    tensor->bytes = static_cast<int64_t>(values.size() * sizeof(T));
    const bool empty = std::count(tensor->shape.begin(), tensor->shape.end(), 0) > 0;
    int64_t count = empty ? 0 : 1;
    for (size_t i = 0; i < tensor->shape.size() && !empty; ++i) count *= tensor->shape[i];
    if (count * perch::raw_dtype_bits(dtype) != tensor->bytes * 8) {
      throw std::logic_error(suffix + ": wrong size");
    }
    blocks_.push_back(std::make_unique<std::byte[]>(values.size() * sizeof(T) + 1));
    if (!values.empty()) {
      std::memcpy(blocks_.back().get() + 1, values.data(), values.size() * sizeof(T));
    }
    tensor->data = blocks_.back().get() + 1;
    drop(suffix);
    projection.parts.emplace_back(suffix, perch::whole_view(*tensor));
    tensors_.push_back(std::move(tensor));
    return *this;
  }

  ProjectionRig& drop(const std::string& suffix) {
    std::erase_if(projection.parts, [&](const auto& part) { return part.first == suffix; });
    return *this;
  }

  RawView& view(const std::string& suffix) {
    for (auto& [name, view] : projection.parts) {
      if (name == suffix) return view;
    }
    throw std::logic_error(suffix + ": no such part");
  }

  // Seen as the transpose of how it is stored.
  ProjectionRig& turn(const std::string& suffix) {
    RawView& one = view(suffix);
    std::swap(one.rows, one.columns);
    std::swap(one.row_stride, one.column_stride);
    return *this;
  }

  Projection projection{"m", 0, {}};

 private:
  std::vector<std::unique_ptr<RawTensor>> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

using Words = std::vector<uint32_t>;
using Code = std::function<int(int, int)>;  // of row n, column k

inline std::vector<int> grid(int rows, int columns, const Code& code) {
  std::vector<int> out;
  for (int n = 0; n < rows; ++n) {
    for (int k = 0; k < columns; ++k) out.push_back(code(n, k));
  }
  return out;
}

// Codes as a stream from bit 0, in whole words.
inline Words stream(const std::vector<int>& codes, int bits) {
  Words words((codes.size() * static_cast<size_t>(bits) + 31) / 32);
  for (size_t i = 0; i < codes.size() * static_cast<size_t>(bits); ++i) {
    const auto width = static_cast<size_t>(bits);
    const uint32_t bit = static_cast<uint32_t>(codes[i / width]) >> (i % width) & 1U;
    words[i / 32] |= bit << (i % 32);
  }
  return words;
}

// No configuration.
inline Scheme unstated() {
  Scheme scheme;
  scheme.unstated = true;
  scheme.act = perch::make_act_none();
  return scheme;
}

inline Scheme quantized(const std::string& method, int64_t bits, bool is_float, Strategy strategy,
                        int64_t group = 0) {
  Scheme scheme;
  scheme.quantized = true;
  scheme.method = method;
  scheme.where = "config.json: q";
  scheme.bits = bits;
  scheme.is_float = is_float;
  scheme.strategy = strategy;
  scheme.group = group;
  scheme.act = perch::make_act_none();
  return scheme;
}

inline Scheme block_scheme(int64_t block_n, int64_t block_k) {
  Scheme scheme = quantized("fp8", 8, true, Strategy::kBlock);
  scheme.block_n = block_n;
  scheme.block_k = block_k;
  return scheme;
}

inline perch_act_quant static_act(uint32_t dtype) {
  perch_act_quant act = perch::make_act_none();
  act.dtype = dtype;
  act.mode = dtype == PERCH_TYPE_E2M1 ? PERCH_ACT_STATIC_GROUP : PERCH_ACT_STATIC;
  act.group = dtype == PERCH_TYPE_E2M1 ? 16 : 0;
  act.scale_dtype = dtype == PERCH_TYPE_E2M1 ? PERCH_TYPE_E4M3FN : PERCH_TYPE_F32;
  return act;
}

inline std::vector<uint16_t> f16(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float value : values) out.push_back(perch::numeric::f16_from_f32(value));
  return out;
}

}  // namespace perch_unit
