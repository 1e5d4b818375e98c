// Typed reading of a YamlTree: each function wants one shape and says what it got instead, as
// "file:line:column: key: got ...; want ...". Used by yaml_reader.cc and rule_reader.cc, inside
// step 1, config.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "config/config.h"
#include "config/yaml_tree.h"

namespace perch {

// One node and how messages name it. Borrows the tree and the file name.
struct YamlValue {
  const std::string* file = nullptr;
  const YamlNode* node = nullptr;
  int line = 1;
  int column = 1;
  std::string key;  // from the top: "select.rules[2].use"

  std::string where() const;
};

// "<where>: <key>: got <got>; want <want>".
Status wrong_value(const YamlValue& value, const std::string& got, const std::string& want);
// The same with what `value` is in place of `got`.
Status wrong_type(const YamlValue& value, const std::string& want);

// A key of a map, and who reads what stands under it.
struct YamlField {
  std::string_view key;
  std::function<Status(const YamlValue&)> read;
};
// Calls the readers in the order of the file. A key that no field has is refused with the nearest.
Status read_map(const YamlValue& value, std::initializer_list<YamlField> fields);
// The entries of a map with free keys, or the items of a list.
Result<std::vector<YamlValue>> read_entries(const YamlValue& value, YamlNode::Kind kind,
                                            const std::string& want);
// The last part of the key of an entry.
std::string_view entry_name(const YamlValue& map, const YamlValue& entry);

// Text: quoted, or plain and like neither a boolean nor a number. Never empty.
Result<std::string> read_text(const YamlValue& value, const std::string& want);
// Plain `true` or `false`, nothing else.
Result<bool> read_bool(const YamlValue& value);
Result<int64_t> read_int(const YamlValue& value, int64_t least, int64_t most);
// The index in `names` of one of them, spelled exactly.
Result<size_t> read_choice(const YamlValue& value, std::span<const std::string_view> names);
// A list of capabilities, in any case.
Result<perch_caps> read_caps(const YamlValue& value);
// A map of free keys to text, numbers, true or false, as a backend gets options.
Result<Options> read_options(const YamlValue& value);
// A list of distinct backend ids.
Result<std::vector<std::string>> read_ids(const YamlValue& value);

// [a-z][a-z0-9-]*, at most 63 bytes.
bool is_backend_id(std::string_view text);

// setting = result, with the place of `value` as its origin; or the error.
template <class T>
Status assign(const YamlValue& value, Setting<T>& setting, Result<T> result) {
  if (!result.ok()) return result.status();
  setting = {std::move(result.value()), {value.where()}};
  return {};
}

}  // namespace perch
