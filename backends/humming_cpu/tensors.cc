#include "tensors.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "numbers.h"
#include "perch/guard.hpp"

namespace humming_cpu {
namespace {

constexpr const char* kSuffix[kNumRoles] = {
    "",     ".scale", ".scale2", ".zero",        ".offset",
    ".lut", ".g_idx", ".bias",   ".input_scale", ".pre_scale"};

const char* matrix_name(const LayerPlan& plan, int32_t matrix) {
  if (!plan.moe) return "w";
  return matrix == 0 ? "w13" : "w2";
}

// What the ABI says one tensor of this layer looks like; rank 0 for one that the config lacks.
struct Want {
  DLDataType type{};
  int32_t rank = 0;
  int64_t shape[2] = {};
};

constexpr DLDataType kBytes = {kDLUInt, 8, 1};
constexpr DLDataType kFloats = {kDLFloat, 32, 1};

// Codes and scales of 8 bits and less cross as bytes.
DLDataType dl_type(uint32_t type) {
  if (type == PERCH_TYPE_F32) return kFloats;
  if (type == PERCH_TYPE_F16) return {kDLFloat, 16, 1};
  if (type == PERCH_TYPE_BF16) return {kDLBfloat, 16, 1};
  return kBytes;
}

Want codes_want(const MatrixPlan& matrix) {
  const int64_t width = matrix.bits > 8 ? matrix.k : (matrix.k * matrix.bits + 7) / 8;
  return {dl_type(matrix.type), 2, {matrix.n, width}};
}

Want scale_want(const MatrixPlan& matrix) {
  const DLDataType type = dl_type(matrix.scale_type);
  switch (matrix.scale_kind) {
    case PERCH_SCALE_TENSOR:
      return {type, 1, {1, 0}};
    case PERCH_SCALE_CHANNEL:
      return {type, 1, {matrix.n, 0}};
    case PERCH_SCALE_GROUP:
      return {type, 2, {matrix.n, matrix.source_groups}};
    case PERCH_SCALE_BLOCK:
      return {type,
              2,
              {round_up(matrix.n, matrix.source_group_n) / matrix.source_group_n,
               matrix.source_groups}};
    default:
      return {};
  }
}

Want want_of(const MatrixPlan& matrix, int32_t role) {
  const Want per_group = {kFloats, 2, {matrix.n, matrix.source_groups}};
  switch (role) {
    case kCodes:
      return codes_want(matrix);
    case kScale:
      return scale_want(matrix);
    case kScale2:
      if (matrix.scale2_kind == PERCH_SCALE2_NONE) return {};
      return {kFloats, 1, {matrix.scale2_kind == PERCH_SCALE2_CHANNEL ? matrix.n : 1, 0}};
    case kZero:
      if (matrix.zero_kind == PERCH_ZERO_FLOAT) return per_group;
      if (matrix.zero_kind != PERCH_ZERO_INT) return {};
      return {kBytes, 2, {matrix.n, matrix.source_groups}};
    case kOffset:
      return matrix.any.has_offset ? per_group : Want{};
    case kLut:
      return matrix.type == PERCH_TYPE_LUT4 ? Want{kFloats, 1, {16, 0}} : Want{};
    case kOrder:
      if (!matrix.has_order) return {};
      return {{kDLInt, 32, 1}, 2, {matrix.gated ? 2 : 1, matrix.k}};
    case kBias:
      return matrix.has_bias ? Want{kFloats, 1, {matrix.n, 0}} : Want{};
    case kInputScale:
      return matrix.input.has_input_scale() ? Want{kFloats, 1, {1, 0}} : Want{};
    default:
      return matrix.input.has_pre_scale ? Want{kFloats, 1, {matrix.k, 0}} : Want{};
  }
}

int64_t count_of(const Want& want) {
  return want.rank == 2 ? want.shape[0] * want.shape[1] : want.shape[0];
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
                     : want.type.code == kDLInt    ? "int32"
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
int32_t role_of(const LayerPlan& plan, const char* name, int32_t* matrix) {
  for (*matrix = 0; *matrix < plan.num_matrices; ++*matrix) {
    const char* prefix = matrix_name(plan, *matrix);
    const size_t length = std::strlen(prefix);
    if (std::strncmp(name, prefix, length) != 0) continue;
    for (int32_t role = 0; role < kNumRoles; ++role) {
      if (std::strcmp(name + length, kSuffix[role]) == 0) return role;
    }
  }
  return kNumRoles;
}

// ---- What a tensor may hold
// -----------------------------------------------------------------------

// The codes of 8 bits that are NaN; false for types that have none or are wider.
bool is_nan_code(uint32_t type, uint8_t code) {
  if (type == PERCH_TYPE_E8M0) return code == 255;
  if (type == PERCH_TYPE_E4M3FN) return (code & 0x7fu) == 0x7fu;
  return type == PERCH_TYPE_E5M2 && (code & 0x7fu) > 0x7cu;
}

bool holds_nan(uint32_t type, const uint8_t* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (type == PERCH_TYPE_F32) {
      float value = 0;
      std::memcpy(&value, data + 4 * i, sizeof(value));
      if (std::isnan(value)) return true;
    } else if (type == PERCH_TYPE_F16 || type == PERCH_TYPE_BF16) {
      uint16_t code = 0;
      std::memcpy(&code, data + 2 * i, sizeof(code));
      if (std::isnan(type == PERCH_TYPE_F16 ? f16_to_float(code) : bf16_to_float(code)))
        return true;
    } else if (is_nan_code(type, data[i])) {
      return true;
    }
  }
  return false;
}

// The element type of a tensor, NONE where none of its bits stand for a NaN.
uint32_t element_type(const MatrixPlan& matrix, int32_t role) {
  if (role == kCodes) {
    const bool narrow = matrix.bits < 8 || type_is_integer(matrix.type);
    return narrow ? uint32_t{PERCH_TYPE_NONE} : matrix.type;
  }
  if (role == kScale) return matrix.scale_type;
  if (role == kOrder || (role == kZero && matrix.zero_kind == PERCH_ZERO_INT)) {
    return PERCH_TYPE_NONE;
  }
  return PERCH_TYPE_F32;
}

perch_status check_zeros(const MatrixPlan& matrix, const uint8_t* zero, const char* name,
                         perch_error* error) {
  const int32_t limit = 1 << matrix.bits;
  for (int64_t i = 0; i < matrix.n * matrix.source_groups; ++i) {
    if (zero[i] < limit) continue;
    char message[160];
    std::snprintf(message, sizeof(message), "tensor '%s': want codes of 0..%d, got %d", name,
                  limit - 1, zero[i]);
    return perch_guard::fail(error, PERCH_E_INVALID_ARGUMENT, message);
  }
  return PERCH_OK;
}

perch_status check_order(const MatrixPlan& matrix, const uint8_t* data, const char* name,
                         perch_error* error) {
  for (int64_t i = 0; i < (matrix.gated ? 2 : 1) * matrix.k; ++i) {
    int32_t group = 0;
    std::memcpy(&group, data + 4 * i, sizeof(group));
    if (group >= 0 && group < matrix.source_groups) continue;
    char message[160];
    std::snprintf(message, sizeof(message), "tensor '%s': want groups of 0..%lld, got %d", name,
                  static_cast<long long>(matrix.source_groups - 1), group);
    return perch_guard::fail(error, PERCH_E_INVALID_ARGUMENT, message);
  }
  return PERCH_OK;
}

// The smallest and the largest scale that it can lead to: itself, or g * t with g = 2^-9 .. 448.
perch_status check_input_scale(const MatrixPlan& matrix, const uint8_t* data, const char* name,
                               perch_error* error) {
  float scale = 0;
  std::memcpy(&scale, data, sizeof(scale));
  const bool grouped = matrix.input.mode == PERCH_ACT_STATIC_GROUP;
  const float smallest = grouped ? scale * 0x1p-9f : scale;
  const float largest = grouped ? scale * 448.0f : scale;
  if (smallest > 0.0f && std::isfinite(1.0f / smallest) && std::isfinite(largest)) return PERCH_OK;
  return fail_named(error, "tensor '%s': want a positive scale with a finite reciprocal", name);
}

perch_status check_values(const LayerPlan& plan, int32_t matrix_index, int32_t role,
                          const uint8_t* data, perch_error* error) {
  const MatrixPlan& matrix = plan.matrix[matrix_index];
  char name[32];
  std::snprintf(name, sizeof(name), "%s%s", matrix_name(plan, matrix_index), kSuffix[role]);
  if (role == kOrder) return check_order(matrix, data, name, error);
  if (role == kInputScale) return check_input_scale(matrix, data, name, error);
  if (role == kZero && matrix.zero_kind == PERCH_ZERO_INT) {
    return check_zeros(matrix, data, name, error);
  }
  if (plan.allow_nan) return PERCH_OK;
  const uint32_t type = element_type(matrix, role);
  if (type == PERCH_TYPE_NONE || !holds_nan(type, data, count_of(want_of(matrix, role)))) {
    return PERCH_OK;
  }
  return fail_named(error, "tensor '%s' holds NaN; set allow_nan to accept it", name);
}

}  // namespace

perch_status find_tensors(const LayerPlan& plan, const perch_named_tensor* tensors,
                          uint32_t num_tensors, ExpertTensors* found, perch_error* error) {
  const DLTensor* given[2][kNumRoles] = {};
  for (uint32_t i = 0; i < num_tensors; ++i) {
    const char* name = tensors[i].name;
    int32_t matrix = 0;
    const int32_t role = role_of(plan, name, &matrix);
    if (role == kNumRoles) return fail_named(error, "tensor '%s' is not known here", name);
    const Want want = want_of(plan.matrix[matrix], role);
    if (want.rank == 0) return fail_named(error, "tensor '%s' is not of this layer", name);
    if (given[matrix][role] != nullptr) return fail_named(error, "tensor '%s' came twice", name);
    if (!fits(*tensors[i].tensor, want)) return fail_shape(error, name, want);
    given[matrix][role] = tensors[i].tensor;
  }
  *found = ExpertTensors{};
  for (int32_t matrix = 0; matrix < plan.num_matrices; ++matrix) {
    for (int32_t role = 0; role < kNumRoles; ++role) {
      if (want_of(plan.matrix[matrix], role).rank == 0) continue;
      if (given[matrix][role] == nullptr) {
        char name[32];
        std::snprintf(name, sizeof(name), "%s%s", matrix_name(plan, matrix), kSuffix[role]);
        return fail_named(error, "tensor '%s' is missing", name);
      }
      const uint8_t* data = data_of(*given[matrix][role]);
      const perch_status status = check_values(plan, matrix, role, data, error);
      if (status != PERCH_OK) return status;
      found->data[matrix][role] = data;
    }
  }
  return PERCH_OK;
}

}  // namespace humming_cpu
