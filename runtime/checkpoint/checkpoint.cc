// Finds the files of a checkpoint, maps them and joins their tensors into one sorted list. Part of
// step 2, checkpoint; the formats themselves are read by safetensors.cc and shard_index.cc.
#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace perch {
namespace {

namespace fs = std::filesystem;

// Bounds what a hostile or mistaken JSON file may take; the largest real index is near 20 MB.
constexpr size_t kTextBytesMax = 100'000'000;

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kShardPrefix = "model-";
constexpr std::string_view kSuffix = ".safetensors";

std::string path_in(const std::string& dir, std::string_view name) {
  return (fs::path(dir) / name).string();
}

// True for anything of that name, a dangling link too: opening it then says what is wrong, where
// skipping it would silently choose other weights.
bool has_entry(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

Result<std::string> load_text(const std::string& path) {
  PERCH_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file->bytes();
  if (bytes.size() > kTextBytesMax) {
    return invalid_argument(
        fmt::format("{}: got {} bytes; want at most {}", path, bytes.size(), kTextBytesMax));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Maps `path` as the next file of `checkpoint`; its tensors are returned, not yet added.
Result<std::vector<RawTensor>> load_tensors(Checkpoint& checkpoint, const std::string& path) {
  PERCH_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::open(path));
  PERCH_ASSIGN_OR_RETURN(std::vector<RawTensor> tensors, parse_safetensors(file->bytes(), path));
  for (RawTensor& tensor : tensors) tensor.file = file.get();
  checkpoint.files.push_back(std::move(file));
  return tensors;
}

// Moves the tensors of the next file, `path`, into `checkpoint`.
Status add_file(Checkpoint& checkpoint, const std::string& path) {
  PERCH_ASSIGN_OR_RETURN(std::vector<RawTensor> tensors, load_tensors(checkpoint, path));
  std::move(tensors.begin(), tensors.end(), std::back_inserter(checkpoint.tensors));
  return {};
}

// Of one name, in the order of their files.
void sort_by_name(std::vector<RawTensor>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const RawTensor& a, const RawTensor& b) { return a.name < b.name; });
}

// "3 tensors ignored, ...": one line for a whole shard, since a foreign shard may hold thousands.
std::string ignored_warning(const std::string& path, const std::vector<std::string>& names) {
  constexpr size_t kShownMax = 3;
  std::string shown;
  for (size_t i = 0; i < std::min(names.size(), kShownMax); ++i) {
    shown += (i == 0 ? "" : ", ") + quoted_name(names[i]);
  }
  if (names.size() > kShownMax) shown += ", ...";
  return fmt::format("{}: {} tensors ignored, {} does not place them in this shard: {}", path,
                     names.size(), kShardIndexName, shown);
}

// Adds what the index places in shard number `shard`.
Status add_indexed_shard(Checkpoint& checkpoint, const ShardIndex& index, size_t shard) {
  const std::string path = path_in(checkpoint.dir, index.files[shard]);
  Result<std::vector<RawTensor>> tensors = load_tensors(checkpoint, path);
  if (tensors.status().code() == PERCH_E_NOT_FOUND) {
    return not_found(
        fmt::format("{}: shard not found; want every shard that {} lists", path, kShardIndexName));
  }
  if (!tensors.ok()) return tensors.status();
  std::vector<std::string> ignored;
  for (RawTensor& tensor : *tensors) {
    const auto placed = index.weight_map.find(tensor.name);
    if (placed != index.weight_map.end() && static_cast<size_t>(placed->second) == shard) {
      checkpoint.tensors.push_back(std::move(tensor));
    } else {
      ignored.push_back(std::move(tensor.name));
    }
  }
  if (!ignored.empty()) checkpoint.warnings.push_back(ignored_warning(path, ignored));
  return {};
}

Status add_indexed(Checkpoint& checkpoint) {
  const std::string index_path = path_in(checkpoint.dir, kShardIndexName);
  PERCH_ASSIGN_OR_RETURN(const std::string text, load_text(index_path));
  PERCH_ASSIGN_OR_RETURN(const ShardIndex index, parse_shard_index(text, index_path));
  for (size_t shard = 0; shard < index.files.size(); ++shard) {
    PERCH_RETURN_IF_ERROR(add_indexed_shard(checkpoint, index, shard));
  }
  // Both lists are sorted, and every tensor added is in the map: the first difference is missing.
  sort_by_name(checkpoint.tensors);
  size_t next = 0;
  for (const auto& [name, shard] : index.weight_map) {
    if (next < checkpoint.tensors.size() && checkpoint.tensors[next].name == name) {
      ++next;
      continue;
    }
    return not_found(
        fmt::format("{}: tensor {}: TensorNotFound: not in this shard; want it where {} lists it",
                    path_in(checkpoint.dir, index.files[static_cast<size_t>(shard)]),
                    quoted_name(name), kShardIndexName));
  }
  return {};
}

// The names of `dir` that match model-*.safetensors, and any other *.safetensors, both sorted.
struct ShardNames {
  std::set<std::string> shards;
  std::set<std::string> others;
};

Result<ShardNames> list_shards(const std::string& dir) {
  ShardNames names;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.ends_with(kSuffix)) continue;
    (name.starts_with(kShardPrefix) ? names.shards : names.others).insert(std::move(name));
  }
  if (error) return invalid_argument(dir + ": " + error.message());
  return names;
}

