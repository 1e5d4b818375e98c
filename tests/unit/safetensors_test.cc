// Tests of the safetensors reader: the corpus with the reference's verdicts, field report H1,
// limits and hostile headers. Not about folders or indexes: checkpoint_test.cc. Step 2, checkpoint.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace perch {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = fs::path(PERCH_FIXTURES_DIR) / "corpus";

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

std::string make_file(const std::string& header, const std::string& data) {
  return length_prefix(header.size()) + header + data;
}

// A parsed file with its own copy of the bytes, exactly as long as they are: a read past the end is
// a read past a heap block, which ASan sees.
struct Parsed {
  explicit Parsed(const std::string& file) {
    const auto* begin = reinterpret_cast<const std::byte*>(file.data());
    bytes.assign(begin, begin + file.size());
    Result<std::vector<RawTensor>> result = parse_safetensors(bytes, "dir/x.st", &metadata);
    status = result.status();
    if (result.ok()) tensors = std::move(*result);
  }

  std::string error() const { return status.message(); }

  std::vector<std::byte> bytes;
  std::map<std::string, std::string> metadata;
  Status status;
  std::vector<RawTensor> tensors;
};

std::string load_fixture(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What holds for every file accepted: the tensors cover the data in order, without gaps.
void expect_exact_cover(const Parsed& parsed) {
  if (!parsed.status.ok()) return;
  const std::byte* end = parsed.bytes.data() + parsed.bytes.size();
  if (parsed.tensors.empty()) return;
  const std::byte* at = parsed.tensors.front().data;
  for (const RawTensor& tensor : parsed.tensors) {
    EXPECT_EQ(tensor.data, at);
    EXPECT_GE(tensor.bytes, 0);
    at += tensor.bytes;
  }
  EXPECT_EQ(at, end);
}

std::vector<std::string> load_lines(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(SafetensorsCorpus, EveryFileHasTheVerdictOfTheTable) {
  std::set<std::string> listed;
  for (const std::string& line : load_lines(kCorpus / "verdicts.txt")) {
    SCOPED_TRACE(line);
    std::istringstream words(line);
    std::string name, verdict, detail, stricter;
    words >> name >> verdict >> detail >> stricter;
    if (stricter == "STRICTER") {
      verdict = "ERR";
      words >> detail;
    }
    listed.insert(name);
    ASSERT_TRUE(fs::exists(kCorpus / name));
    const Parsed parsed(load_fixture(kCorpus / name));
    if (verdict == "OK") {
      EXPECT_TRUE(parsed.status.ok()) << parsed.error();
      EXPECT_EQ(std::to_string(parsed.tensors.size()), detail);
      expect_exact_cover(parsed);
    } else {
      EXPECT_EQ(parsed.status.code(), PERCH_E_INVALID_ARGUMENT);
      EXPECT_TRUE(parsed.error().starts_with("dir/x.st: ")) << parsed.error();
      EXPECT_NE(parsed.error().find(detail + ":"), std::string::npos) << parsed.error();
    }
  }
  EXPECT_EQ(listed.size(), 80u);
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    const std::string name = entry.path().filename().string();
    if (name == "README.md" || name == "verdicts.txt") continue;
    EXPECT_TRUE(listed.contains(name)) << name << " has no line in verdicts.txt";
  }
}

// Damaged copies of the corpus: any verdict, but no read outside the file and no partial cover.
TEST(SafetensorsCorpus, DamagedCopiesNeverEscapeTheFile) {
  constexpr uint32_t kSeed = 20240607;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    const std::string file = load_fixture(entry.path());
    if (file.size() > 1000) continue;  // the texts
    SCOPED_TRACE(entry.path().filename().string());
    for (size_t length = 0; length < file.size(); ++length) {
      expect_exact_cover(Parsed(file.substr(0, length)));
      std::string damaged = file;
      damaged[length] = static_cast<char>(random());
      expect_exact_cover(Parsed(damaged));
      constexpr std::string_view kLikely = "0129[]{},:\"\\-eu";
      damaged[length] = kLikely[random() % kLikely.size()];
      expect_exact_cover(Parsed(damaged));
    }
  }
}

