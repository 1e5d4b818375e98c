// The rules every incoming DLTensor must meet before a backend sees it, and their error texts.
//
// Message form: "<function>: <argument>: <property>: got <value>; want <rule>[; hint: ...]".
// Allocates nothing unless a rule is broken, so that execute may use it. What cannot be checked:
// whether the buffer really is as large as the tensor says.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/status.h"
#include "perch/layer.h"

namespace perch {

// Element types by bit, so that a role can allow several.
enum Element : uint32_t {
  kElementF32 = 1U << 0,
  kElementF16 = 1U << 1,
  kElementBF16 = 1U << 2,
  kElementI32 = 1U << 3,
  kElementI64 = 1U << 4,
  kElementU8 = 1U << 5,
  kElementI8 = 1U << 6,
  kElementAny = 0,  // anything on the list of known types
};
// F32, F16 or BF16.
Element element_of(uint32_t perch_type);

struct TensorWant {
  const char* function = "";
  const char* argument = "";
  uint32_t elements = kElementAny;
  const int64_t* shape = nullptr;  // ndim entries, -1 = any
  int32_t ndim = 0;
  bool written = false;      // y: refuse read-only
  bool row_strided = false;  // rows may lie further apart than they are long
  uint32_t align = 0;        // bytes; 0 = the element's size
  perch_device device = {kDLCPU, 0};
};

// A checked tensor with everything filled in: strides never null, byte_offset folded in, strides of
// dimensions of size 1 made regular. Points into itself, so it is not copied.
struct NormalTensor {
  NormalTensor() = default;
  NormalTensor(const NormalTensor&) = delete;
  NormalTensor& operator=(const NormalTensor&) = delete;

  DLTensor tensor{};
  int64_t shape[8] = {};
  int64_t strides[8] = {};
  uint64_t begin = 0;  // address range [begin, end) of the elements
  uint64_t end = 0;
};

Status check_tensor(const DLTensor* tensor, uint64_t flags, const TensorWant& want,
                    NormalTensor* out);

inline bool overlaps(const NormalTensor& a, const NormalTensor& b) {
  return a.begin < b.end && b.begin < a.end;
}

// "bfloat16", "uint8", "float4_e2m1fn(code 17, bits 4, lanes 2)"
std::string print_dtype(DLDataType dtype);

}  // namespace perch
