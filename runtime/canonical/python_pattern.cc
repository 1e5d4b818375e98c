#include "canonical/python_pattern.h"

#include <fmt/format.h>

#include <bitset>
#include <cctype>
#include <optional>
#include <vector>

namespace perch {
namespace {

constexpr size_t kPatternMax = 1000;
constexpr size_t kTextMax = 511;
constexpr int kDepthMax = 32;
constexpr int kRepeatMax = 1000;
// Of one match. Patterns in the field take some tens; a step costs at most the text's length.
constexpr int kStepsMax = 20000;
constexpr int kNoLimit = -1;

using Bytes = std::bitset<256>;
using Positions = std::bitset<kTextMax + 1>;

enum class Kind {
  kByte,
  kSequence,
  kEither,
  kRepeat,
  kBegin,
  kEnd,
  kVeryEnd,
  kWordEdge,
  kNoWordEdge,
  kAhead,
  kNotAhead
};

struct Node {
  Kind kind = Kind::kSequence;
  Bytes bytes;                   // kByte
  std::vector<size_t> children;  // indices
  int low = 0;                   // kRepeat
  int high = 0;
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

Bytes one_byte(char c) {
  Bytes bytes;
  bytes.set(static_cast<unsigned char>(c));
  return bytes;
}

// The set of \d, \w or \s, of its complement for a capital; none for another letter.
Bytes class_of(char letter) {
  Bytes bytes;
  const int lower = std::tolower(static_cast<unsigned char>(letter));
  for (int c = 0; c < 128; ++c) {
    const bool in = lower == 'd'   ? std::isdigit(c) != 0
                    : lower == 'w' ? is_word(static_cast<char>(c))
                    : lower == 's' ? std::isspace(c) != 0
                                   : false;
    if (in) bytes.set(static_cast<size_t>(c));
  }
  return lower != letter && bytes.any() ? ~bytes : bytes;
}

// ---- Pattern to nodes

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  // The nodes; the last one is the whole pattern.
  Result<std::vector<Node>> parse() {
    if (text_.size() > kPatternMax) return refuse("at most 1000 bytes");
    PERCH_ASSIGN_OR_RETURN(const size_t root, parse_either(0));
    if (at_ < text_.size()) return refuse("each ) to have its (");
    nodes_.push_back({Kind::kSequence, {}, {root}, 0, 0});
    return std::move(nodes_);
  }

 private:
  Status refuse(const std::string& want) const {
    const bool cut = text_.size() > 60;
    return unsupported(fmt::format("got the pattern \"{}{}\"; want {}", text_.substr(0, 60),
                                   cut ? "..." : "", want));
  }
  bool next_is(std::string_view text) const { return text_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  size_t add(Kind kind, std::vector<size_t> children = {}) {
    nodes_.push_back({kind, {}, std::move(children), 0, 0});
    return nodes_.size() - 1;
  }
  size_t add(const Bytes& bytes) {
    nodes_.push_back({Kind::kByte, bytes, {}, 0, 0});
    return nodes_.size() - 1;
  }

  Result<size_t> parse_either(int depth) {
    if (depth > kDepthMax) return refuse("groups nested at most 32 deep");
    std::vector<size_t> choices;
    do {
      std::vector<size_t> parts;
      while (at_ < text_.size() && text_[at_] != ')' && text_[at_] != '|') {
        PERCH_ASSIGN_OR_RETURN(const size_t atom, parse_atom(depth));
        PERCH_ASSIGN_OR_RETURN(const size_t part, parse_repeat(atom));
        parts.push_back(part);
      }
      choices.push_back(add(Kind::kSequence, std::move(parts)));
    } while (take("|"));
    return choices.size() == 1 ? choices[0] : add(Kind::kEither, std::move(choices));
  }

  Result<size_t> parse_atom(int depth) {
    const char c = text_[at_++];
    switch (c) {
      case '.':
        return add(~one_byte('\n'));
      case '^':
        return add(Kind::kBegin);
      case '$':
        return add(Kind::kEnd);
      case '[':
        return parse_class();
      case '(':
        return parse_group(depth);
      case '\\':
        return parse_escape();
      case '*':
      case '+':
      case '?':
        return refuse(fmt::format("something before {}", c));
      default:
        return add(one_byte(c));
    }
  }

  Result<size_t> parse_group(int depth) {
    Kind kind = Kind::kSequence;
    if (take("?=")) {
      kind = Kind::kAhead;
    } else if (take("?!")) {
      kind = Kind::kNotAhead;
    } else if (next_is("?P<")) {
      const size_t end = text_.find('>', at_);
      if (end == std::string_view::npos) return refuse("(?P<name> to end with >");
      at_ = end + 1;
    } else if (!take("?:") && next_is("?")) {
      return refuse("no (? but (?: (?= (?! and (?P<name>");
    }
    PERCH_ASSIGN_OR_RETURN(const size_t inner, parse_either(depth + 1));
    if (!take(")")) return refuse("each ( to have its )");
    return add(kind, {inner});
  }

  // The byte that an escape stands for; a letter or digit that stands for nothing here is refused.
  Result<char> parse_escaped_byte(char c) const {
    constexpr std::string_view kNames = "ntrfva";
    constexpr std::string_view kBytes = "\n\t\r\f\v\a";
    const size_t named = kNames.find(c);
    if (named != std::string_view::npos) return kBytes[named];
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) return c;
    return refuse(fmt::format("no escape \\{}", c));
  }

