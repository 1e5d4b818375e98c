// A named tensor as it stands in a checkpoint file: bytes, a storage dtype and a shape.
//
// Not a DLPack tensor and not yet a weight: what the bytes mean (packed codes, scales, orientation)
// is decided by step 3 (canonical/). This is the output of step 2, checkpoint.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace perch {

class MappedFile;

// The dtypes of the safetensors format, all of them, in the order of the format's own list.
enum class RawDtype {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

struct RawDtypeRow {
  std::string_view name;
  int32_t bits;
};

// Indexed by RawDtype.
inline constexpr std::array<RawDtypeRow, 22> kRawDtypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
static_assert(kRawDtypes[static_cast<size_t>(RawDtype::kU64)].name == "U64");

inline std::string_view raw_dtype_name(RawDtype dtype) {
  return kRawDtypes[static_cast<size_t>(dtype)].name;
}

inline int32_t raw_dtype_bits(RawDtype dtype) {
  return kRawDtypes[static_cast<size_t>(dtype)].bits;
}

// Case-sensitive, as the format is.
inline std::optional<RawDtype> parse_raw_dtype(std::string_view name) {
  for (size_t i = 0; i < kRawDtypes.size(); ++i) {
    if (kRawDtypes[i].name == name) return static_cast<RawDtype>(i);
  }
  return std::nullopt;
}

struct RawTensor {
  std::string name;
  RawDtype dtype = RawDtype::kU8;
  // C order; empty for a scalar. Dimensions of 0 and more, whose product fits int64 with the zeros
  // left out: so does every stride.
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // inside the mapping of `file`, if any; may be unaligned
  int64_t bytes = 0;
  const MappedFile* file = nullptr;  // null: the host's own memory
};

// `name` in double quotes for a message. Names come from strangers: control characters and quotes
// are escaped, so that one name is one line, and only the first 160 bytes are shown.
std::string quoted_name(std::string_view name);

// How a message about a tensor begins: `<path>: tensor "<name>"`, or without a path where it is the
// host's. A checkpoint has many files, and the name alone does not tell which of them to repair.
std::string print_tensor(const RawTensor& tensor);

}  // namespace perch