struct ShardNumber {
  int64_t number = 0;
  int64_t count = 0;
  int width = 0;           // digits of the number, zeros in front included
  std::string count_text;  // as written
};

// model-<number>-of-<count>.safetensors, or nullopt for another name.
std::optional<ShardNumber> parse_shard_name(std::string_view name) {
  name.remove_prefix(kShardPrefix.size());
  name.remove_suffix(kSuffix.size());
  constexpr std::string_view kOf = "-of-";
  const size_t of = name.find(kOf);
  if (of == name.npos) return std::nullopt;
  const auto parse_digits = [](std::string_view text, int64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= 0;
  };
  ShardNumber shard{.width = static_cast<int>(of), .count_text = std::string(name.substr(of + 4))};
  if (!parse_digits(name.substr(0, of), shard.number)) return std::nullopt;
  if (!parse_digits(shard.count_text, shard.count)) return std::nullopt;
  return shard;
}

// Without an index the names are all there is to tell that a shard is missing.
Status check_no_gap(const std::string& dir, const std::set<std::string>& shards) {
  std::map<std::string, std::set<int64_t>> numbers;  // by the count as written
  std::map<std::string, ShardNumber> samples;
  for (const std::string& name : shards) {
    const std::optional<ShardNumber> shard = parse_shard_name(name);
    if (!shard) continue;
    numbers[shard->count_text].insert(shard->number);
    samples.try_emplace(shard->count_text, *shard);
  }
  for (const auto& [count_text, present] : numbers) {
    const ShardNumber& sample = samples.at(count_text);
    if (static_cast<int64_t>(present.size()) >= sample.count) continue;
    int64_t missing = present.contains(0) ? 0 : 1;  // a few exporters count from 0
    while (present.contains(missing)) ++missing;
    const std::string name =
        fmt::format("{}{:0{}}-of-{}{}", kShardPrefix, missing, sample.width, count_text, kSuffix);
    return not_found(fmt::format("{}: shard not found; got {} of the {} shards its name counts",
                                 path_in(dir, name), present.size(), sample.count));
  }
  return {};
}

