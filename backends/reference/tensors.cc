// Checks against what the caller gave; the first fault is reported with what was wanted.
#include "tensors.h"

#include <perch/layer.h>

#include <cstddef>

#include "formats.h"

namespace reference {
namespace {

std::string shape_text(const int64_t* shape, size_t rank) {
  std::string result = "[";
  for (size_t i = 0; i < rank; ++i) {
    if (i > 0) result += ",";
    result += std::to_string(shape[i]);
  }
  return result + "]";
}

std::string dtype_text(DLDataType dtype) {
  const char* kind = "dtype";
  if (dtype.code == kDLInt) kind = "int";
  if (dtype.code == kDLUInt) kind = "uint";
  if (dtype.code == kDLFloat) kind = "float";
  if (dtype.code == kDLBfloat) kind = "bfloat";
  return text("%s%d", kind, dtype.bits);
}

bool same_shape(const DLTensor& tensor, const std::vector<int64_t>& shape) {
  if (static_cast<size_t>(tensor.ndim) != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (tensor.shape[i] != shape[i]) return false;
  }
  return true;
}

bool is_contiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

}  // namespace

DLDataType dl_dtype(uint32_t type) {
  if (type == PERCH_TYPE_F32) return kF32;
  if (type == PERCH_TYPE_F16) return {kDLFloat, 16, 1};
  if (type == PERCH_TYPE_BF16) return {kDLBfloat, 16, 1};
  return kUint8;
}

Status TensorSet::take(const std::string& name, DLDataType dtype, const std::vector<int64_t>& shape,
                       const uint8_t** data) {
  const DLTensor* found = nullptr;
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (name != tensors_[i].name) continue;
    if (found != nullptr) return invalid("tensor '" + name + "' was given twice");
    found = tensors_[i].tensor;
    taken_[i] = true;
  }
  if (found == nullptr) return invalid("tensor '" + name + "' is missing");
  const bool same_dtype = found->dtype.code == dtype.code && found->dtype.bits == dtype.bits &&
                          found->dtype.lanes == dtype.lanes;
  if (!same_dtype) {
    return invalid("tensor '" + name + "': want " + dtype_text(dtype) + ", got " +
                   dtype_text(found->dtype));
  }
  if (!same_shape(*found, shape)) {
    return invalid("tensor '" + name + "': want shape " + shape_text(shape.data(), shape.size()) +
                   ", got " + shape_text(found->shape, static_cast<size_t>(found->ndim)));
  }
  if (!is_contiguous(*found)) return invalid("tensor '" + name + "' is not contiguous");
  if (found->data == nullptr) return invalid("tensor '" + name + "' has no data");
  *data = static_cast<const uint8_t*>(found->data) + found->byte_offset;
  return {};
}

Status TensorSet::finish() const {
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (!taken_[i]) {
      return invalid(text("tensor '%s' is not one that this layer has", tensors_[i].name));
    }
  }
  return {};
}

}  // namespace reference
