#include "base/abi_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "perch/backend.h"
#include "perch/runtime.h"

namespace perch {

std::span<const AbiStruct> abi_structs() {
  static const std::vector<AbiStruct> kStructs = {
#define STRUCT(type) AbiStruct{#type, sizeof(type), {
#define FIELD(type, field) AbiField{#field, offsetof(type, field), sizeof(type::field)},
#define END_STRUCT(type) \
  }                      \
  }                      \
  ,
#include "base/abi_fields.inc"
#undef STRUCT
#undef FIELD
#undef END_STRUCT
  };
  return kStructs;
}

std::optional<std::string> unknown_field(std::string_view name, const void* object,
                                         uint32_t known_size) {
  const auto* bytes = static_cast<const unsigned char*>(object);
  for (const AbiStruct& type : abi_structs()) {
    if (type.name != name) continue;
    for (const AbiField& field : type.fields) {
      if (field.offset + field.size <= known_size) continue;
      const unsigned char* begin = bytes + field.offset;
      if (std::any_of(begin, begin + field.size, [](unsigned char b) { return b != 0; })) {
        return field.name;
      }
    }
  }
  return std::nullopt;
}

std::string abi_layout_json() {
  nlohmann::ordered_json document = {{"major", PERCH_ABI_MAJOR}, {"minor", PERCH_ABI_MINOR}};
  document["structs"] = nlohmann::ordered_json::array();
  for (const AbiStruct& type : abi_structs()) {
    nlohmann::ordered_json fields = nlohmann::ordered_json::array();
    for (const AbiField& field : type.fields) {
      fields.push_back({{"name", field.name}, {"offset", field.offset}, {"size", field.size}});
    }
    document["structs"].push_back({{"name", type.name}, {"size", type.size}, {"fields", fields}});
  }
  return document.dump();
}

std::string abi_layout_text() {
  std::string text;
  for (const AbiStruct& type : abi_structs()) {
    text += fmt::format("{} size {}\n", type.name, type.size);
    for (const AbiField& field : type.fields) {
      text += fmt::format("  {} offset {} size {}\n", field.name, field.offset, field.size);
    }
  }
  return text;
}

}  // namespace perch
