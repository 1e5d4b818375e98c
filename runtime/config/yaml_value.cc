// See yaml_value.h. Part of step 1, config.
#include "config/yaml_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "base/nearest.h"
#include "base/recipe.h"
#include "config/limits.h"
#include "config/text.h"

namespace perch {
namespace {

using Kind = YamlNode::Kind;

// What a plain scalar is to one YAML reader or another. Quoted ones are text.
enum class Look { kText, kBoolean, kNumber };

bool looks_boolean(std::string_view text) {
  constexpr std::array<std::string_view, 8> kWords = {"y",  "n",    "yes",   "no",
                                                      "on", "true", "false", "off"};
  if (text.size() > 5) return false;
  std::string lower;
  for (const char c : text) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return std::find(kWords.begin(), kWords.end(), lower) != kWords.end();
}

bool looks_numeric(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  if (text.find_first_of("0123456789") == std::string_view::npos) return false;
  const char* end = text.data() + text.size();
  if (text.starts_with("0x") || text.starts_with("0o")) {
    uint64_t number = 0;
    return std::from_chars(text.data() + 2, end, number, text[1] == 'x' ? 16 : 8).ptr == end;
  }
  double number = 0;
  return std::from_chars(text.data(), end, number).ptr == end;
}

Look look_of(const YamlNode& node) {
  if (node.quoted) return Look::kText;
  if (looks_boolean(node.text)) return Look::kBoolean;
  return looks_numeric(node.text) ? Look::kNumber : Look::kText;
}

std::string got(const YamlNode& node) {
  if (node.kind == Kind::kNull) return "nothing";
  if (node.kind == Kind::kList) return "a list";
  if (node.kind == Kind::kMap) return "a map";
  const Look look = look_of(node);
  const std::string text = quote(node.text);
  const std::string shown = text.substr(1, text.size() - 2);
  if (look == Look::kBoolean) return shown + ", which YAML may read as a boolean";
  return look == Look::kNumber ? "the number " + shown : text;
}

YamlValue child_of(const YamlValue& parent, const YamlNode::Child& child, size_t index) {
  YamlValue value{parent.file, child.node, child.line, child.column, parent.key};
  if (parent.node->kind == Kind::kList) {
    value.key += fmt::format("[{}]", index);
    return value;
  }
  value.key += (parent.key.empty() ? "" : ".") + child.key;
  if (child.node->kind == Kind::kNull) return value;  // nothing stands nowhere: the key's place
  value.line = child.node->line;
  value.column = child.node->column;
  return value;
}

Status unknown_key(const YamlValue& map, const YamlNode::Child& child,
                   const std::vector<std::string_view>& known) {
  const std::string name = quote(child.key);
  const std::string shown = name.substr(1, name.size() - 2);
  return invalid_argument(fmt::format(
      "{}: {}{}: got an unknown key; want {}{}", position(*map.file, child.line, child.column),
      map.key.empty() ? "" : map.key + ".", shown, one_of(known), did_you_mean(child.key, known)));
}

Result<std::string> read_option(const YamlValue& value) {
  const std::string want = "true, false, a number or text";
  const YamlNode& node = *value.node;
  if (node.kind != Kind::kScalar) return wrong_type(value, want);
  const bool plain_bool = node.text == "true" || node.text == "false";
  if (look_of(node) == Look::kBoolean && !plain_bool) return wrong_type(value, want);
  return node.text;
}

}  // namespace

std::string YamlValue::where() const { return position(*file, line, column); }

Status wrong_value(const YamlValue& value, const std::string& found, const std::string& want) {
  return invalid_argument(fmt::format("{}: {}{}got {}; want {}", value.where(), value.key,
                                      value.key.empty() ? "" : ": ", found, want));
}

Status wrong_type(const YamlValue& value, const std::string& want) {
  return wrong_value(value, got(*value.node), want);
}

Status read_map(const YamlValue& value, std::initializer_list<YamlField> fields) {
  std::vector<std::string_view> known;
  for (const YamlField& field : fields) known.push_back(field.key);
  if (value.node->kind != Kind::kMap) return wrong_type(value, "a map with " + one_of(known));
  for (const YamlNode::Child& child : value.node->children) {
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const YamlField& f) { return f.key == child.key; });
    if (field == fields.end()) return unknown_key(value, child, known);
    PERCH_RETURN_IF_ERROR(field->read(child_of(value, child, 0)));
  }
  return {};
}

