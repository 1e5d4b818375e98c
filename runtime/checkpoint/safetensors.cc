// The safetensors reader: header length, header JSON, then the layout rules, in the order of the
// reference so that a file with several faults gets the same name for it. Part of step 2,
// checkpoint; the stricter cases are listed in the header.
#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "checkpoint/json_scan.h"

namespace perch {
namespace {

constexpr size_t kLengthBytes = 8;  // the u64 in front of the header

// One tensor as the header claims it, before any rule was checked.
struct Entry {
  std::string name;
  RawDtype dtype = RawDtype::kU8;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

Status tensor_error(const std::string& name, std::string_view error, std::string_view detail) {
  return invalid_argument(fmt::format("tensor {}: {}: {}", quoted_name(name), error, detail));
}

// Builds the entries from the events of the header. Depth 1 holds the tensors, depth 2 the fields
// of one, depth 3 the numbers of a field.
class HeaderReader {
 public:
  explicit HeaderReader(std::map<std::string, std::string>* metadata) : metadata_(metadata) {}

  Status on_event(const JsonEvent& event) {
    if (event.depth == 0) return on_document(event);
    if (event.depth == 1) return on_top(event);
    if (in_metadata_) return on_metadata(event);
    return event.depth == 2 ? on_field(event) : on_number(event);
  }

  std::vector<Entry>& entries() { return entries_; }

  // What was being read, to put in front of a message: empty, or with ": " at the end.
  std::string where() const {
    if (!in_value_) return "";
    return is_metadata() ? "__metadata__: " : fmt::format("tensor {}: ", quoted_name(entry_.name));
  }

 private:
  using Kind = JsonEvent::Kind;
  enum Field : size_t { kDtype, kShape, kOffsets, kUnknown };
  static constexpr std::array<std::string_view, 3> kFieldNames = {"dtype", "shape", "data_offsets"};

  bool is_metadata() const { return entry_.name == "__metadata__"; }

  static Status on_document(const JsonEvent& event) {
    if (event.kind == Kind::kObjectBegin || event.kind == Kind::kObjectEnd) return {};
    return invalid_argument("the header is not an object; want {\"<tensor>\": {...}, ...}");
  }

  Status on_top(const JsonEvent& event) {
    if (event.kind == Kind::kKey) {
      entry_ = Entry();
      entry_.name = std::move(*event.text);
      seen_ = {};
      in_value_ = true;
      return {};
    }
    if (event.kind == Kind::kObjectBegin) {
      in_metadata_ = is_metadata();
      return {};
    }
    if (event.kind == Kind::kObjectEnd && !in_metadata_) PERCH_RETURN_IF_ERROR(finish_entry());
    // Only `null` may stand for absent metadata; an entry as an array is refused on purpose.
    const bool is_absent = event.kind == Kind::kNull && is_metadata();
    if (event.kind != Kind::kObjectEnd && !is_absent) {
      if (is_metadata()) return invalid_argument("not an object of strings");
      return invalid_argument("not an object; want {\"dtype\", \"shape\", \"data_offsets\"}");
    }
    in_metadata_ = false;
    in_value_ = false;
    return {};
  }

  Status on_metadata(const JsonEvent& event) {
    if (event.kind == Kind::kKey) {
      metadata_key_ = std::move(*event.text);
      return {};
    }
    if (event.kind != Kind::kString) {
      return invalid_argument(
          fmt::format("the value of {} is not a string", quoted_name(metadata_key_)));
    }
    if (metadata_ != nullptr) metadata_->emplace(metadata_key_, std::move(*event.text));
    return {};
  }

  Status on_field(const JsonEvent& event) {
    if (event.kind == Kind::kKey) {
      const auto name = std::find(kFieldNames.begin(), kFieldNames.end(), *event.text);
      field_ = static_cast<Field>(name - kFieldNames.begin());
      seen_[field_] = true;
      return {};
    }
    if (field_ == kUnknown) return {};
    if (field_ == kDtype) {
      if (event.kind != Kind::kString) return invalid_argument("dtype is not a string");
      const std::optional<RawDtype> dtype = parse_raw_dtype(*event.text);
      if (!dtype) {
        return invalid_argument(fmt::format(
            "got dtype {}; want one of the format, such as BF16 or U8", quoted_name(*event.text)));
      }
      entry_.dtype = *dtype;
      return {};
    }
    if (event.kind == Kind::kArrayEnd) return field_ == kOffsets ? finish_offsets() : Status();
    return event.kind == Kind::kArrayBegin ? Status() : list_error();
  }

  Status on_number(const JsonEvent& event) {
    if (field_ == kUnknown) return {};
    if (event.kind != Kind::kUnsigned) return list_error();
    (field_ == kShape ? entry_.shape : offsets_).push_back(event.number);
    return {};
  }

  Status list_error() const {
    return invalid_argument(
        fmt::format("{} is not a list of integers from 0 to 2^64-1", kFieldNames[field_]));
  }

