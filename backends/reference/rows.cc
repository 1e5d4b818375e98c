// memcpy everywhere: a row may be aligned to nothing more than its element.
#include "rows.h"

#include <cstring>

namespace reference {
namespace {

int64_t stride_of(const DLTensor& tensor, int axis) {
  if (tensor.strides != nullptr) return tensor.strides[axis];
  int64_t stride = 1;
  for (int i = axis + 1; i < tensor.ndim; ++i) stride *= tensor.shape[i];
  return stride;
}

// The address of element i of a tensor of rank 1 or 2, counted row by row.
const uint8_t* element_address(const DLTensor& tensor, int64_t i) {
  int64_t offset = i * stride_of(tensor, 0);
  if (tensor.ndim == 2) {
    const int64_t width = tensor.shape[1];
    offset = i / width * stride_of(tensor, 0) + i % width * stride_of(tensor, 1);
  }
  return static_cast<const uint8_t*>(tensor.data) + tensor.byte_offset +
         offset * (tensor.dtype.bits / 8);
}

}  // namespace

uint8_t* row_address(const DLTensor& tensor, int64_t i) {
  int64_t offset = 0;
  if (tensor.ndim == 3) {
    const int64_t rows = tensor.shape[1];
    offset = i / rows * stride_of(tensor, 0) + i % rows * stride_of(tensor, 1);
  } else {
    offset = i * stride_of(tensor, 0);
  }
  return static_cast<uint8_t*>(tensor.data) + tensor.byte_offset + offset * (tensor.dtype.bits / 8);
}

int64_t integer_at(const DLTensor& tensor, int64_t i) {
  const uint8_t* address = element_address(tensor, i);
  if (tensor.dtype.bits == 32) {
    int32_t value = 0;
    std::memcpy(&value, address, sizeof(value));
    return value;
  }
  int64_t value = 0;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

float float_at(const DLTensor& tensor, int64_t i) {
  float value = 0;
  std::memcpy(&value, element_address(tensor, i), sizeof(value));
  return value;
}

float round_to(const FormatSet& formats, uint32_t dtype, float value) {
  return dtype == PERCH_TYPE_F32 ? value : formats[dtype].round(value);
}

void RowFormat::load(const uint8_t* row, int64_t width, float* out) const {
  for (int64_t i = 0; i < width; ++i) {
    if (dtype == PERCH_TYPE_F32) {
      std::memcpy(out + i, row + 4 * i, 4);
    } else {
      uint16_t code = 0;
      std::memcpy(&code, row + 2 * i, 2);
      out[i] = formats[dtype].decode(code);
    }
  }
}

void RowFormat::store(const float* values, int64_t width, uint8_t* row) const {
  for (int64_t i = 0; i < width; ++i) {
    if (dtype == PERCH_TYPE_F32) {
      std::memcpy(row + 4 * i, values + i, 4);
    } else {
      const auto code = static_cast<uint16_t>(formats[dtype].encode(values[i]));
      std::memcpy(row + 2 * i, &code, 2);
    }
  }
}

}  // namespace reference
