// The shard index reader. What it takes must not lead out of the index's folder.
#include <string>

#include "checkpoint/shard_index.h"
#include "fuzz.h"
#include "mutate.h"

namespace perch::fuzz {
namespace {

constexpr std::string_view kWords[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ":",
                                       ",",
                                       "\"",
                                       "null",
                                       "true",
                                       "0",
                                       "1",
                                       "-1",
                                       "1e2",
                                       "\\u0061",
                                       "\\ud800",
                                       " ",
                                       "\"weight_map\":",
                                       "\"metadata\":",
                                       "\"a\":",
                                       "\"b\"",
                                       ".",
                                       "..",
                                       "/",
                                       "x.safetensors"};

bool is_plain(const std::string& name) {
  return !name.empty() && name != "." && name.find("..") == std::string::npos &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

void fuzz_shard_index(Bytes bytes) {
  const Result<ShardIndex> index = parse_shard_index(text_of(bytes), "fuzz.json");
  if (!index.ok()) {
    PERCH_FUZZ_CHECK(index.status().message().rfind("fuzz.json: ", 0) == 0);
    return;
  }
  accept();
  PERCH_FUZZ_CHECK(!index->weight_map.empty());
  std::vector<bool> used(index->files.size(), false);
  for (const auto& [tensor, file] : index->weight_map) {
    PERCH_FUZZ_CHECK(file >= 0 && static_cast<size_t>(file) < used.size());
    used[static_cast<size_t>(file)] = true;
  }
  for (size_t i = 0; i < used.size(); ++i) {
    PERCH_FUZZ_CHECK(used[i] && is_plain(index->files[i]));
  }
  PERCH_FUZZ_BUG(index->files[0][0] == '.');
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TEXT_TARGET(shard_index, perch::fuzz::fuzz_shard_index, perch::fuzz::kWords);
