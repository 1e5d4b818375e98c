// The text of model.safetensors.index.json -> which shard holds which tensor.
//
// Not a reader of shards: it opens nothing. Part of step 2, checkpoint; checkpoint.cc applies it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace perch {

inline constexpr std::string_view kShardIndexName = "model.safetensors.index.json";

struct ShardIndex {
  std::vector<std::string> files;             // each shard once, in the order of first mention
  std::map<std::string, int32_t> weight_map;  // tensor -> index into `files`
};

// Refused: no weight_map or an empty one, a duplicate key, and a shard that is not a plain file
// name (a separator, "..", an absolute path, a NUL): an index must not reach outside its folder.
// The metadata (total_size is advisory and often wrong) and unknown keys are ignored. `path` is for
// messages only.
Result<ShardIndex> parse_shard_index(std::string_view text, const std::string& path);

}  // namespace perch
