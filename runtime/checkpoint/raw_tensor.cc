// How messages of the whole runtime name a tensor of a checkpoint. Part of step 2, checkpoint.
#include "checkpoint/raw_tensor.h"

#include "checkpoint/mapped_file.h"

namespace perch {

std::string quoted_name(std::string_view name) {
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

std::string print_tensor(const RawTensor& tensor) {
  const std::string text = "tensor " + quoted_name(tensor.name);
  return tensor.file == nullptr ? text : tensor.file->path() + ": " + text;
}

}  // namespace perch
