// YAML text -> a plain tree in which every node knows its line and column.
//
// What is refused here: text that is not UTF-8 or holds control characters, more than 1 MiB, more
// than 32 levels, aliases that expand to more than 64 MiB or contain themselves, explicit tags,
// merge keys, keys given twice, keys that are not scalars, a second document. Not a schema: that is
// yaml_reader.h. yaml_tree.cc is the one file that knows the YAML library, and no exception of it
// leaves that file.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace perch {

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Child {
    std::string key;  // maps
    int line = 0;     // of the key, or of the list's item (for an alias: where it is used)
    int column = 0;
    const YamlNode* node = nullptr;
  };

  Kind kind = Kind::kNull;
  bool quoted = false;  // a scalar in quotes or a block: text, whatever it looks like
  std::string text;     // of a scalar, one line without control characters
  int line = 1;         // counted from 1, in bytes
  int column = 1;
  std::vector<Child> children;
};

// Owns the nodes. Aliases share their anchor's node, so the tree is read-only.
class YamlTree {
 public:
  YamlTree() = default;
  YamlTree(YamlTree&&) = default;
  YamlTree& operator=(YamlTree&&) = default;
  YamlTree(const YamlTree&) = delete;
  YamlTree& operator=(const YamlTree&) = delete;

  // Of kind kNull where the file is empty. Valid as long as this object or one it was moved to.
  const YamlNode& root() const { return *root_; }

  YamlNode* add(YamlNode node) {
    nodes_.push_back(std::move(node));
    return &nodes_.back();
  }
  void set_root(const YamlNode* root) { root_ = root; }

 private:
  std::deque<YamlNode> nodes_;
  const YamlNode* root_ = nullptr;
};

constexpr size_t kYamlBytesMax = size_t{1} << 20;

// `file` is the name to put in front of messages. INVALID_ARGUMENT on everything refused above.
Result<YamlTree> parse_yaml(std::string_view text, const std::string& file);

}  // namespace perch
