// See text.h. Part of step 1, config.
#include "config/text.h"

#include <fmt/format.h>

namespace perch {
namespace {

constexpr size_t kShownBytes = 60;

// Length of the UTF-8 character at `at` (RFC 3629: no surrogates, no overlong forms, nothing above
// U+10FFFF), or 0.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() - at < length) return 0;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(at + 1) < low || byte(at + 1) > high) return 0;
  for (size_t i = at + 2; i < at + length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  return length;
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7F;
}

}  // namespace

std::optional<size_t> find_non_text(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const char c = text[at];
    if (length == 0) return at;
    if (is_control(c) && c != '\t' && c != '\n' && c != '\r') return at;
    at += length;
  }
  return std::nullopt;
}

std::string quote(std::string_view text) {
  std::string shown = "\"";
  size_t at = 0;
  while (at < text.size() && at < kShownBytes) {
    const size_t length = utf8_length(text, at);
    if (length == 0 || is_control(text[at])) {
      shown += '?';
      ++at;
    } else {
      shown += text.substr(at, length);
      at += length;
    }
  }
  return shown + (at < text.size() ? "...\"" : "\"");
}

std::string one_of(std::span<const std::string_view> names) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? " or " : ", ";
    list += names[i];
  }
  return list;
}

std::string position(const std::string& file, int line, int column) {
  return fmt::format("{}:{}:{}", file, line, column);
}

}  // namespace perch
