#include "check/case_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "hashed_data.h"
#include "numeric/decode.h"

namespace perch_check {
namespace {

namespace numeric = perch::numeric;
using perch::LayerConfig;
using perch::TensorSpec;
using perch_command::hash_coordinate;
using perch_command::hashed_unit;

// Names of the hashes that are no tensor's.
enum : uint64_t { kInput = 1, kRouting = 2, kWeight = 3, kPlace = 4, kFirstTensor = 16 };

uint64_t tensor_number(std::string_view name) {
  uint64_t number = 0xCBF29CE484222325ULL;
  for (const char c : name) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return kFirstTensor + (number >> 8);
}

// A scale is a power of two there, or takes the one below.
void store_number(uint32_t type, float value, std::byte* out) {
  if (type == PERCH_TYPE_E8M0) value = std::ldexp(1.0F, std::clamp(std::ilogb(value), -126, 127));
  numeric::store_float(type, value, out, 0);
}

// One matrix of one expert, filled coordinate by coordinate.
class MatrixFill {
 public:
  MatrixFill(const LayerConfig& config, int matrix, int64_t expert, uint64_t seed, Fill fill)
      : config_(config),
        matrix_(matrix),
        quant_(matrix == 0 ? config.first() : config.second()),
        act_(matrix == 0 ? config.act_first() : config.act_second()),
        seed_(hash_coordinate(seed, 0, static_cast<uint64_t>(expert), 0)),
        fill_(fill),
        bits_(perch::type_bits(quant_.weight)),
        k_(config.columns(matrix)),
        half_(matrix == 0 && config.is_moe() &&
                      perch_activation_is_gated(config.moe().activation) != 0
                  ? config.moe().intermediate
                  : config.rows(matrix)),
        sparse_(config.is_moe() && config.abi().out_dtype != PERCH_TYPE_F32) {}

  void fill(const TensorSpec& spec, std::byte* out) const {
    const size_t dot = spec.name.find('.');
    const std::string field = dot == std::string::npos ? "" : spec.name.substr(dot + 1);
    const Tensor tensor{spec, tensor_number(spec.name), out};
    if (field.empty()) return bits_ <= 8 ? fill_codes(tensor) : fill_values(tensor);
    if (field == "g_idx") return fill_groups(tensor);
    if (field == "zero" && quant_.zero_kind == PERCH_ZERO_INT) return fill_zeros(tensor);
    const uint32_t type = field == "scale" ? quant_.scale_dtype : uint32_t{PERCH_TYPE_F32};
    const int64_t columns = spec.shape.size() == 2 ? spec.shape[1] : 1;
    const int64_t rows = spec.shape[0];
    const int64_t width = type == PERCH_TYPE_F32 ? 4 : (perch::type_bits(type) + 7) / 8;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        store_number(type, number(field, tensor, row, column),
                     out + (row * columns + column) * width);
      }
    }
  }

 private:
  struct Tensor {
    const TensorSpec& spec;
    uint64_t number;
    std::byte* out;
  };

  bool grid() const { return fill_ == Fill::kExact || fill_ == Fill::kAccumulate; }

  // Gate and up rows keep their numbers when I changes.
  uint64_t hash(const Tensor& tensor, int64_t row, int64_t column) const {
    const int64_t logical = row < half_ ? row : row - half_ + (int64_t{1} << 40);
    return hash_coordinate(seed_, tensor.number, static_cast<uint64_t>(logical),
                           static_cast<uint64_t>(column));
  }
  float unit(const Tensor& tensor, int64_t row, int64_t column) const {
    return static_cast<float>(hash(tensor, row, column) >> 40) * 0x1p-23F - 1.0F;
  }
  int64_t group_of(int64_t k) const { return quant_.group_k == 0 ? 0 : k / quant_.group_k; }

  // Grid data: a small integer. Where 16-bit roundings are allowed between the GEMMs, few are not
  // zero, so that every intermediate still fits 8 bits.
  int small(const Tensor& tensor, int64_t row, int64_t column) const {
    const uint64_t bits = hash(tensor, row, column);
    if (fill_ == Fill::kAccumulate) return 1;
    if (sparse_ && matrix_ == 1) {
      const auto one_in = static_cast<uint64_t>(std::max<int64_t>(1, k_ / 4));
      if (bits % one_in != 0) return 0;
      return (bits >> 32) % 2 == 0 ? 1 : -1;
    }
    return static_cast<int>((bits >> 32) % 5) - 2;
  }

