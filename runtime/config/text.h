// Wording of configuration errors: quoting what was found, listing what is wanted, and the check
// that a file is text at all. Used by step 1, config; not a string library.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace perch {

// The offset of the first byte that no configuration may hold: not UTF-8, or a control character
// other than tab, line feed and carriage return.
std::optional<size_t> find_non_text(std::string_view text);

// `text` in double quotes, fit for a message of one line: long text is cut after about 60 bytes,
// control characters and bytes that are not UTF-8 become '?'.
std::string quote(std::string_view text);

// "a", "a or b", "a, b or c".
std::string one_of(std::span<const std::string_view> names);

// "perch.yaml:12:7", counted from 1; the column counts bytes.
std::string position(const std::string& file, int line, int column);

}  // namespace perch