// Field report H1: the base file of 70 bytes and its mutations.
const std::string kBaseHeader = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
const std::string kBaseData("\x00\x00\x80\x3F\x00\x00\x00\x40", 8);  // 1.0f, 2.0f

TEST(SafetensorsH1, BaseFileReadsOneAndTwo) {
  const std::string file = make_file(kBaseHeader, kBaseData);
  ASSERT_EQ(file.size(), 70u);
  const Parsed parsed(file);
  ASSERT_TRUE(parsed.status.ok()) << parsed.error();
  ASSERT_EQ(parsed.tensors.size(), 1u);
  const RawTensor& tensor = parsed.tensors[0];
  EXPECT_EQ(tensor.name, "t");
  EXPECT_EQ(tensor.dtype, RawDtype::kF32);
  EXPECT_EQ(tensor.shape, std::vector<int64_t>{2});
  EXPECT_EQ(tensor.bytes, 8);
  EXPECT_EQ(tensor.data - parsed.bytes.data(), 62);  // not a multiple of 4
  float values[2];
  std::memcpy(values, tensor.data, sizeof values);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
}

std::string one_tensor(const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string two_tensors(const std::string& a_offsets, const std::string& b,
                        const std::string& b_row) {
  return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + a_offsets + "},\"" + b +
         R"(":{"dtype":"F32",)" + b_row + "}}";
}

struct RefuseCase {
  const char* what;
  std::string file;
  std::string message;  // all of it
};

