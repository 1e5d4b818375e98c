#include "base/tensor_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.h"

namespace perch {
namespace {

constexpr int32_t kPinnedHost = 3;  // kDLCUDAHost; kDLCPUPinned in older headers

struct DtypeRow {
  uint8_t code;
  uint8_t bits;
  const char* name;
  uint32_t element;  // Element, or 0 for types that no role allows by itself
};

constexpr std::array kDtypes = {
    DtypeRow{kDLInt, 8, "int8", kElementI8},
    DtypeRow{kDLInt, 32, "int32", kElementI32},
    DtypeRow{kDLInt, 64, "int64", kElementI64},
    DtypeRow{kDLUInt, 8, "uint8", kElementU8},
    DtypeRow{kDLUInt, 32, "uint32", 0},
    DtypeRow{kDLFloat, 16, "float16", kElementF16},
    DtypeRow{kDLFloat, 32, "float32", kElementF32},
    DtypeRow{kDLBfloat, 16, "bfloat16", kElementBF16},
    DtypeRow{PERCH_DL_BOOL, 8, "bool", 0},
    DtypeRow{PERCH_DL_F8_E4M3FN, 8, "float8_e4m3fn", 0},
    DtypeRow{PERCH_DL_F8_E5M2, 8, "float8_e5m2", 0},
    DtypeRow{PERCH_DL_F8_E8M0FNU, 8, "float8_e8m0fnu", 0},
    DtypeRow{PERCH_DL_F4_E2M1FN, 4, "float4_e2m1fn", 0},
};

const DtypeRow* find_dtype(DLDataType dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.code == dtype.code && row.bits == dtype.bits) return &row;
  }
  return nullptr;
}

std::string element_names(uint32_t elements) {
  std::string names;
  for (const DtypeRow& row : kDtypes) {
    if (elements != kElementAny && (row.element & elements) == 0) continue;
    names += (names.empty() ? "" : " or ") + std::string(row.name);
  }
  return names;
}

std::string print_dims(const int64_t* dims, int32_t count, bool wanted = false) {
  std::string text = "[";
  for (int32_t i = 0; i < count; ++i) {
    text += i == 0 ? "" : ", ";
    text += wanted && dims[i] < 0 ? "any" : std::to_string(dims[i]);
  }
  return text + "]";
}

Status fail(const TensorWant& want, const char* property, const std::string& got_and_want) {
  return invalid_argument(
      fmt::format("{}: {}: {}: {}", want.function, want.argument, property, got_and_want));
}

// An unknown number in an enum is undefined in C++: read it as the integer it crosses as.
int32_t device_type_of(const DLTensor& tensor) {
  int32_t type = 0;
  std::memcpy(&type, &tensor.device, sizeof(type));
  return type;
}

Status check_header(const DLTensor* tensor, uint64_t flags, const TensorWant& want) {
  if (tensor == nullptr) return fail(want, "pointer", "got NULL; want a tensor");
  if ((flags & PERCH_TENSOR_READ_ONLY) != 0 && want.written) {
    return fail(want, "read-only", "the DLPack tensor forbids writing");
  }
  if ((flags & PERCH_TENSOR_SUBBYTE_PADDED) != 0) {
    return fail(want, "flags",
                "got sub-byte padded data (DLPack flag 4); want packed codes, as uint8");
  }
  if (tensor->ndim != want.ndim) {
    return fail(want, "ndim", fmt::format("got {}; want {}", tensor->ndim, want.ndim));
  }
  if (tensor->ndim > 0 && tensor->shape == nullptr) {
    return fail(want, "shape", fmt::format("got NULL; want {} dimensions", want.ndim));
  }
  return {};
}

Status check_shape(const DLTensor& tensor, const TensorWant& want) {
  for (int32_t i = 0; i < want.ndim; ++i) {
    const int64_t dim = tensor.shape[i];
    const int64_t wanted = want.shape == nullptr ? -1 : want.shape[i];
    if (dim < 0 || (wanted >= 0 && dim != wanted)) {
      return fail(want, "shape",
                  fmt::format("got {}; want {}", print_dims(tensor.shape, want.ndim),
                              want.shape == nullptr ? std::string("sizes of 0 and more")
                                                    : print_dims(want.shape, want.ndim, true)));
    }
  }
  return {};
}

Status check_dtype(const DLTensor& tensor, const TensorWant& want) {
  const DtypeRow* row = find_dtype(tensor.dtype);
  const bool known = row != nullptr && tensor.dtype.lanes == 1;
  if (known && (want.elements == kElementAny || (row->element & want.elements) != 0)) return {};
  return fail(
      want, "dtype",
      fmt::format("got {}; want {}", print_dtype(tensor.dtype), element_names(want.elements)));
}

