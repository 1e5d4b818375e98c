// The layout of every ABI struct as data: for perch_abi_describe, the frozen layout file, and rule
// R6 (a field that a backend's headers do not have must not be sent to it silently).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace perch {

struct AbiField {
  const char* name;
  uint32_t offset;
  uint32_t size;
};

struct AbiStruct {
  const char* name;
  uint32_t size;
  std::vector<AbiField> fields;
};

std::span<const AbiStruct> abi_structs();

// The first field of `object` (a struct called `name`, of its full size) that starts at or beyond
// `known_size` and is not zero; nullopt when a reader of known_size bytes misses nothing.
std::optional<std::string> unknown_field(std::string_view name, const void* object,
                                         uint32_t known_size);

// {"major":1,"minor":0,"structs":[{"name","size","fields":[{"name","offset","size"}]}]}
std::string abi_layout_json();
// One line per struct and field, for abi/<version>/layout.txt.
std::string abi_layout_text();

}  // namespace perch
