#include "plugin/clean_text.h"

#include <cstring>
#include <string_view>

namespace perch {
namespace {

// Length of the UTF-8 character that `rest` begins with; 0 when it begins with none.
size_t utf8_length(std::string_view rest) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(rest[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || rest.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Too long for what it says, a surrogate, or beyond U+10FFFF.
  const unsigned char second = byte(1);
  if (lead == 0xE0 && second < 0xA0) return 0;
  if (lead == 0xED && second > 0x9F) return 0;
  if (lead == 0xF0 && second < 0x90) return 0;
  if (lead == 0xF4 && second > 0x8F) return 0;
  return length;
}

}  // namespace

std::string clean_text(const char* text, size_t size_max) {
  std::string clean;
  if (text == nullptr) return clean;
  std::string_view rest(text, strnlen(text, size_max));
  while (!rest.empty()) {
    const size_t length = utf8_length(rest);
    const auto first = static_cast<unsigned char>(rest[0]);
    if (length == 0) {
      clean += '?';
    } else if (first < 0x20 || first == 0x7F) {
      clean += ' ';
    } else {
      clean += rest.substr(0, length);
    }
    rest.remove_prefix(length == 0 ? 1 : length);
  }
  return clean;
}

}  // namespace perch
