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

class MappedFile;

struct RawTensor {
  std::string name;
  RawDtype dtype = RawDtype::kU8;
  // C order; empty for a scalar. Dimensions of 0 and more, whose product fits int64 with the zeros
  // left out: so does every stride.
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // inside the mapping of `file`; may be unaligned, so memcpy
  int64_t bytes = 0;
  const MappedFile* file = nullptr;  // that `data` lies in; null for a host's memory
};

// `name` in double quotes for a message. Names come from strangers: control characters and quotes
// are escaped, so that one name is one line, and only the first 160 bytes are shown.
inline std::string quoted_name(std::string_view name) {
  constexpr size_t kShownMax = 160;
  constexpr std::string_view kHex = "0123456789abcdef";
  size_t shown = name.size();
  if (shown > kShownMax) {
    shown = kShownMax;  // then back to the start of a UTF-8 character
    while (shown > 0 && (static_cast<unsigned char>(name[shown]) & 0xC0u) == 0x80u) --shown;
  }
  std::string text = "\"";
  for (const char c : name.substr(0, shown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
  }
  text += '"';
  if (shown < name.size()) text += "... (" + std::to_string(name.size()) + " bytes)";
  return text;
}

// "/model/model.safetensors: "; empty where the host holds the tensor.
std::string file_prefix(const RawTensor& tensor);

// How a message begins that is about one tensor: `/model/model.safetensors: tensor
// "lm_head.weight"`.
std::string tensor_label(const RawTensor& tensor);

}  // namespace perch
