// Sizes and offsets of every struct that crosses. A changed line is a decision made in review.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <perch/perch.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/abi_layout.h"
#include "shell.h"

namespace perch::test {
namespace {

const char kLayoutFile[] = PERCH_SOURCE_DIR "/abi/1.0-draft/layout.txt";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Lines of a that b lacks, each with a mark.
std::string missing_lines(const std::vector<std::string>& a, const std::vector<std::string>& b,
                          const char* mark) {
  // A field's line means something only below its struct's.
  const auto qualified = [](const std::vector<std::string>& lines) {
    std::vector<std::string> result;
    std::string owner;
    for (const std::string& line : lines) {
      if (line.rfind("  ", 0) != 0) owner = line.substr(0, line.find(' '));
      result.push_back(owner + ": " + line);
    }
    return result;
  };
  const std::vector<std::string> others = qualified(b);
  const std::set<std::string> have(others.begin(), others.end());
  std::string text;
  for (const std::string& line : qualified(a)) {
    if (have.count(line) == 0) text += mark + line + "\n";
  }
  return text;
}

TEST(AbiLayout, EqualsTheCommittedFile) {
  const std::string committed = read_text(kLayoutFile);
  const std::string built = abi_layout_text();
  EXPECT_TRUE(committed == built)
      << kLayoutFile << " (-) against these headers (+):\n"
      << missing_lines(lines_of(committed), lines_of(built), "-")
      << missing_lines(lines_of(built), lines_of(committed), "+")
      << "A moved or removed line breaks built backends (R1); an added one needs a new minor (R8).";
}

class StructTest : public ::testing::TestWithParam<size_t> {
 protected:
  const AbiStruct& type() const { return abi_structs()[GetParam()]; }
};

// Without a gap, and to the end: no field of the header is missing in abi_fields.inc, and there is
// no padding that a compiler chose.
TEST_P(StructTest, FieldsFollowWithoutAGap) {
  uint32_t next = 0;
  for (const AbiField& field : type().fields) {
    EXPECT_EQ(field.offset, next) << field.name;
    next = field.offset + field.size;
  }
  EXPECT_EQ(next, type().size) << "after the last field in abi_fields.inc";
}

// Leafs are part of other structs or of arrays, and never grow (R14).
TEST_P(StructTest, StartsWithStructSize) {
  static const std::set<std::string> kLeafs = {
      "perch_kv",     "perch_device",        "perch_named_tensor",  "perch_reason",
      "perch_stream", "perch_matrix_layout", "perch_buffer_layout", "perch_derived_layout"};
  const AbiField& first = type().fields.front();
  const bool has_size = std::string(first.name) == "struct_size" && first.size == 4;
  EXPECT_NE(has_size, kLeafs.count(type().name) == 1) << first.name;
}

INSTANTIATE_TEST_SUITE_P(Structs, StructTest, ::testing::Range<size_t>(0, abi_structs().size()),
                         [](const auto& row) {
                           return std::string(abi_structs()[row.param].name);
                         });

// Every `typedef struct perch_x {` of the headers is in the table.
TEST(AbiLayout, HasEveryStructOfTheHeaders) {
  std::set<std::string> known;
  for (const AbiStruct& type : abi_structs()) known.insert(type.name);
  for (const char* header : {"base.h", "layer.h", "backend.h", "runtime.h"}) {
    const std::string path = std::string(PERCH_SOURCE_DIR "/abi/include/perch/") + header;
    for (const std::string& line : lines_of(read_text(path))) {
      if (line.rfind("typedef struct perch_", 0) != 0 || line.back() != '{') continue;
      const std::string name = line.substr(15, line.size() - 17);
      EXPECT_EQ(known.count(name), 1U) << name << " of " << header;
    }
  }
}

TEST(AbiLayout, DescribeSaysTheSame) {
  const auto document = nlohmann::json::parse([] {
    uint64_t needed = 0;
    EXPECT_EQ(perch_abi_describe(nullptr, 0, &needed), PERCH_E_BUFFER_TOO_SMALL);
    std::string text(needed, '\0');
    EXPECT_EQ(perch_abi_describe(text.data(), needed - 1, &needed), PERCH_E_BUFFER_TOO_SMALL);
    EXPECT_EQ(perch_abi_describe(text.data(), needed, &needed), PERCH_OK);
    text.pop_back();
    return text;
  }());
  EXPECT_EQ(document["major"], PERCH_ABI_MAJOR);
  EXPECT_EQ(document["minor"], PERCH_ABI_MINOR);
  ASSERT_EQ(document["structs"].size(), abi_structs().size());
  for (size_t s = 0; s < abi_structs().size(); ++s) {
    const AbiStruct& type = abi_structs()[s];
    const auto& said = document["structs"][s];
    EXPECT_EQ(said["name"], type.name);
    EXPECT_EQ(said["size"], type.size);
    ASSERT_EQ(said["fields"].size(), type.fields.size()) << type.name;
    for (size_t f = 0; f < type.fields.size(); ++f) {
      EXPECT_EQ(said["fields"][f]["name"], type.fields[f].name);
      EXPECT_EQ(said["fields"][f]["offset"], type.fields[f].offset) << type.fields[f].name;
      EXPECT_EQ(said["fields"][f]["size"], type.fields[f].size) << type.fields[f].name;
    }
  }
}

TEST(AbiVersion, IsThatOfTheHeaders) {
  uint32_t major = 0;
  uint32_t minor = 0;
  EXPECT_EQ(perch_abi_version(&major, &minor), PERCH_OK);
  EXPECT_EQ(major, PERCH_ABI_MAJOR);
  EXPECT_EQ(minor, PERCH_ABI_MINOR);
}

TEST(StatusName, OfEveryCodeAndOfStrangers) {
  EXPECT_STREQ(perch_status_name(PERCH_OK), "PERCH_OK");
  EXPECT_STREQ(perch_status_name(PERCH_E_UNSUPPORTED), "PERCH_E_UNSUPPORTED");
  EXPECT_STREQ(perch_status_name(PERCH_E_PERMISSION), "PERCH_E_PERMISSION");
  EXPECT_STREQ(perch_status_name(99), "PERCH_E_INTERNAL");
  EXPECT_STREQ(perch_status_name(-1), "PERCH_E_INTERNAL");
}

}  // namespace
}  // namespace perch::test