  Result<size_t> parse_escape() {
    if (at_ == text_.size()) return refuse("something after the last backslash");
    const char c = text_[at_++];
    if (c == 'A') return add(Kind::kBegin);
    if (c == 'Z') return add(Kind::kVeryEnd);
    if (c == 'b') return add(Kind::kWordEdge);
    if (c == 'B') return add(Kind::kNoWordEdge);
    if (const Bytes set = class_of(c); set.any()) return add(set);
    PERCH_ASSIGN_OR_RETURN(const char byte, parse_escaped_byte(c));
    return add(one_byte(byte));
  }

  // One member of [...]: a byte, which may begin a range, or a set, which may not.
  Result<std::optional<char>> parse_member(Bytes* set) {
    const char c = text_[at_++];
    if (c == '[') return refuse("\\[ for a [ between [ and ]");
    if (c != '\\') return std::optional<char>(c);
    if (at_ == text_.size()) return refuse("something after the last backslash");
    const char escaped = text_[at_++];
    *set |= class_of(escaped);
    if (class_of(escaped).any()) return std::optional<char>();
    PERCH_ASSIGN_OR_RETURN(const char byte, parse_escaped_byte(escaped));
    return std::optional<char>(byte);
  }

  Result<size_t> parse_class() {
    Bytes set;
    const bool inverted = take("^");
    for (bool first = true; first || !next_is("]"); first = false) {
      if (at_ == text_.size()) return refuse("each [ to have its ]");
      PERCH_ASSIGN_OR_RETURN(const std::optional<char> low, parse_member(&set));
      const bool range = low && next_is("-") && !next_is("-]") && at_ + 1 < text_.size();
      if (!low) continue;
      std::optional<char> high = low;
      if (range) {
        ++at_;
        PERCH_ASSIGN_OR_RETURN(high, parse_member(&set));
        if (!high || *high < *low) return refuse("ranges from a lower to a higher character");
      }
      for (int c = *low; c <= *high; ++c) set |= one_byte(static_cast<char>(c));
    }
    ++at_;
    return add(inverted ? ~set : set);
  }

  // {2} {2,} {,3} {2,3}; anything else in braces is text.
  bool parse_counts(int* low, int* high) {
    const size_t end = text_.find('}', at_);
    if (!next_is("{") || end == std::string_view::npos) return false;
    const std::string_view inner = text_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = inner.find(',');
    const auto number = [](std::string_view digits, int absent) {
      if (digits.empty()) return absent;
      int value = 0;
      for (const char c : digits) {
        if (c < '0' || c > '9') return -2;
        value = std::min(value * 10 + (c - '0'), kRepeatMax + 1);
      }
      return value;
    };
    const int from = number(inner.substr(0, comma), comma == std::string_view::npos ? -2 : 0);
    const int to =
        comma == std::string_view::npos ? from : number(inner.substr(comma + 1), kNoLimit);
    if (from < 0 || to < kNoLimit) return false;
    *low = from;
    *high = to;
    at_ = end + 1;
    return true;
  }