std::vector<RefuseCase> h1_refuse_cases() {
  const std::string header_limit = "; want at most 100000000";
  const std::string bad_json = "InvalidHeaderDeserialization: ";
  const std::string list = " is not a list of integers from 0 to 2^64-1";
  const std::string four(4, '\0'), twelve(12, '\0');
  const auto lie = [](uint64_t n) { return length_prefix(n) + kBaseHeader + kBaseData; };
  return {
      {"length near 2^64", lie(0xFFFFFFFFFFFFFFFB),
       "HeaderTooLarge: got a header of 18446744073709551611 bytes" + header_limit},
      {"length 4096", lie(4096),
       "InvalidHeaderLength: got a header of 4096 bytes; want at most 62, what the file of 70 "
       "bytes "
       "holds"},
      {"file of 7 bytes", std::string(7, '\0'),
       "HeaderTooSmall: got a file of 7 bytes; want at least 8"},
      {"length 0", lie(0), bad_json + "not JSON at byte 1, near \"\""},
      {"offsets backwards", make_file(one_tensor("[2]", "[8,0]"), kBaseData),
       "tensor \"t\": InvalidOffset: got data_offsets [8,0]; want begin 0 (start of the data)"},
      {"negative offset", make_file(one_tensor("[2]", "[-8,0]"), kBaseData),
       "tensor \"t\": " + bad_json + "data_offsets" + list},
      {"one offset", make_file(one_tensor("[2]", "[0]"), kBaseData),
       "tensor \"t\": " + bad_json + "got 1 data_offsets; want [begin, end]"},
      {"4 MB claimed, shape agrees", make_file(one_tensor("[1000000]", "[0,4000000]"), four),
       "tensor \"t\": MetadataIncompleteBuffer: got 4 bytes after the header; want 4000000, the "
       "end "
       "of the last tensor"},
      {"4 MB claimed, shape differs", make_file(one_tensor("[1]", "[0,4000000]"), four),
       "tensor \"t\": TensorInvalidInfo: got 4000000 bytes in data_offsets [0,4000000]; want 4 for "
       "F32 [1]"},
      {"shape beyond the data", make_file(one_tensor("[1000,1000]", "[0,4]"), four),
       "tensor \"t\": TensorInvalidInfo: got 4 bytes in data_offsets [0,4]; want 4000000 for F32 "
       "[1000,1000]"},
      {"product wraps to 0", make_file(one_tensor("[4611686018427387904,4]", "[0,0]"), ""),
       "tensor \"t\": ValidationOverflow: got F32 [4611686018427387904,4]; want dims and "
       "product without zeros below 2^63, bits below 2^64"},
      {"overlap",
       make_file(two_tensors("[0,4]", "b", R"("shape":[2],"data_offsets":[2,10])"), twelve),
       "tensor \"b\": InvalidOffset: got data_offsets [2,10]; want begin 4 (end of the previous "
       "tensor)"},
      {"hole", make_file(two_tensors("[0,4]", "b", R"("shape":[1],"data_offsets":[8,12])"), twelve),
       "tensor \"b\": InvalidOffset: got data_offsets [8,12]; want begin 4 (end of the previous "
       "tensor)"},
      {"trailing bytes", make_file(kBaseHeader, kBaseData + four),
       "tensor \"t\": MetadataIncompleteBuffer: got 12 bytes after the header; want 8, the end of "
       "the last tensor"},
      {"same key twice",
       make_file(two_tensors("[0,4]", "a", R"("shape":[1],"data_offsets":[4,8])"), kBaseData),
       bad_json + "duplicate key \"a\""},
      {"dtype F33",
       make_file(R"({"t":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", kBaseData),
       "tensor \"t\": " + bad_json +
           "got dtype \"F33\"; want one of the format, such as BF16 or U8"},
      {"header is an array", make_file("[]", ""),
       bad_json + "the header is not an object; want {\"<tensor>\": {...}, ...}"},
      {"not UTF-8", make_file("{\"\xC0\xAF\":1}", ""),
       "InvalidHeader: got a header that is not UTF-8 at its byte 3"},
      {"nested 100k deep in an unknown field",
       make_file(R"({"t":{"x":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}}",
                 ""),
       "tensor \"t\": " + bad_json + "nested deeper than 127 levels"},
      {"nested 100k deep at the top", make_file(std::string(100'000, '{'), ""),
       bad_json + "not JSON at byte 2, near \"{{\""},
  };
}

TEST(SafetensorsH1, RefusesWithFileTensorFoundAndWanted) {
  for (const RefuseCase& refuse : h1_refuse_cases()) {
    SCOPED_TRACE(refuse.what);
    EXPECT_EQ(Parsed(refuse.file).error(), "dir/x.st: " + refuse.message);
  }
}

TEST(SafetensorsH1, Accepts) {
  const std::string four(4, '\0');
  const struct {
    const char* what;
    std::string file;
    size_t tensors;
  } cases[] = {
      {"fields in any order",
       make_file(R"({"t":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}})", kBaseData), 1},
      {"tensors in any order",
       make_file(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]},)"
                 R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                 four),
       2},
      {"empty metadata", make_file(R"({"__metadata__":{},)" + kBaseHeader.substr(1), kBaseData), 1},
      {"zero size", make_file(one_tensor("[0]", "[0,0]"), ""), 1},
      {"scalar", make_file(one_tensor("[]", "[0,4]"), four), 1},
      {"spaces after the JSON", make_file(kBaseHeader + "     ", kBaseData), 1},
      {"unknown field of any depth below the limit",
       make_file(R"({"t":{"x":[{"a":[1.5,null]}],)" + kBaseHeader.substr(6), kBaseData), 1},
  };
  for (const auto& accept : cases) {
    SCOPED_TRACE(accept.what);
    const Parsed parsed(accept.file);
    EXPECT_TRUE(parsed.status.ok()) << parsed.error();
    EXPECT_EQ(parsed.tensors.size(), accept.tensors);
    expect_exact_cover(parsed);
  }
}

TEST(SafetensorsLimits, HeadersAround100KilobytesLoad) {
  for (size_t length = 99'994; length <= 100'001; ++length) {
    SCOPED_TRACE(length);
    const std::string spaces(length - kBaseHeader.size(), ' ');
    const Parsed parsed(make_file(kBaseHeader + spaces, kBaseData));
    EXPECT_TRUE(parsed.status.ok()) << parsed.error();
  }
}

// The largest legal header: 100 MB of spaces and the base header at its end.
TEST(SafetensorsLimits, HeaderOf8MegabytesLoads) {
  const std::string spaces(8'000'000 - kBaseHeader.size(), ' ');
  const Parsed parsed(make_file(spaces + kBaseHeader, kBaseData));
  EXPECT_TRUE(parsed.status.ok()) << parsed.error();
  EXPECT_EQ(parsed.tensors.size(), 1u);
}