Result<std::vector<YamlValue>> read_entries(const YamlValue& value, YamlNode::Kind kind,
                                            const std::string& want) {
  if (value.node->kind != kind) return wrong_type(value, want);
  std::vector<YamlValue> entries;
  for (const YamlNode::Child& child : value.node->children) {
    entries.push_back(child_of(value, child, entries.size()));
  }
  return entries;
}

std::string_view entry_name(const YamlValue& map, const YamlValue& entry) {
  return std::string_view(entry.key).substr(map.key.empty() ? 0 : map.key.size() + 1);
}

Result<std::string> read_text(const YamlValue& value, const std::string& want) {
  const YamlNode& node = *value.node;
  if (node.kind != Kind::kScalar) return wrong_type(value, want);
  if (look_of(node) != Look::kText) {
    return wrong_type(value, want + " (quote it if you mean the text " + quote(node.text) + ")");
  }
  if (node.text.empty()) return wrong_type(value, want);
  if (node.text.size() > kTextBytesMax) {
    return wrong_value(value, fmt::format("{} bytes", node.text.size()),
                       fmt::format("at most {}", kTextBytesMax));
  }
  return node.text;
}

Result<bool> read_bool(const YamlValue& value) {
  const YamlNode& node = *value.node;
  const bool plain = node.kind == Kind::kScalar && !node.quoted;
  if (plain && node.text == "true") return true;
  if (plain && node.text == "false") return false;
  return wrong_type(value, "true or false");
}

Result<int64_t> read_int(const YamlValue& value, int64_t least, int64_t most) {
  const YamlNode& node = *value.node;
  const std::string want = fmt::format("a whole number from {} to {}", least, most);
  if (node.kind != Kind::kScalar || node.quoted) return wrong_type(value, want);
  const char* end = node.text.data() + node.text.size();
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(node.text.data(), end, number);
  if (error != std::errc() || stop != end) return wrong_type(value, want);
  if (number < least || number > most) return wrong_type(value, want);
  return number;
}

Result<size_t> read_choice(const YamlValue& value, std::span<const std::string_view> names) {
  const YamlNode& node = *value.node;
  if (node.kind != Kind::kScalar) return wrong_type(value, one_of(names));
  const auto found = std::find(names.begin(), names.end(), node.text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  return wrong_type(value, one_of(names) + did_you_mean(node.text, names));
}

Result<perch_caps> read_caps(const YamlValue& value) {
  PERCH_ASSIGN_OR_RETURN(const std::vector<YamlValue> items,
                         read_entries(value, Kind::kList, "a list of capabilities"));
  const std::vector<std::string> known = cap_names(PERCH_CAPS_KNOWN);
  const std::vector<std::string_view> names(known.begin(), known.end());
  perch_caps caps = 0;
  for (const YamlValue& item : items) {
    PERCH_ASSIGN_OR_RETURN(const std::string name, read_text(item, one_of(names)));
    const auto cap = parse_cap(name);
    if (!cap) return wrong_type(item, one_of(names) + did_you_mean(name, names));
    if ((caps & *cap) != 0) return wrong_value(item, quote(name) + " a second time", "it once");
    caps |= *cap;
  }
  return caps;
}

Result<Options> read_options(const YamlValue& value) {
  PERCH_ASSIGN_OR_RETURN(const std::vector<YamlValue> entries,
                         read_entries(value, Kind::kMap, "a map of options"));
  Options options;
  for (const YamlValue& entry : entries) {
    const std::string_view name = entry_name(value, entry);
    if (name.empty()) return wrong_value(entry, "an empty key", "the name of an option");
    PERCH_ASSIGN_OR_RETURN(std::string text, read_option(entry));
    options.emplace_back(name, std::move(text));
  }
  return options;
}

Result<std::vector<std::string>> read_ids(const YamlValue& value) {
  const std::string want = "the id of a backend ([a-z][a-z0-9-]*, at most 63 bytes)";
  PERCH_ASSIGN_OR_RETURN(const std::vector<YamlValue> items,
                         read_entries(value, Kind::kList, "a list of backend ids"));
  std::vector<std::string> ids;
  std::set<std::string> seen;
  for (const YamlValue& item : items) {
    PERCH_ASSIGN_OR_RETURN(std::string id, read_text(item, want));
    if (!is_backend_id(id)) return wrong_type(item, want);
    if (!seen.insert(id).second) return wrong_value(item, quote(id) + " a second time", "it once");
    ids.push_back(std::move(id));
  }
  return ids;
}

bool is_backend_id(std::string_view text) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  if (text.empty() || text.size() > 63 || !is_lower(text[0])) return false;
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_lower(c) || (c >= '0' && c <= '9') || c == '-'; });
}

}  // namespace perch