  Result<size_t> parse_repeat(size_t atom) {
    int low = 0;
    int high = kNoLimit;
    if (take("+")) {
      low = 1;
    } else if (take("?")) {
      high = 1;
    } else if (!take("*") && !parse_counts(&low, &high)) {
      return atom;
    }
    if (low > kRepeatMax || high > kRepeatMax) return refuse("at most 1000 repeats");
    if (high != kNoLimit && high < low) return refuse("{low,high} with low at most high");
    take("?");  // lazy: which match is found differs, whether one is does not
    int unused = 0;
    if (next_is("*") || next_is("+") || next_is("?") || parse_counts(&unused, &unused)) {
      return refuse("one repeat after another only with ( )");
    }
    const size_t node = add(Kind::kRepeat, {atom});
    nodes_[node].low = low;
    nodes_[node].high = high;
    return node;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<Node> nodes_;
};

// ---- Nodes over a text

class Matcher {
 public:
  Matcher(const std::vector<Node>& nodes, std::string_view text) : nodes_(nodes), text_(text) {}

  bool exhausted() const { return steps_ > kStepsMax; }

  // Where matches of the node can end that begin at one of `from`.
  Positions run(size_t index, const Positions& from) {
    if (from.none() || ++steps_ > kStepsMax) return {};
    const Node& node = nodes_[index];
    Positions to;
    switch (node.kind) {
      case Kind::kByte:
        return step(node.bytes, from);
      case Kind::kSequence:
        to = from;
        for (const size_t child : node.children) to = run(child, to);
        return to;
      case Kind::kEither:
        for (const size_t child : node.children) to |= run(child, from);
        return to;
      case Kind::kRepeat:
        return repeat(node, from);
      default:
        for (size_t at = 0; at <= text_.size(); ++at) {
          if (from[at] && holds(node, at)) to.set(at);
        }
        return to;
    }
  }

 private:
  bool in(const Bytes& bytes, size_t at) const {
    return bytes[static_cast<unsigned char>(text_[at])];
  }

  Positions step(const Bytes& bytes, const Positions& from) const {
    Positions to;
    for (size_t at = 0; at < text_.size(); ++at) {
      if (from[at] && in(bytes, at)) to.set(at + 1);
    }
    return to;
  }

  Positions repeat(const Node& node, const Positions& from) {
    const size_t child = node.children[0];
    Positions reached = from;
    for (int i = 0; i < node.low && reached.any() && !exhausted(); ++i) {
      reached = run(child, reached);
    }
    // Any number of one byte is the common case, `.*`: one sweep.
    if (node.high == kNoLimit && nodes_[child].kind == Kind::kByte) {
      for (size_t at = 0; at < text_.size(); ++at) {
        if (reached[at] && in(nodes_[child].bytes, at)) reached.set(at + 1);
      }
      return reached;
    }
    // A position reached before, with fewer repeats, can lead to nothing new.
    Positions newest = reached;
    for (int i = node.low; (node.high == kNoLimit || i < node.high) && newest.any(); ++i) {
      newest = run(child, newest) & ~reached;
      reached |= newest;
    }
    return reached;
  }

  // Of the kinds that take no byte.
  bool holds(const Node& node, size_t at) {
    const bool before = at > 0 && is_word(text_[at - 1]);
    const bool after = at < text_.size() && is_word(text_[at]);
    Positions here;
    here.set(at);
    switch (node.kind) {
      case Kind::kBegin:
        return at == 0;
      case Kind::kEnd:
        return at == text_.size() || (at + 1 == text_.size() && text_[at] == '\n');
      case Kind::kVeryEnd:
        return at == text_.size();
      case Kind::kWordEdge:
        return before != after;
      case Kind::kNoWordEdge:
        return before == after && !text_.empty();  // as python before 3.14
      case Kind::kAhead:
        return run(node.children[0], here).any();
      default:
        return run(node.children[0], here).none();
    }
  }

  const std::vector<Node>& nodes_;
  std::string_view text_;
  int steps_ = 0;
};

}  // namespace

Result<bool> python_match(std::string_view pattern, std::string_view text) {
  PERCH_ASSIGN_OR_RETURN(const std::vector<Node> nodes, Parser(pattern).parse());
  if (text.size() > kTextMax) {
    return unsupported(
        fmt::format("got a name of {} bytes to match with the pattern \"{}\"; want "
                    "at most {}",
                    text.size(), pattern.substr(0, 60), kTextMax));
  }
  Matcher matcher(nodes, text);
  Positions start;
  start.set(0);
  const bool matches = matcher.run(nodes.size() - 1, start).any();
  if (!matcher.exhausted()) return matches;
  return unsupported(
      fmt::format("got the pattern \"{}\", which takes more than {} steps on a name "
                  "of {} bytes; want a simpler one",
                  pattern.substr(0, 60), kStepsMax, text.size()));
}

}  // namespace perch