  Status finish_offsets() {
    if (offsets_.size() != 2) {
      return invalid_argument(
          fmt::format("got {} data_offsets; want [begin, end]", offsets_.size()));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    offsets_.clear();
    return {};
  }

  Status finish_entry() {
    for (const Field field : {kDtype, kShape, kOffsets}) {
      if (!seen_[field]) return invalid_argument(fmt::format("{} is missing", kFieldNames[field]));
    }
    entries_.push_back(std::move(entry_));
    return {};
  }

  std::map<std::string, std::string>* metadata_;
  std::vector<Entry> entries_;
  Entry entry_;
  Field field_ = kUnknown;
  std::array<bool, 4> seen_ = {};  // by Field
  std::vector<uint64_t> offsets_;  // of the entry being read
  std::string metadata_key_;
  bool in_value_ = false;     // between a top-level key and the end of its value
  bool in_metadata_ = false;  // inside the object under __metadata__
};

// The header text of `file`, with every length checked against the file before it is used.
Result<std::string_view> find_header(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return invalid_argument(fmt::format("HeaderTooSmall: got a file of {} bytes; want at least {}",
                                        file.size(), kLengthBytes));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  }
  if (length > static_cast<uint64_t>(kSafetensorsHeaderBytesMax)) {
    return invalid_argument(fmt::format("HeaderTooLarge: got a header of {} bytes; want at most {}",
                                        length, kSafetensorsHeaderBytesMax));
  }
  const size_t room = file.size() - kLengthBytes;
  if (length > room) {
    return invalid_argument(
        fmt::format("InvalidHeaderLength: got a header of {} bytes; want at most {}, what the file "
                    "of {} bytes holds",
                    length, room, file.size()));
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                                static_cast<size_t>(length));
  if (const auto bad = find_invalid_utf8(header)) {
    return invalid_argument(
        fmt::format("InvalidHeader: got a header that is not UTF-8 at its byte {}", *bad + 1));
  }
  return header;
}

// The bytes that `entry` needs by its shape and dtype.
Result<uint64_t> shape_bytes(const Entry& entry) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  // Zeros are left out of the product, so that it overflows exactly when some order of the dims
  // would, and no stride of a tensor without elements does.
  uint64_t numel = 1;
  bool has_zero = false;
  bool overflow = false;
  for (const uint64_t dim : entry.shape) {
    has_zero |= dim == 0;
    overflow |= dim > kMax;
    overflow |= __builtin_mul_overflow(numel, std::max<uint64_t>(dim, 1), &numel);
  }
  overflow |= numel > kMax;
  if (has_zero) numel = 0;
  uint64_t bits = 0;
  overflow |=
      __builtin_mul_overflow(numel, static_cast<uint64_t>(raw_dtype_bits(entry.dtype)), &bits);
  const auto describe = [&] {
    return fmt::format("got {} [{}]", raw_dtype_name(entry.dtype), fmt::join(entry.shape, ","));
  };
  if (overflow) {
    return tensor_error(
        entry.name, "ValidationOverflow",
        describe() + "; want dims and product without zeros below 2^63, bits below 2^64");
  }
  if (bits % 8 != 0) {
    return tensor_error(entry.name, "MisalignedSlice",
                        fmt::format("{}, {} bits; want whole bytes", describe(), bits));
  }
  return bits / 8;
}

Status check_entry(const Entry& entry, uint64_t previous_end) {
  if (entry.begin != previous_end) {
    return tensor_error(
        entry.name, "InvalidOffset",
        fmt::format("got data_offsets [{},{}]; want begin {} ({})", entry.begin, entry.end,
                    previous_end,
                    previous_end == 0 ? "start of the data" : "end of the previous tensor"));
  }
  if (entry.end < entry.begin) {
    return tensor_error(entry.name, "InvalidOffset",
                        fmt::format("got data_offsets [{},{}]; want end at or after begin",
                                    entry.begin, entry.end));
  }
  PERCH_ASSIGN_OR_RETURN(const uint64_t bytes, shape_bytes(entry));
  if (entry.end - entry.begin != bytes) {
    return tensor_error(entry.name, "TensorInvalidInfo",
                        fmt::format("got {} bytes in data_offsets [{},{}]; want {} for {} [{}]",
                                    entry.end - entry.begin, entry.begin, entry.end, bytes,
                                    raw_dtype_name(entry.dtype), fmt::join(entry.shape, ",")));
  }
  return {};
}

// Sorts `entries` by their data and checks that they cover `data_bytes` exactly.
Status check_layout(std::vector<Entry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(a.begin, a.end, std::string_view(a.name)) <
           std::tuple(b.begin, b.end, std::string_view(b.name));
  });
  uint64_t previous_end = 0;
  for (const Entry& entry : entries) {
    PERCH_RETURN_IF_ERROR(check_entry(entry, previous_end));
    previous_end = entry.end;
  }
  if (previous_end == data_bytes) return {};
  const std::string detail =
      fmt::format("got {} bytes after the header; want {}, the end of {}", data_bytes, previous_end,
                  entries.empty() ? "no tensor" : "the last tensor");
  if (!entries.empty())
    return tensor_error(entries.back().name, "MetadataIncompleteBuffer", detail);
  return invalid_argument("MetadataIncompleteBuffer: " + detail);
}

}  // namespace

Result<std::vector<RawTensor>> parse_safetensors(std::span<const std::byte> file,
                                                 const std::string& path,
                                                 std::map<std::string, std::string>* metadata) {
  const Result<std::string_view> header = find_header(file);
  if (!header.ok()) return header.status().with_context(path);

  HeaderReader reader(metadata);
  const Status scanned =
      scan_json(*header, [&](const JsonEvent& event) { return reader.on_event(event); });
  if (!scanned.ok()) {
    return scanned.with_context(path + ": " + reader.where() + "InvalidHeaderDeserialization");
  }

  const std::span<const std::byte> data = file.subspan(kLengthBytes + header->size());
  std::vector<Entry>& entries = reader.entries();
  if (const Status layout = check_layout(entries, data.size()); !layout.ok()) {
    return layout.with_context(path);
  }
  std::vector<RawTensor> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    tensors.push_back({.name = std::move(entry.name),
                       .dtype = entry.dtype,
                       .shape = {entry.shape.begin(), entry.shape.end()},
                       .data = data.data() + entry.begin,
                       .bytes = static_cast<int64_t>(entry.end - entry.begin)});
  }
  return tensors;
}

}  // namespace perch
