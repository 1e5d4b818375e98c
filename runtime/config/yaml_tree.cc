// See yaml_tree.h: yaml-cpp's events -> tree. Part of step 1, config.
//
// "Why events and not YAML::Node?" They stop at the first level too deep, say where an alias
// stands, tell quoted from plain scalars, and leave no graph that a hostile file can make endless.
#include "config/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <cstdint>
#include <new>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "config/text.h"

namespace perch {
namespace {

constexpr size_t kDepthMax = 32;
constexpr uint64_t kExpandedBytesMax = uint64_t{64} << 20;
constexpr uint64_t kNodeBytes = 64;  // what a node counts beside its text

// Leaves yaml-cpp's parser from inside an event; caught in parse_yaml().
struct Refused {
  Status status;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& file, YamlTree& tree) : file_(file), tree_(tree) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) refuse(mark, "got a second document; want one");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (wants_key()) refuse(mark, "got an empty key; want a name");
    const uint64_t before = charge(mark, kNodeBytes);
    YamlNode* node = new_node(mark, YamlNode::Kind::kNull);
    attach(mark, node);
    remember(anchor, node, before);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) refuse(mark, "got an alias inside its own anchor; want no cycle");
    if (wants_key()) refuse(mark, "got an alias as a key; want a name");
    charge(mark, found->second.bytes);
    attach(mark, found->second.node);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_tag(mark, tag);
    const uint64_t before = charge(mark, kNodeBytes + value.size());
    refuse_control_characters(mark, value);
    if (wants_key()) {
      begin_entry(mark, value, tag == "?");
      return;
    }
    YamlNode* node = new_node(mark, YamlNode::Kind::kScalar);
    node->text = value;
    node->quoted = tag == "!";
    attach(mark, node);
    remember(anchor, node, before);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(mark, tag, anchor, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    YamlNode* node = nullptr;
    YAML::anchor_t anchor = 0;
    uint64_t bytes_before = 0;
    bool wants_key = false;
    std::unordered_map<std::string, YAML::Mark> keys;  // where each stands
  };
  struct Anchored {
    const YamlNode* node = nullptr;
    uint64_t bytes = 0;  // with all below
  };

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& why) const {
    const std::string key = path();
    throw Refused{invalid_argument(position(file_, mark.line + 1, mark.column + 1) + ": " + key +
                                   (key.empty() ? "" : ": ") + why)};
  }

  // The key being read, from the top: "select.rules[2].use".
  std::string path() const {
    std::string path;
    for (const Frame& frame : frames_) {
      if (frame.node->kind == YamlNode::Kind::kList) {
        path += fmt::format("[{}]", frame.node->children.size());
      } else if (!frame.wants_key) {
        path += (path.empty() ? "" : ".") + frame.node->children.back().key;
      }
    }
    return path.size() > 200 ? "..." + path.substr(path.size() - 100) : path;
  }

  bool wants_key() const { return !frames_.empty() && frames_.back().wants_key; }

  // Counts what the file expands to; returns the count before.
  uint64_t charge(const YAML::Mark& mark, uint64_t bytes) {
    const uint64_t before = bytes_;
    bytes_ += bytes;
    if (bytes_ > kExpandedBytesMax) {
      refuse(mark, "got aliases that expand to more than 64 MiB; want fewer");
    }
    return before;
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag.empty() || tag == "?" || tag == "!") return;
    refuse(mark, "got the tag " + quote(tag) + "; want no tags (quote a value to make it text)");
  }

  void refuse_control_characters(const YAML::Mark& mark, const std::string& value) const {
    const auto bad = find_non_text(value);
    if (!bad && value.find_first_of("\t\n\r") == std::string::npos) return;
    refuse(mark, "got " + quote(value) + "; want one line of text without control characters");
  }

  void begin_entry(const YAML::Mark& mark, const std::string& key, bool plain) {
    Frame& frame = frames_.back();
    if (plain && key == "<<") {
      refuse(mark, "got the merge key <<; want each key written out");
    }
    const auto [first, is_new] = frame.keys.emplace(key, mark);
    frame.node->children.push_back({key, mark.line + 1, mark.column + 1, nullptr});
    frame.wants_key = false;
    if (is_new) return;
    refuse(mark, fmt::format("got the key a second time (first on line {}); want it once",
                             first->second.line + 1));
  }

  YamlNode* new_node(const YAML::Mark& mark, YamlNode::Kind kind) {
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return tree_.add(std::move(node));
  }

  void attach(const YAML::Mark& mark, const YamlNode* node) {
    if (frames_.empty()) {
      tree_.set_root(node);
      return;
    }
    Frame& frame = frames_.back();
    if (frame.node->kind == YamlNode::Kind::kList) {
      frame.node->children.push_back({"", mark.line + 1, mark.column + 1, node});
    } else {
      frame.node->children.back().node = node;
      frame.wants_key = true;
    }
  }

  void remember(YAML::anchor_t anchor, const YamlNode* node, uint64_t bytes_before) {
    if (anchor != 0) anchors_[anchor] = {node, bytes_ - bytes_before};
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlNode::Kind kind) {
    refuse_tag(mark, tag);
    if (wants_key()) refuse(mark, "got a list or map as a key; want a name");
    if (frames_.size() == kDepthMax) {
      refuse(mark, fmt::format("got more than {} levels; want at most that", kDepthMax));
    }
    Frame frame;
    frame.bytes_before = charge(mark, kNodeBytes);
    frame.node = new_node(mark, kind);
    frame.anchor = anchor;
    frame.wants_key = kind == YamlNode::Kind::kMap;
    frames_.push_back(std::move(frame));
  }

  void close() {
    const Frame frame = std::move(frames_.back());
    frames_.pop_back();
    YAML::Mark mark;
    mark.line = frame.node->line - 1;
    mark.column = frame.node->column - 1;
    attach(mark, frame.node);
    remember(frame.anchor, frame.node, frame.bytes_before);
  }

  const std::string& file_;
  YamlTree& tree_;
  std::vector<Frame> frames_;
  std::unordered_map<YAML::anchor_t, Anchored> anchors_;
  uint64_t bytes_ = 0;
  int documents_ = 0;
};