TEST(SafetensorsLimits, ManyTensorsLoad) {
  constexpr int kTensors = 20'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    const std::string begin = std::to_string(i), end = std::to_string(i + 1);
    header += (i == 0 ? "\"t" : ",\"t") + begin +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + begin + "," + end + "]}";
  }
  const Parsed parsed(make_file(header + "}", std::string(kTensors, '\0')));
  ASSERT_TRUE(parsed.status.ok()) << parsed.error();
  EXPECT_EQ(parsed.tensors.size(), static_cast<size_t>(kTensors));
  expect_exact_cover(parsed);
}

TEST(SafetensorsLimits, DepthLimitIs127) {
  for (const size_t brackets : {125u, 126u}) {  // inside two objects
    const std::string nested = std::string(brackets, '[') + std::string(brackets, ']');
    const Parsed parsed(
        make_file(R"({"t":{"x":)" + nested + "," + kBaseHeader.substr(6), kBaseData));
    EXPECT_EQ(parsed.status.ok(), brackets == 125) << parsed.error();
  }
}

TEST(SafetensorsStricter, RefusesWhatTheReferenceAccepts) {
  const struct {
    std::string header;
    std::string error;
  } cases[] = {
      {R"({"a":{"dtype":{"U8":null},"shape":[0],"data_offsets":[0,0]}})", "dtype is not a string"},
      {R"({"a":{"x":1,"x":2,"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       "duplicate key \"x\""},
      {R"({"a":{"x":{"y":1,"y":2},"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       "duplicate key \"y\""},
      {R"({"a":{"dtype":"U8","shape":[0,9223372036854775808],"data_offsets":[0,0]}})",
       "ValidationOverflow"},
      {R"({"a":{"dtype":"U8","shape":[0,4611686018427387904,3],"data_offsets":[0,0]}})",
       "ValidationOverflow"},
      {R"({"__metadata__":{"a":"b","\u0061":"c"}})", "duplicate key \"a\""},
  };
  for (const auto& strict : cases) {
    SCOPED_TRACE(strict.header);
    const Parsed parsed(make_file(strict.header, ""));
    EXPECT_NE(parsed.error().find(strict.error), std::string::npos) << parsed.error();
  }
}

TEST(SafetensorsMetadata, IsAMapOfStrings) {
  const Parsed parsed(make_file(R"({"__metadata__":{"format":"pt","\u00e9":""}})", ""));
  ASSERT_TRUE(parsed.status.ok()) << parsed.error();
  const std::map<std::string, std::string> want = {{"format", "pt"}, {"\xC3\xA9", ""}};
  EXPECT_EQ(parsed.metadata, want);
}

TEST(SafetensorsMessages, NamesAreEscapedAndCut) {
  EXPECT_EQ(quoted_name("a\n\"\\\x7F"), R"("a\x0a\"\\\x7f")");
  EXPECT_EQ(quoted_name(std::string(200, 'x')), "\"" + std::string(160, 'x') + "\"... (200 bytes)");
  // The cut does not split a character: 159 x, then one of two bytes.
  EXPECT_EQ(quoted_name(std::string(159, 'x') + "\xC3\xA9z"),
            "\"" + std::string(159, 'x') + "\"... (162 bytes)");
}

TEST(RawDtypes, NamesAndBitsAreThoseOfTheFormat) {
  EXPECT_EQ(raw_dtype_bits(RawDtype::kF4), 4);
  EXPECT_EQ(raw_dtype_bits(RawDtype::kF6E3M2), 6);
  EXPECT_EQ(raw_dtype_bits(RawDtype::kF8E8M0), 8);
  EXPECT_EQ(raw_dtype_bits(RawDtype::kBF16), 16);
  EXPECT_EQ(raw_dtype_bits(RawDtype::kF32), 32);
  EXPECT_EQ(raw_dtype_bits(RawDtype::kC64), 64);
  EXPECT_EQ(raw_dtype_name(RawDtype::kF8E5M2FNUZ), "F8_E5M2FNUZ");
  EXPECT_EQ(raw_dtype_name(RawDtype::kI64), "I64");
  for (size_t i = 0; i < kRawDtypes.size(); ++i) {
    EXPECT_EQ(parse_raw_dtype(kRawDtypes[i].name), static_cast<RawDtype>(i));
  }
  EXPECT_EQ(parse_raw_dtype("bf16"), std::nullopt);
}

}  // namespace
}  // namespace perch
