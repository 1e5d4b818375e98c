// Tests of checkpoint folders: which files count, the shard index, messages, mapping. Not about the
// bytes inside one file: safetensors_test.cc. Step 2, checkpoint.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/shard_index.h"

namespace perch {
namespace {

namespace fs = std::filesystem;

// The bytes of a file with one U8 [1] tensor for each letter of `names`, holding that letter plus
// `shift`.
std::string make_shard(const std::string& names, int shift = 0) {
  std::string header = "{", data;
  for (size_t i = 0; i < names.size(); ++i) {
    header += std::string(i == 0 ? "" : ",") + "\"" + names[i] +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
    data += static_cast<char>(names[i] + shift);
  }
  header += "}";
  std::string length(8, '\0');
  const uint64_t size = header.size();
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(size >> (8 * i));
  return length + header + data;
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "perch_checkpoint_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    write("config.json", "{\"model_type\":\"x\"}");
  }
  void TearDown() override { fs::remove_all(dir_); }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  void write_index(const std::string& weight_map) const {
    write("model.safetensors.index.json",
          R"({"metadata":{"total_size":12345},"weight_map":)" + weight_map + "}");
  }
  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  std::string error() const { return open_checkpoint(dir_).status().message(); }

  std::string dir_;
};

std::string names_of(const Checkpoint& checkpoint) {
  std::string names;
  for (const RawTensor& tensor : checkpoint.tensors) names += tensor.name;
  return names;
}

char value_of(const Checkpoint& checkpoint, std::string_view name) {
  const RawTensor* tensor = checkpoint.find(name);
  return tensor == nullptr ? '?' : static_cast<char>(*tensor->data);
}

const std::string kShard1 = "model-00001-of-00002.safetensors";
const std::string kShard2 = "model-00002-of-00002.safetensors";
const std::string kTwoShardMap =
    R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})";

