// The shard index reader, on the events of json_scan.h. Part of step 2, checkpoint.
#include "checkpoint/shard_index.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "checkpoint/json_scan.h"
#include "checkpoint/raw_tensor.h"

namespace perch {
namespace {

Status check_shard_name(std::string_view name) {
  const bool is_plain = !name.empty() && name != "." && name.find("..") == name.npos &&
                        name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
  if (is_plain) return {};
  return invalid_argument(fmt::format(
      "got the shard {}; want a file name, without a folder or \"..\"", quoted_name(name)));
}

class IndexReader {
 public:
  Status on_event(const JsonEvent& event) {
    if (event.depth == 0) return on_document(event);
    if (event.depth == 1) return on_top(event);
    return in_map_ ? on_shard(event) : Status();
  }

  ShardIndex& index() { return index_; }

 private:
  using Kind = JsonEvent::Kind;

  static Status on_document(const JsonEvent& event) {
    if (event.kind == Kind::kObjectBegin || event.kind == Kind::kObjectEnd) return {};
    return invalid_argument("the index is not an object; want {\"weight_map\": {...}}");
  }

  Status on_top(const JsonEvent& event) {
    if (event.kind == Kind::kKey) {
      in_map_ = *event.text == "weight_map";
      return {};
    }
    if (!in_map_ || event.kind == Kind::kObjectBegin || event.kind == Kind::kObjectEnd) return {};
    return invalid_argument("weight_map is not an object of tensor name to shard file");
  }

  Status on_shard(const JsonEvent& event) {
    if (event.kind == Kind::kKey) {
      tensor_ = std::move(*event.text);
      return {};
    }
    if (event.kind != Kind::kString) {
      return invalid_argument(
          fmt::format("tensor {}: the shard is not a string", quoted_name(tensor_)));
    }
    const auto [known, is_new] =
        file_numbers_.try_emplace(*event.text, static_cast<int32_t>(index_.files.size()));
    if (is_new) {
      const Status plain = check_shard_name(*event.text);
      if (!plain.ok()) return plain.with_context("tensor " + quoted_name(tensor_));
      index_.files.push_back(*event.text);
    }
    index_.weight_map.emplace(std::move(tensor_), known->second);
    return {};
  }

  ShardIndex index_;
  std::unordered_map<std::string, int32_t> file_numbers_;
  std::string tensor_;
  bool in_map_ = false;
};

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view text, const std::string& path) {
  if (const auto bad = find_invalid_utf8(text)) {
    return invalid_argument(fmt::format("{}: not UTF-8 at byte {}", path, *bad + 1));
  }
  IndexReader reader;
  const Status scanned =
      scan_json(text, [&](const JsonEvent& event) { return reader.on_event(event); });
  if (!scanned.ok()) return scanned.with_context(path);
  if (reader.index().weight_map.empty()) {
    return invalid_argument(path +
                            ": got no weight_map, or an empty one; want at least one tensor");
  }
  return std::move(reader.index());
}

}  // namespace perch