  int integer_zero(int64_t row, int64_t column) const {
    if (quant_.zero_kind == PERCH_ZERO_MIDPOINT) return 1 << (bits_ - 1);
    if (quant_.zero_kind == PERCH_ZERO_NONE) return 0;
    const std::string name = (config_.is_moe() ? (matrix_ == 0 ? "w13" : "w2") : "w");
    const TensorSpec spec{name + ".zero", PERCH_TYPE_INT8, false, {}};
    const Tensor zeros{spec, tensor_number(spec.name), nullptr};
    return zero_code(zeros, row, group_of(column));
  }
  int zero_code(const Tensor& zeros, int64_t row, int64_t group) const {
    return static_cast<int>(hash(zeros, row, group) % (uint64_t{1} << bits_));
  }

  uint32_t grid_code(const Tensor& tensor, int64_t row, int64_t column) const {
    const int value = small(tensor, row, column);
    const int last = (1 << bits_) - 1;
    if (quant_.weight <= PERCH_TYPE_INT8) {
      const int zero =
          quant_.k_order == PERCH_K_G_IDX ? 1 << (bits_ - 1) : integer_zero(row, column);
      // One below the zero point is as good as one above it, where there is no above.
      if (fill_ == Fill::kAccumulate && zero + value > last) return static_cast<uint32_t>(zero - 1);
      return static_cast<uint32_t>(std::clamp(zero + value, 0, last));
    }
    if (quant_.weight == PERCH_TYPE_LUT4) return static_cast<uint32_t>(8 + value);
    const auto number = static_cast<float>(value);
    switch (quant_.weight) {
      case PERCH_TYPE_E4M3FN:
        return numeric::e4m3_from_f32(number);
      case PERCH_TYPE_E5M2:
        return numeric::e5m2_from_f32(number);
      case PERCH_TYPE_E3M2:
        return numeric::e3m2_from_f32(number);
      case PERCH_TYPE_E2M3:
        return numeric::e2m3_from_f32(number);
      default:
        return numeric::e2m1_from_f32(number);
    }
  }

  uint32_t real_code(const Tensor& tensor, int64_t row, int64_t column) const {
    const uint64_t bits = hash(tensor, row, column);
    const uint32_t mask = (1U << bits_) - 1;
    if (quant_.weight <= PERCH_TYPE_INT8 || quant_.weight == PERCH_TYPE_LUT4) {
      if (fill_ != Fill::kSameSign) return static_cast<uint32_t>(bits) & mask;
      const auto zero =
          static_cast<uint64_t>(quant_.weight == PERCH_TYPE_LUT4
                                    ? 8
                                    : std::min(integer_zero(row, column), static_cast<int>(mask)));
      return static_cast<uint32_t>(zero + bits % (mask - zero + 1));
    }
    // The hash has codes enough to choose one that is neither NaN nor large.
    const float* values = numeric::code_values(quant_.weight);
    for (int shift = 0; shift + bits_ <= 56; shift += 8) {
      const uint32_t code = static_cast<uint32_t>(bits >> shift) & mask;
      const float value = values[code];
      if (std::fabs(value) <= 8 && (fill_ != Fill::kSameSign || value >= 0)) return code;
    }
    return 1;
  }

  void fill_codes(const Tensor& tensor) const {
    const int64_t row_bytes = tensor.spec.shape[1];
    auto* bytes = reinterpret_cast<uint8_t*>(tensor.out);
    std::fill(bytes, bytes + tensor.spec.bytes(), uint8_t{0});
    for (int64_t row = 0; row < tensor.spec.shape[0]; ++row) {
      for (int64_t column = 0; column < k_; ++column) {
        numeric::put_code(bytes + row * row_bytes, column, bits_,
                          grid() ? grid_code(tensor, row, column) : real_code(tensor, row, column));
      }
    }
  }

  void fill_values(const Tensor& tensor) const {
    for (int64_t row = 0; row < tensor.spec.shape[0]; ++row) {
      for (int64_t column = 0; column < k_; ++column) {
        float value =
            grid() ? static_cast<float>(small(tensor, row, column)) : unit(tensor, row, column);
        if (fill_ == Fill::kSameSign) value = std::fabs(value);
        numeric::store_float(quant_.weight, value, tensor.out, row * k_ + column);
      }
    }
  }