Status check_text(std::string_view text, const std::string& file) {
  if (text.size() > kYamlBytesMax) {
    return invalid_argument(fmt::format("{}: size: got {} bytes; want at most {} (1 MiB)", file,
                                        text.size(), kYamlBytesMax));
  }
  const auto bad = find_non_text(text);
  if (!bad) return {};
  int line = 1;
  int column = 1;
  for (const char c : text.substr(0, *bad)) {
    column = c == '\n' ? 1 : column + 1;
    line += c == '\n' ? 1 : 0;
  }
  return invalid_argument(fmt::format("{}: got the byte 0x{:02x}; want UTF-8 text",
                                      position(file, line, column),
                                      static_cast<unsigned char>(text[*bad])));
}

Status not_yaml(const YAML::Exception& error, const std::string& file) {
  const std::string at =
      error.mark.is_null() ? file : position(file, error.mark.line + 1, error.mark.column + 1);
  return invalid_argument(at + ": not valid YAML: " + error.msg);
}

}  // namespace

Result<YamlTree> parse_yaml(std::string_view text, const std::string& file) {
  PERCH_RETURN_IF_ERROR(check_text(text, file));
  try {
    YamlTree tree;
    tree.set_root(tree.add({}));
    TreeBuilder builder(file, tree);
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
    return Result<YamlTree>(std::move(tree));
  } catch (const Refused& refused) {
    return refused.status;
  } catch (const YAML::Exception& error) {
    return not_yaml(error, file);
  } catch (const std::bad_alloc&) {
    return Status(PERCH_E_OUT_OF_MEMORY, file + ": not enough memory to read it");
  } catch (const std::exception& error) {
    return invalid_argument(file + ": not valid YAML: " + error.what());
  }
}

}  // namespace perch