Status add_scanned(Checkpoint& checkpoint) {
  PERCH_ASSIGN_OR_RETURN(const ShardNames names, list_shards(checkpoint.dir));
  if (names.shards.empty()) {
    std::string hint;
    if (!names.others.empty()) {
      hint = "; " + quoted_name(*names.others.begin()) + " can be opened by its own path";
    }
    return not_found(fmt::format("{}: no weights; want {}, {} or model-*.safetensors{}",
                                 checkpoint.dir, kShardIndexName, kSingleName, hint));
  }
  PERCH_RETURN_IF_ERROR(check_no_gap(checkpoint.dir, names.shards));
  for (const std::string& name : names.shards) {
    PERCH_RETURN_IF_ERROR(add_file(checkpoint, path_in(checkpoint.dir, name)));
  }
  sort_by_name(checkpoint.tensors);
  const auto twice =
      std::adjacent_find(checkpoint.tensors.begin(), checkpoint.tensors.end(),
                         [](const RawTensor& a, const RawTensor& b) { return a.name == b.name; });
  if (twice == checkpoint.tensors.end()) return {};
  return invalid_argument(fmt::format("{}: also in {}; want it once, or {} to decide",
                                      print_tensor(*twice), (twice + 1)->file->path(),
                                      kShardIndexName));
}

Status add_weights(Checkpoint& checkpoint) {
  const std::string single = path_in(checkpoint.dir, kSingleName);
  if (has_entry(path_in(checkpoint.dir, kShardIndexName))) return add_indexed(checkpoint);
  if (!has_entry(single)) return add_scanned(checkpoint);
  PERCH_RETURN_IF_ERROR(add_file(checkpoint, single));
  sort_by_name(checkpoint.tensors);
  return {};
}

// Two exports side by side: the choice follows the documented order, but never silently.
Status warn_of_other_weights(Checkpoint& checkpoint) {
  std::set<std::string> used;
  for (const auto& file : checkpoint.files) {
    used.insert(fs::path(file->path()).filename().string());
  }
  PERCH_ASSIGN_OR_RETURN(ShardNames names, list_shards(checkpoint.dir));
  if (names.others.contains(std::string(kSingleName))) names.shards.emplace(kSingleName);
  for (const std::string& name : names.shards) {
    if (used.contains(name)) continue;
    checkpoint.warnings.push_back(fmt::format(
        "{}: ignored, the weights were read from {}", path_in(checkpoint.dir, name),
        has_entry(path_in(checkpoint.dir, kShardIndexName)) ? kShardIndexName : kSingleName));
  }
  return {};
}

Status load_configs(Checkpoint& checkpoint) {
  const std::string config_path = path_in(checkpoint.dir, "config.json");
  Result<std::string> config = load_text(config_path);
  if (config.status().code() == PERCH_E_NOT_FOUND) {
    return not_found(config_path + ": not found; want the model's config beside its weights");
  }
  if (!config.ok()) return config.status();
  checkpoint.config_json = std::move(*config);
  for (const char* name : {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}) {
    const std::string path = path_in(checkpoint.dir, name);
    if (!has_entry(path)) continue;
    PERCH_ASSIGN_OR_RETURN(checkpoint.extra_json[name], load_text(path));
  }
  return {};
}

}  // namespace

Status in_folder(const Checkpoint& checkpoint, const Status& status) {
  const std::string& dir = checkpoint.dir;
  return dir.empty() || status.message().starts_with(dir) ? status : status.with_context(dir);
}

const RawTensor* Checkpoint::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const RawTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

Result<Checkpoint> open_checkpoint(const std::string& dir) {
  std::error_code error;
  const fs::file_status kind = fs::status(dir, error);
  if (!fs::exists(kind)) {
    return not_found(dir + ": not found; want a checkpoint folder or a .safetensors file");
  }
  if (!fs::is_directory(kind)) return open_tensor_file(dir);
  Checkpoint checkpoint;
  checkpoint.dir = dir;
  PERCH_RETURN_IF_ERROR(load_configs(checkpoint));
  PERCH_RETURN_IF_ERROR(add_weights(checkpoint));
  PERCH_RETURN_IF_ERROR(warn_of_other_weights(checkpoint));
  return checkpoint;
}

Result<Checkpoint> open_tensor_file(const std::string& path) {
  Checkpoint checkpoint;
  const fs::path parent = fs::path(path).parent_path();
  checkpoint.dir = parent.empty() ? "." : parent.string();
  PERCH_RETURN_IF_ERROR(add_file(checkpoint, path));
  sort_by_name(checkpoint.tensors);
  return checkpoint;
}

}  // namespace perch
