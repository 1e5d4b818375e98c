// TensorSet: the named tensors of one prepare_put, each taken by name with the dtype and shape that
// the layer calls for. What is missing, wrong or left over is refused with its name.
#pragma once

#include <perch/base.h>

#include <cstdint>
#include <string>
#include <vector>

#include "status.h"

namespace reference {

inline constexpr DLDataType kUint8{kDLUInt, 8, 1};
inline constexpr DLDataType kInt32{kDLInt, 32, 1};
inline constexpr DLDataType kF32{kDLFloat, 32, 1};
// How numbers of a PERCH_TYPE_* cross: as uint8 up to 8 bits.
DLDataType dl_dtype(uint32_t type);

class TensorSet {
 public:
  TensorSet(const perch_named_tensor* tensors, uint32_t count)
      : tensors_(tensors), taken_(count, false) {}

  // The first byte of the tensor's data, which is contiguous; may be unaligned.
  Status take(const std::string& name, DLDataType dtype, const std::vector<int64_t>& shape,
              const uint8_t** data);
  // Refuses a tensor that nobody took.
  Status finish() const;

 private:
  const perch_named_tensor* tensors_;
  std::vector<bool> taken_;
};

}  // namespace reference