TEST_F(CheckpointTest, SingleFileWithConfigs) {
  write("model.safetensors", make_shard("cab"));
  write("hf_quant_config.json", "{\"q\":1}");
  write("quantize_config.json", "{\"q\":2}");
  write("expect.safetensors", make_shard("az"));
  Result<Checkpoint> opened = open_checkpoint(dir_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Checkpoint checkpoint = std::move(*opened);  // tensors stay valid after a move
  EXPECT_EQ(names_of(checkpoint), "abc");
  EXPECT_EQ(value_of(checkpoint, "a"), 'a');
  EXPECT_EQ(checkpoint.find("z"), nullptr);
  EXPECT_EQ(checkpoint.find(""), nullptr);
  EXPECT_EQ(checkpoint.config_json, "{\"model_type\":\"x\"}");
  const std::map<std::string, std::string> extra = {{"hf_quant_config.json", "{\"q\":1}"},
                                                    {"quantize_config.json", "{\"q\":2}"}};
  EXPECT_EQ(checkpoint.extra_json, extra);
  EXPECT_TRUE(checkpoint.warnings.empty());
}

TEST_F(CheckpointTest, ConfigIsRequiredInAFolderOnly) {
  write("model.safetensors", make_shard("a"));
  fs::remove(path("config.json"));
  EXPECT_EQ(error(),
            path("config.json") + ": not found; want the model's config beside its weights");
  const Result<Checkpoint> file = open_checkpoint(path("model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->config_json, "");
  EXPECT_EQ(file->dir, dir_);
}

TEST_F(CheckpointTest, IndexJoinsShards) {
  write(kShard1, make_shard("a"));
  write(kShard2, make_shard("b"));
  write_index(kTwoShardMap);
  const Result<Checkpoint> checkpoint = open_checkpoint(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(names_of(*checkpoint), "ab");
  EXPECT_EQ(checkpoint->find("b")->file->path(), path(kShard2));
  EXPECT_TRUE(checkpoint->warnings.empty());
}

TEST_F(CheckpointTest, IndexDecidesAndUnlistedTensorsAreAWarning) {
  write(kShard1, make_shard("abc", 0));
  write(kShard2, make_shard("b", 1));
  write_index(kTwoShardMap);
  const Result<Checkpoint> checkpoint = open_checkpoint(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(names_of(*checkpoint), "ab");
  EXPECT_EQ(value_of(*checkpoint, "b"), 'c');  // the one of shard 2
  const std::vector<std::string> want = {
      path(kShard1) +
      ": 2 tensors ignored, model.safetensors.index.json does not place them in "
      "this shard: \"b\", \"c\""};
  EXPECT_EQ(checkpoint->warnings, want);
}

TEST_F(CheckpointTest, ListedTensorAbsentInItsShard) {
  write(kShard1, make_shard("ab"));
  write(kShard2, make_shard("c"));
  write_index(kTwoShardMap);
  EXPECT_EQ(error(), path(kShard2) +
                         ": tensor \"b\": TensorNotFound: not in this shard; want it "
                         "where model.safetensors.index.json lists it");
}

TEST_F(CheckpointTest, MissingShardIsNamed) {
  write(kShard1, make_shard("a"));
  write_index(kTwoShardMap);
  EXPECT_EQ(error(), path(kShard2) +
                         ": shard not found; want every shard that "
                         "model.safetensors.index.json lists");
  fs::create_symlink("nowhere", path(kShard2));
  EXPECT_NE(error().find("shard not found"), std::string::npos);
}

TEST_F(CheckpointTest, MalformedShardIsNamed) {
  write(kShard1, make_shard("a"));
  write(kShard2, make_shard("b") + "x");
  write_index(kTwoShardMap);
  EXPECT_EQ(error(), path(kShard2) +
                         ": tensor \"b\": MetadataIncompleteBuffer: got 2 bytes after "
                         "the header; want 1, the end of the last tensor");
}

TEST_F(CheckpointTest, TwoExportsSideBySideAreAWarning) {
  write("model.safetensors", make_shard("a", 1));
  write(kShard1, make_shard("a"));
  write(kShard2, make_shard("b"));
  Result<Checkpoint> checkpoint = open_checkpoint(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(value_of(*checkpoint, "a"), 'b');
  const std::string from_single = ": ignored, the weights were read from model.safetensors";
  const std::vector<std::string> both = {path(kShard1) + from_single, path(kShard2) + from_single};
  EXPECT_EQ(checkpoint->warnings, both);

  write_index(kTwoShardMap);
  checkpoint = open_checkpoint(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(value_of(*checkpoint, "a"), 'a');
  const std::vector<std::string> single = {path("model.safetensors") + from_single + ".index.json"};
  EXPECT_EQ(checkpoint->warnings, single);
}

TEST_F(CheckpointTest, NoIndexScansShardsOnly) {
  write(kShard1, make_shard("a"));
  write(kShard2, make_shard("b"));
  write("model-extra.safetensors", make_shard("c"));
  write("expect.safetensors", "not even safetensors");
  const Result<Checkpoint> checkpoint = open_checkpoint(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(names_of(*checkpoint), "abc");
}

TEST_F(CheckpointTest, NoIndexRefusesDuplicates) {
  write(kShard1, make_shard("a"));
  write(kShard2, make_shard("ab"));
  EXPECT_EQ(error(), path(kShard1) + ": tensor \"a\": also in " + path(kShard2) +
                         "; want it once, or model.safetensors.index.json to decide");
}

TEST_F(CheckpointTest, NoIndexRefusesAGap) {
  const std::string got = ": shard not found; got 1 of the 2 shards its name counts";
  write(kShard1, make_shard("a"));
  EXPECT_EQ(error(), path(kShard2) + got);
  fs::rename(path(kShard1), path(kShard2));
  EXPECT_EQ(error(), path(kShard1) + got);
  write("model-00000-of-00002.safetensors", make_shard("b"));
  fs::rename(path(kShard2), path(kShard1));
  EXPECT_TRUE(open_checkpoint(dir_).ok()) << error();                     // counted from 0
  write("model-1-of-99999999999999999999.safetensors", make_shard("d"));  // no number: just a name
  EXPECT_TRUE(open_checkpoint(dir_).ok()) << error();
  write("model-1-of-9223372036854775807.safetensors", make_shard("e"));
  EXPECT_EQ(error(), path("model-2-of-9223372036854775807.safetensors") +
                         ": shard not found; got 1 of the 9223372036854775807 shards its name "
                         "counts");
}

TEST_F(CheckpointTest, NoWeights) {
  const std::string want = dir_ +
                           ": no weights; want model.safetensors.index.json, model.safetensors or "
                           "model-*.safetensors";
  EXPECT_EQ(error(), want);
  write("weights.safetensors", make_shard("a"));
  EXPECT_EQ(error(), want + "; \"weights.safetensors\" can be opened by its own path");
  EXPECT_TRUE(open_tensor_file(path("weights.safetensors")).ok());
}

TEST_F(CheckpointTest, WhatIsNotAFileIsRefused) {
  EXPECT_EQ(open_checkpoint(path("no")).status().code(), PERCH_E_NOT_FOUND);
  EXPECT_EQ(open_tensor_file(path("no")).status().message(), path("no") + ": not found");
  EXPECT_EQ(open_tensor_file(dir_).status().message(), dir_ + ": not a regular file");
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(open_tensor_file(path("fifo")).status().message(),
            path("fifo") + ": not a regular file");
  write("empty", "");
  EXPECT_EQ(open_tensor_file(path("empty")).status().message(),
            path("empty") + ": HeaderTooSmall: got a file of 0 bytes; want at least 8");
}

// A sparse file that is large enough for the header it claims, one byte over the limit.
TEST_F(CheckpointTest, HeaderOverTheLimitNamesSizeAndLimit) {
  const uint64_t length = 100'000'001;
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  write("big", bytes);
  fs::resize_file(path("big"), length + 1000);
  EXPECT_EQ(open_tensor_file(path("big")).status().message(),
            path("big") +
                ": HeaderTooLarge: got a header of 100000001 bytes; want at most "
                "100000000");
}

TEST_F(CheckpointTest, ReleasedPagesReadTheSame) {
  const std::string bytes(10'000, 'x');
  write("pages", bytes);
  const auto file = MappedFile::open(path("pages"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const MappedFile& mapped = **file;
  const std::pair<size_t, size_t> ranges[] = {{0, 10'000}, {1, 4096}, {5000, 5000},
                                              {10'000, 0}, {0, 0},    {1, 1}};
  for (const auto& [offset, count] : ranges) {
    release_pages(mapped.bytes().subspan(offset, count));
    EXPECT_EQ(std::memcmp(mapped.bytes().data(), bytes.data(), bytes.size()), 0);
  }
}

TEST(ShardIndexTest, RefusesAndSaysWhy) {
  const std::string plain = "; want a file name, without a folder or \"..\"";
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {R"({"weight_map":{"a":"../x.safetensors"}})",
       "tensor \"a\": got the shard \"../x.safetensors\"" + plain},
      {R"({"weight_map":{"a":"/etc/passwd"}})",
       "tensor \"a\": got the shard \"/etc/passwd\"" + plain},
      {R"({"weight_map":{"a":"sub/x"}})", "tensor \"a\": got the shard \"sub/x\"" + plain},
      {R"({"weight_map":{"a":"sub\\x"}})", "tensor \"a\": got the shard \"sub\\\\x\"" + plain},
      {R"({"weight_map":{"a":".."}})", "tensor \"a\": got the shard \"..\"" + plain},
      {R"({"weight_map":{"a":""}})", "tensor \"a\": got the shard \"\"" + plain},
      {R"({"weight_map":{"a":"x\u0000y"}})", "tensor \"a\": got the shard \"x\\x00y\"" + plain},
      {R"({"weight_map":{"a":"x","a":"y"}})", "duplicate key \"a\""},
      {R"({"weight_map":{"a":"x","\u0061":"x"}})", "duplicate key \"a\""},
      {R"({"weight_map":{"a":"x"},"weight_map":{}})", "duplicate key \"weight_map\""},
      {R"({"weight_map":{"a":1}})", "tensor \"a\": the shard is not a string"},
      {R"({"weight_map":{"a":["x"]}})", "tensor \"a\": the shard is not a string"},
      {R"({"weight_map":["x"]})", "weight_map is not an object of tensor name to shard file"},
      {R"({"weight_map":{}})", "got no weight_map, or an empty one; want at least one tensor"},
      {R"({"metadata":{}})", "got no weight_map, or an empty one; want at least one tensor"},
      {"[]", "the index is not an object; want {\"weight_map\": {...}}"},
      {"{\"weight_map\":", "not JSON at byte 15, near \"\\\"weight_map\\\":\""},
      {"\xEF\xBB\xBF{}", "starts with a byte order mark; want plain UTF-8"},
      {"{\"\xFF\":1}", "not UTF-8 at byte 3"},
      {std::string("{}\0", 3), "not JSON at byte 3: a NUL"},
      {R"({"weight_map":{"a":"x"},"m":)" + std::string(100'000, '['),
       "nested deeper than 127 levels"},
  };
  for (const auto& refuse : cases) {
    SCOPED_TRACE(refuse.text.substr(0, 100));
    EXPECT_EQ(parse_shard_index(refuse.text, "i.json").status().message(),
              "i.json: " + refuse.message);
  }
}

TEST(ShardIndexTest, ReadsTheMapAndIgnoresTheRest) {
  const Result<ShardIndex> index =
      parse_shard_index(R"({"metadata":{"total_size":1.5e3,"x":[{"weight_map":{"z":1}}]},)"
                        R"("weight_map":{"b":"s2","a":"s1","c":"s2"},"more":{"d":"s9"}})",
                        "i.json");
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_EQ(index->files, (std::vector<std::string>{"s2", "s1"}));
  EXPECT_EQ(index->weight_map, (std::map<std::string, int32_t>{{"a", 1}, {"b", 0}, {"c", 0}}));
}

}  // namespace
}  // namespace perch