// Fills strides; C order, or with long rows where those are allowed.
Status check_strides(const DLTensor& tensor, const TensorWant& want, bool empty,
                     NormalTensor* out) {
  int64_t regular = 1;
  for (int32_t i = want.ndim - 1; i >= 0; --i) {
    out->strides[i] = regular;
    const int64_t dim = tensor.shape[i];
    const bool given = tensor.strides != nullptr && dim > 1 && !empty;
    if (given && tensor.strides[i] != regular) {
      const bool long_row = want.row_strided && i == want.ndim - 2 && tensor.strides[i] > regular;
      if (!long_row) {
        return fail(
            want, "strides",
            fmt::format("got {} for shape {}; want row-major{}; hint: pass a contiguous "
                        "copy",
                        print_dims(tensor.strides, want.ndim), print_dims(tensor.shape, want.ndim),
                        want.row_strided ? ", rows may be further apart" : ""));
      }
      out->strides[i] = tensor.strides[i];
    }
    const auto next = checked_mul(out->strides[i], std::max<int64_t>(dim, 1));
    if (!next) {
      return fail(want, "size",
                  fmt::format("got {} elements, which overflow 64 bits",
                              print_dims(tensor.shape, want.ndim)));
    }
    regular = *next;
  }
  return {};
}

Status check_address(const DLTensor& tensor, const TensorWant& want, NormalTensor* out) {
  if (tensor.data == nullptr) return fail(want, "data", "got NULL; want the tensor's memory");
  int64_t last = 0;
  for (int32_t i = 0; i < want.ndim; ++i) last += (tensor.shape[i] - 1) * out->strides[i];
  // Rounded up over the whole tensor, not per element: two 4-bit codes share a byte.
  const int64_t width = std::max(1, tensor.dtype.bits / 8);
  auto bytes = checked_mul(last + 1, tensor.dtype.bits);
  if (bytes) bytes = ceil_div(*bytes, 8);
  const auto base = reinterpret_cast<uint64_t>(tensor.data);
  const bool wraps = !bytes || __builtin_add_overflow(base, tensor.byte_offset, &out->begin) ||
                     __builtin_add_overflow(out->begin, static_cast<uint64_t>(*bytes), &out->end);
  if (wraps) {
    return fail(want, "size",
                fmt::format("got {} of {}, which overflow 64 bits",
                            print_dims(tensor.shape, want.ndim), print_dtype(tensor.dtype)));
  }
  const uint64_t align = std::max<uint64_t>(want.align, static_cast<uint64_t>(width));
  if (out->begin % align != 0) {
    return fail(want, "data+byte_offset",
                fmt::format("got address % {} = {}; want {}-byte alignment", align,
                            out->begin % align, align));
  }
  return {};
}

}  // namespace

Element element_of(uint32_t perch_type) {
  if (perch_type == PERCH_TYPE_F32) return kElementF32;
  return perch_type == PERCH_TYPE_F16 ? kElementF16 : kElementBF16;
}

std::string print_dtype(DLDataType dtype) {
  const DtypeRow* row = find_dtype(dtype);
  if (row != nullptr && dtype.lanes == 1) return row->name;
  return fmt::format("{}(code {}, bits {}, lanes {})", row != nullptr ? row->name : "dtype",
                     dtype.code, dtype.bits, dtype.lanes);
}

Status check_tensor(const DLTensor* tensor, uint64_t flags, const TensorWant& want,
                    NormalTensor* out) {
  PERCH_RETURN_IF_ERROR(check_header(tensor, flags, want));
  PERCH_RETURN_IF_ERROR(check_dtype(*tensor, want));
  PERCH_RETURN_IF_ERROR(check_shape(*tensor, want));
  const int32_t device_type = device_type_of(*tensor);
  // Pinned host memory is the CPU's, whatever GPU it is pinned for.
  const bool pinned = want.device.device_type == kDLCPU && device_type == kPinnedHost;
  const bool same =
      device_type == want.device.device_type && tensor->device.device_id == want.device.device_id;
  if (!pinned && !same) {
    return fail(
        want, "device",
        fmt::format("got device type {} id {}; want type {} id {} (DLPack numbers)", device_type,
                    tensor->device.device_id, want.device.device_type, want.device.device_id));
  }
  bool empty = false;
  for (int32_t i = 0; i < want.ndim; ++i) empty |= tensor->shape[i] == 0;
  PERCH_RETURN_IF_ERROR(check_strides(*tensor, want, empty, out));
  // A tensor without elements may have any pointer: it is never read.
  if (!empty) PERCH_RETURN_IF_ERROR(check_address(*tensor, want, out));
  if (want.ndim > 0)
    std::memcpy(out->shape, tensor->shape, sizeof(int64_t) * static_cast<size_t>(want.ndim));
  out->tensor = *tensor;
  out->tensor.shape = out->shape;
  out->tensor.strides = out->strides;
  out->tensor.byte_offset = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): checked as a number, where it cannot overflow
  out->tensor.data = empty ? tensor->data : reinterpret_cast<void*>(out->begin);
  return {};
}

}  // namespace perch