  void fill_groups(const Tensor& tensor) const {
    const auto groups = static_cast<uint64_t>(perch::num_groups(quant_, k_));
    for (int64_t row = 0; row < tensor.spec.shape[0]; ++row) {
      for (int64_t column = 0; column < k_; ++column) {
        const auto group = static_cast<int32_t>(hash(tensor, row, column) % groups);
        std::memcpy(tensor.out + (row * k_ + column) * 4, &group, 4);
      }
    }
  }

  void fill_zeros(const Tensor& tensor) const {
    const int64_t columns = tensor.spec.shape[1];
    for (int64_t row = 0; row < tensor.spec.shape[0]; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        tensor.out[row * columns + column] = static_cast<std::byte>(zero_code(tensor, row, column));
      }
    }
  }

  // What one code is worth, so that weights are of order 1.
  float scale_unit() const {
    return quant_.weight <= PERCH_TYPE_INT8 && quant_.weight >= PERCH_TYPE_INT1
               ? std::ldexp(2.0F, -bits_)
               : 0.5F;
  }

  float number(const std::string& field, const Tensor& tensor, int64_t row, int64_t column) const {
    if (grid()) return grid_number(field, tensor, row, column);
    const float any = unit(tensor, row, column);
    const float positive = 1.0F + 0.5F * any;
    if (field == "scale") return positive * scale_unit();
    if (field == "scale2" || field == "pre_scale") return positive;
    if (field == "zero")
      return fill_ == Fill::kSameSign ? 0.0F : (0.5F + 0.5F * any) / scale_unit();
    if (field == "lut") return 0.125F * (static_cast<float>(row) - 8.0F) + 0.05F * any;
    if (field == "input_scale") {
      // Scales that use the code's range for inputs of order 1 (the second GEMM's: of order K).
      const float range = matrix_ == 0 ? 1.0F : std::sqrt(static_cast<float>(config_.columns(0)));
      const float top = act_.dtype == PERCH_TYPE_INT8     ? 127.0F
                        : act_.dtype == PERCH_TYPE_E4M3FN ? 448.0F
                                                          : 6.0F * 448.0F;
      return positive * range / top;
    }
    return fill_ == Fill::kSameSign ? std::fabs(any) : any;  // bias, offset
  }

  float grid_number(const std::string& field, const Tensor& tensor, int64_t row,
                    int64_t column) const {
    if (field == "lut") return static_cast<float>(row) - 8.0F;
    if (field == "input_scale") return 2.0F;  // odd inputs then lie in the middle of two codes
    const uint64_t bits = hash(tensor, row, column) >> 32;
    const bool plain = fill_ == Fill::kAccumulate;
    if (field == "zero") return static_cast<float>(integer_zero_float(tensor, row, column));
    if (field == "bias") return plain ? 0.0F : static_cast<float>(bits % 5) - 2.0F;
    if (field == "offset") {
      return plain || (sparse_ && matrix_ == 1) ? 0.0F : static_cast<float>(bits % 3) - 1.0F;
    }
    return plain ? 1.0F : std::ldexp(1.0F, static_cast<int>(bits % 3) - 1);
  }

  // A float zero point on the grid: what integer_zero says for the codes.
  int integer_zero_float(const Tensor& zeros, int64_t row, int64_t group) const {
    return quant_.k_order == PERCH_K_G_IDX ? 1 << (bits_ - 1) : zero_code(zeros, row, group);
  }

  const LayerConfig& config_;
  int matrix_;
  const perch_quant& quant_;
  const perch_act_quant& act_;
  uint64_t seed_;
  Fill fill_;
  int bits_;
  int64_t k_;
  int64_t half_;
  bool sparse_;
};

}  // namespace

std::vector<CaseTensor> make_expert(const LayerConfig& config, int64_t expert, uint64_t seed,
                                    Fill fill) {
  std::vector<CaseTensor> tensors;
  for (const TensorSpec& spec : perch::tensor_specs(config)) {
    const int matrix = spec.name.rfind("w2", 0) == 0 ? 1 : 0;
    CaseTensor tensor{spec, std::vector<std::byte>(static_cast<size_t>(spec.bytes()))};
    MatrixFill(config, matrix, expert, seed, fill).fill(spec, tensor.data.data());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

int64_t float_bytes(uint32_t type) { return type == PERCH_TYPE_F32 ? 4 : 2; }

DLDataType float_dlpack(uint32_t type) {
  if (type == PERCH_TYPE_F32) return {kDLFloat, 32, 1};
  return {static_cast<uint8_t>(type == PERCH_TYPE_BF16 ? kDLBfloat : kDLFloat), 16, 1};
}

}  // namespace perch_check
