// JSON text -> a stream of events, for files that come from strangers.
//
// Not a document tree: nothing is kept but the keys of the objects still open, so memory is linear
// in the text and a handler decides what to store. Used inside step 2, checkpoint, by the
// safetensors header and the shard index; include it from a .cc only, it pulls in nlohmann/json.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/raw_tensor.h"

namespace perch {

struct JsonEvent {
  enum class Kind {
    kObjectBegin,
    kObjectEnd,
    kArrayBegin,
    kArrayEnd,
    kKey,
    kString,
    kUnsigned,  // an integer in [0, 2^64); "-0", "1.0" and "1e0" are kOther
    kNull,
    kOther,
  };
  Kind kind = Kind::kOther;
  int depth = 0;  // containers open around the event; a container begins and ends at the same depth
  uint64_t number = 0;          // kUnsigned
  std::string* text = nullptr;  // kKey, kString: valid during the call, may be moved from
};

// The handler's error stops the scan and is what scan_json() returns.
using JsonHandler = std::function<Status(const JsonEvent&)>;

// The offset of the first byte of `text` that is not UTF-8 (RFC 3629: no surrogates, no overlong
// forms, nothing above U+10FFFF), or nullopt.
inline std::optional<size_t> find_invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t at = 0;
  while (at < text.size()) {
    const unsigned lead = byte(at);
    if (lead < 0x80) {
      ++at;
      continue;
    }
    if (lead < 0xC2 || lead > 0xF4) return at;
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (text.size() - at < length) return at;
    // The second byte carries the narrow ranges; the others are plain continuation bytes.
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(at + 1) < low || byte(at + 1) > high) return at;
    for (size_t i = 2; i < length; ++i) {
      if ((byte(at + i) & 0xC0u) != 0x80u) return at;
    }
    at += length;
  }
  return std::nullopt;
}

// The receiver that nlohmann::json::sax_parse() drives. That parser keeps its own stack on the
// heap, so depth costs no machine stack; the limit here bounds the heap as well.
class JsonScanner {
 public:
  // As deep as the reference safetensors reader (serde_json) goes.
  static constexpr int kDepthMax = 127;

  explicit JsonScanner(const JsonHandler& handler) : handler_(handler) {}
  Status status() const { return status_; }

  bool null() { return emit({.kind = JsonEvent::Kind::kNull}); }
  bool boolean(bool) { return emit({}); }
  bool number_integer(int64_t) { return emit({}); }
  bool number_unsigned(uint64_t number) {
    return emit({.kind = JsonEvent::Kind::kUnsigned, .number = number});
  }
  bool number_float(double, const std::string&) { return emit({}); }
  bool string(std::string& text) { return emit({.kind = JsonEvent::Kind::kString, .text = &text}); }
  bool binary(nlohmann::json::binary_t&) { return emit({}); }
  bool start_object(size_t) {
    keys_.emplace_back();
    return open(JsonEvent::Kind::kObjectBegin);
  }
  bool end_object() {
    keys_.pop_back();
    return close(JsonEvent::Kind::kObjectEnd);
  }
  bool start_array(size_t) { return open(JsonEvent::Kind::kArrayBegin); }
  bool end_array() { return close(JsonEvent::Kind::kArrayEnd); }

  // Keys arrive unescaped, so "a" and "\u0061" are one key.
  bool key(std::string& key) {
    if (!keys_.back().insert(key).second) return fail("duplicate key " + quoted_name(key));
    return emit({.kind = JsonEvent::Kind::kKey, .text = &key});
  }

  // The library's own text is not used: it quotes the whole token, which may be 100 MB.
  bool parse_error(size_t position, const std::string& token, const nlohmann::json::exception&) {
    return fail(fmt::format("not JSON at byte {}, near {}", position, quoted_name(token)));
  }

 private:
  bool fail(std::string message) {
    status_ = invalid_argument(std::move(message));
    return false;
  }
  bool emit(JsonEvent event) {
    event.depth = depth_;
    status_ = handler_(event);
    return status_.ok();
  }
  bool open(JsonEvent::Kind kind) {
    if (depth_ == kDepthMax) return fail(fmt::format("nested deeper than {} levels", kDepthMax));
    const bool go_on = emit({.kind = kind});
    ++depth_;
    return go_on;
  }
  bool close(JsonEvent::Kind kind) {
    --depth_;
    return emit({.kind = kind});
  }

  const JsonHandler& handler_;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // one set per open object
  Status status_;
};

// Feeds `text`, valid UTF-8, to `handler`. Refuses what is not JSON (comments, trailing commas, a
// byte order mark, NUL padding), any key twice in one object, and deep nesting. The message names
// the rule, not the file.
inline Status scan_json(std::string_view text, const JsonHandler& handler) try {
  // The library would skip a byte order mark and would take a NUL for the end of the text.
  if (text.starts_with("\xEF\xBB\xBF")) {
    return invalid_argument("starts with a byte order mark; want plain UTF-8");
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return invalid_argument(fmt::format("not JSON at byte {}: a NUL", nul + 1));
  }
  JsonScanner scanner(handler);
  const bool whole = nlohmann::json::sax_parse(text.begin(), text.end(), &scanner);
  if (!whole && scanner.status().ok()) return internal_error("JSON scan stopped without a reason");
  return scanner.status();
} catch (const std::bad_alloc&) {
  return {PERCH_E_OUT_OF_MEMORY,
          fmt::format("out of memory reading {} bytes of JSON", text.size())};
} catch (const std::exception& e) {
  return internal_error(std::string("JSON reader: ") + e.what());
}

}  // namespace perch
