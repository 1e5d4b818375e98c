#include "pack.h"

#include <cstdio>
#include <cstring>

#include "perch/guard.hpp"

namespace humming_cpu {
namespace {

enum Role : int32_t { kCodes, kScale, kZero, kBias, kNumRoles };
constexpr const char* kSuffix[kNumRoles] = {"", ".scale", ".zero", ".bias"};

const char* matrix_name(const LayerPlan& plan, int32_t matrix) {
  if (!plan.moe) return "w";
  return matrix == 0 ? "w13" : "w2";
}

// What the ABI says one tensor of this layer looks like; bits 0 for one that the config lacks.
struct Want {
  DLDataType type{};
  int32_t rank = 0;
  int64_t shape[2] = {};
};

DLDataType dl_type(Number number) {
  if (number == Number::bf16) return {kDLBfloat, 16, 1};
  return {kDLFloat, static_cast<uint8_t>(number == Number::f32 ? 32 : 16), 1};
}

Want want_of(const MatrixPlan& matrix, Role role) {
  constexpr DLDataType kBytes = {kDLUInt, 8, 1};
  const bool int4 = matrix.weight != Weight::bf16;
  if (role == kCodes) {
    if (int4) return {kBytes, 2, {matrix.n, (matrix.k + 1) / 2}};
    return {dl_type(Number::bf16), 2, {matrix.n, matrix.k}};
  }
  if (role == kBias) {
    return matrix.has_bias ? Want{dl_type(Number::f32), 1, {matrix.n, 0}} : Want{};
  }
  if (!int4) return {};
  if (role == kZero) {
    return matrix.weight == Weight::int4z ? Want{kBytes, 2, {matrix.n, matrix.source_groups}}
                                          : Want{};
  }
  const DLDataType type = dl_type(matrix.scale);
  if (matrix.scale_kind == PERCH_SCALE_TENSOR) return {type, 1, {1, 0}};
  if (matrix.scale_kind == PERCH_SCALE_CHANNEL) return {type, 1, {matrix.n, 0}};
  if (matrix.scale_kind == PERCH_SCALE_GROUP) return {type, 2, {matrix.n, matrix.source_groups}};
  const int64_t blocks = round_up(matrix.n, matrix.source_group_n) / matrix.source_group_n;
  return {type, 2, {blocks, matrix.source_groups}};
}

bool same_type(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

bool fits(const DLTensor& tensor, const Want& want) {
  if (tensor.ndim != want.rank || !same_type(tensor.dtype, want.type)) return false;
  for (int32_t i = 0; i < want.rank; ++i) {
    if (tensor.shape[i] != want.shape[i]) return false;
  }
  return tensor.data != nullptr;
}

perch_status fail_named(perch_error* error, const char* format, const char* name) {
  char message[256];
  std::snprintf(message, sizeof(message), format, name);
  return perch_guard::fail(error, PERCH_E_INVALID_ARGUMENT, message);
}

perch_status fail_shape(perch_error* error, const char* name, const Want& want) {
  char message[256];
  const char* type = want.type.code == kDLUInt     ? "uint8"
                     : want.type.code == kDLBfloat ? "bf16"
                     : want.type.bits == 32        ? "f32"
                                                   : "f16";
  char shape[64];
  if (want.rank == 1) {
    std::snprintf(shape, sizeof(shape), "[%lld]", static_cast<long long>(want.shape[0]));
  } else {
    std::snprintf(shape, sizeof(shape), "[%lld, %lld]", static_cast<long long>(want.shape[0]),
                  static_cast<long long>(want.shape[1]));
  }
  std::snprintf(message, sizeof(message), "tensor '%s': want %s %s", name, type, shape);
  return perch_guard::fail(error, PERCH_E_INVALID_ARGUMENT, message);
}

const uint8_t* data_of(const DLTensor& tensor) {
  return static_cast<const uint8_t*>(tensor.data) + tensor.byte_offset;
}

// The role of `name` in this layer, or kNumRoles.
Role role_of(const LayerPlan& plan, const char* name, int32_t* matrix) {
  for (*matrix = 0; *matrix < plan.num_matrices; ++*matrix) {
    const char* prefix = matrix_name(plan, *matrix);
    const size_t length = std::strlen(prefix);
    if (std::strncmp(name, prefix, length) != 0) continue;
    for (int32_t role = 0; role < kNumRoles; ++role) {
      if (std::strcmp(name + length, kSuffix[role]) == 0) return static_cast<Role>(role);
    }
  }
  return kNumRoles;
}

perch_status check_zeros(const MatrixPlan& matrix, const uint8_t* zero, const char* prefix,
                         perch_error* error) {
  if (zero == nullptr) return PERCH_OK;
  for (int64_t i = 0; i < matrix.n * matrix.source_groups; ++i) {
    if (zero[i] > 15) return fail_named(error, "tensor '%s.zero': want codes of 0..15", prefix);
  }
  return PERCH_OK;
}

}  // namespace

perch_status find_tensors(const LayerPlan& plan, const perch_named_tensor* tensors,
                          uint32_t num_tensors, ExpertTensors* found, perch_error* error) {
  const DLTensor* given[2][kNumRoles] = {};
  for (uint32_t i = 0; i < num_tensors; ++i) {
    const char* name = tensors[i].name;
    int32_t matrix = 0;
    const Role role = role_of(plan, name, &matrix);
    if (role == kNumRoles) return fail_named(error, "tensor '%s' is not known here", name);
    const Want want = want_of(plan.matrix[matrix], role);
    if (want.rank == 0) return fail_named(error, "tensor '%s' is not of this layer", name);
    if (given[matrix][role] != nullptr) return fail_named(error, "tensor '%s' came twice", name);
    if (!fits(*tensors[i].tensor, want)) return fail_shape(error, name, want);
    given[matrix][role] = tensors[i].tensor;
  }
  for (int32_t matrix = 0; matrix < plan.num_matrices; ++matrix) {
    const char* prefix = matrix_name(plan, matrix);
    const uint8_t* data[kNumRoles] = {};
    for (int32_t role = 0; role < kNumRoles; ++role) {
      if (want_of(plan.matrix[matrix], static_cast<Role>(role)).rank == 0) continue;
      if (given[matrix][role] == nullptr) {
        char name[32];
        std::snprintf(name, sizeof(name), "%s%s", prefix, kSuffix[role]);
        return fail_named(error, "tensor '%s' is missing", name);
      }
      data[role] = data_of(*given[matrix][role]);
    }
    const perch_status status = check_zeros(plan.matrix[matrix], data[kZero], prefix, error);
    if (status != PERCH_OK) return status;
    found->matrix[matrix] = {data[kCodes], data[kScale], data[kZero],
                             reinterpret_cast<const float*>(data[kBias])};
  }
  return PERCH_OK;
}

namespace {

// Index of the scale of row `n` at column `k`.
int64_t scale_index(const MatrixPlan& matrix, int64_t n, int64_t k) {
  if (matrix.scale_kind == PERCH_SCALE_TENSOR) return 0;
  if (matrix.scale_kind == PERCH_SCALE_CHANNEL) return n;
  const int64_t group = k / matrix.source_group_k;
  if (matrix.scale_kind == PERCH_SCALE_GROUP) return n * matrix.source_groups + group;
  return n / matrix.source_group_n * matrix.source_groups + group;
}

// Scales and zeros of one group of a panel; pads stay as they are, 0.
void pack_header(const MatrixPlan& matrix, const ExpertTensors::Matrix& source, int64_t panel,
                 int64_t group, uint8_t* out) {
  const int64_t k = group * matrix.group_k;
  const int64_t width = number_bytes_of(matrix.scale);
  uint8_t* zeros = out + kPanel * width;
  for (int64_t column = 0; column < kPanel; ++column) {
    const int64_t row = matrix.source_row(panel, static_cast<int32_t>(column));
    if (row < 0) continue;
    std::memcpy(out + column * width, source.scale + scale_index(matrix, row, k) * width,
                static_cast<size_t>(width));
    if (source.zero == nullptr) continue;
    const int64_t zero_group = matrix.source_group_k == 0 ? 0 : k / matrix.source_group_k;
    const int32_t zero = source.zero[row * matrix.source_groups + zero_group];
    zeros[column] = static_cast<uint8_t>(zero - 8);
  }
}

// Four codes of a row from k on, as they lie in a word, each less 8; 0 beyond the row's end.
uint16_t four_codes(const uint8_t* row, int64_t k, int64_t k_size) {
  uint32_t codes = 0;
  for (int64_t i = 0; i < 4 && k + i < k_size; ++i) {
    const uint32_t byte = row[(k + i) / 2];
    const uint32_t code = (k + i) % 2 == 0 ? byte & 15u : byte >> 4;
    codes |= (code ^ 8u) << (4 * i);
  }
  return static_cast<uint16_t>(codes);
}

void pack_int4_group(const MatrixPlan& matrix, const uint8_t* codes, int64_t panel, int64_t group,
                     uint8_t* out) {
  const int64_t begin = group * matrix.group_k;
  const int64_t end = begin + matrix.group_k < matrix.k ? begin + matrix.group_k : matrix.k;
  const int64_t row_bytes = (matrix.k + 1) / 2;
  for (int64_t column = 0; column < kPanel; ++column) {
    const int64_t row = matrix.source_row(panel, static_cast<int32_t>(column));
    if (row < 0) continue;
    const uint8_t* source = codes + row * row_bytes;
    uint8_t* at = out + column % kLanes * 4 + column / kLanes * 2;
    int64_t k = begin;
    for (; k + 4 <= end; k += 4, at += 64) {
      // Low bits first along K is the order within the word, too.
      const uint32_t low = source[k / 2];
      const uint32_t high = source[k / 2 + 1];
      const uint16_t four = static_cast<uint16_t>((low | high << 8) ^ 0x8888u);
      std::memcpy(at, &four, 2);
    }
    if (k < end) {
      const uint16_t four = four_codes(source, k, matrix.k);
      std::memcpy(at, &four, 2);
    }
  }
}

void pack_bf16_group(const MatrixPlan& matrix, const uint8_t* codes, int64_t panel, int64_t group,
                     uint8_t* out) {
  const int64_t begin = group * matrix.group_k;
  const int64_t end = begin + matrix.group_k < matrix.k ? begin + matrix.group_k : matrix.k;
  for (int64_t column = 0; column < kPanel; ++column) {
    const int64_t row = matrix.source_row(panel, static_cast<int32_t>(column));
    if (row < 0) continue;
    const uint8_t* source = codes + (row * matrix.k + begin) * 2;
    uint8_t* at = out + column % kLanes * 4 + column / kLanes * 64;
    for (int64_t k = 0; k < end - begin; ++k) {
      std::memcpy(at + k / 2 * 128 + k % 2 * 2, source + k * 2, 2);
    }
  }
}

void pack_matrix(const MatrixPlan& matrix, const ExpertTensors::Matrix& source, uint8_t* out) {
  uint8_t* weights = out + matrix.weights_at;
  std::memset(weights, 0, static_cast<size_t>(matrix.panels * matrix.panel_bytes));
  for (int64_t panel = 0; panel < matrix.panels; ++panel) {
    for (int64_t group = 0; group < matrix.groups; ++group) {
      uint8_t* at = weights + panel * matrix.panel_bytes + group * matrix.group_bytes;
      if (matrix.weight == Weight::bf16) {
        pack_bf16_group(matrix, source.codes, panel, group, at);
      } else {
        pack_header(matrix, source, panel, group, at);
        pack_int4_group(matrix, source.codes, panel, group, at + matrix.header_bytes);
      }
    }
  }
  if (!matrix.has_bias) return;
  float* bias = reinterpret_cast<float*>(out + matrix.bias_at);
  for (int64_t column = 0; column < matrix.columns(); ++column) {
    const int64_t row = matrix.source_row(column / kPanel, static_cast<int32_t>(column % kPanel));
    bias[column] = row < 0 ? 0.0f : source.bias[row];
  }
}

}  // namespace

void pack_expert(const LayerPlan& plan, const ExpertTensors& tensors, uint8_t* out) {
  for (int32_t i = 0; i < plan.num_matrices; ++i) {
    pack_matrix(plan.matrix[i], tensors.matrix[i], out);
  }
}

}  // namespace humming_cpu
