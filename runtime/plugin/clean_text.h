// Text that a backend wrote, made fit for logs and JSON.
//
// Not trusted in any way: it may be unterminated, span lines, or be no UTF-8.
#pragma once

#include <cstddef>
#include <string>

namespace perch {

// At most `size_max` bytes of `text`, up to its NUL; control characters become spaces and bytes
// that are not part of a UTF-8 character become '?'. Null reads as "".
std::string clean_text(const char* text, size_t size_max);

}  // namespace perch
