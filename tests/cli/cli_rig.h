// The built `perch` command as a user runs it, the fixtures, and safetensors files that can be
// changed byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "../abi/shell.h"

namespace perch::test {

using nlohmann::json;

struct CommandResult {
  int code = -1;
  std::string out;
  std::string err;
  json document() const { return json::parse(out); }
};

// Runs `perch <arguments>` with both streams in pipes or files, never a terminal.
inline CommandResult perch_command(const std::string& arguments) {
  const TempDir folder;
  const std::string err = folder / "err";
  const ShellResult ran =
      run_shell(PERCH_BUILD_DIR "/bin/perch " + arguments + " 2>" + err + " </dev/null");
  return {ran.code, ran.output, read_text(err)};
}

inline ::testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" lacks \"" << part << "\"";
}

inline std::string fixture(const std::string& name) { return PERCH_FIXTURES_DIR "/hf/" + name; }
inline std::string expectation(const std::string& name) {
  return fixture(name) + "/expect.safetensors";
}

// How a fixture stores its experts: see tests/fixtures/README.md.
struct FixtureRow {
  const char* name;
  char layout;  // 'P' per expert, 'F' fused, 'T' transposed, 'I' interleaved, 'G' no gate, 'Q'
                // packed, 'S' stacked
};
inline const std::vector<FixtureRow>& fixtures() {
  static const std::vector<FixtureRow> kRows = {
      {"qwen3_moe", 'P'},       {"mixtral", 'P'},      {"deepseek_v3", 'P'},
      {"nemotron_h", 'G'},      {"gpt_oss_bf16", 'I'}, {"qwen3_vl_moe_v4", 'T'},
      {"qwen3_vl_moe_v5", 'F'}, {"qwen3_5_moe", 'F'},  {"granite_moe", 'F'},
      {"llama4", 'T'},          {"ct_int4", 'Q'},      {"ct_int4_asym", 'Q'},
      {"step3p5", 'S'}};
  return kRows;
}

// Those that are there for one model type each, in a layout that one of the above has too.
inline const std::vector<FixtureRow>& model_fixtures() {
  static const std::vector<FixtureRow> kRows = {{"deepseek_v2", 'P'},
                                                {"phimoe", 'P'},
                                                {"ernie4_5_moe", 'P'},
                                                {"hunyuan_v1_moe", 'P'},
                                                {"hy_v3", 'P'},
                                                {"qwen2_moe", 'P'},
                                                {"qwen3_next", 'P'},
                                                {"olmoe", 'P'},
                                                {"jamba", 'P'},
                                                {"minimax", 'P'},
                                                {"minimax_m2", 'P'},
                                                {"glm4_moe", 'P'},
                                                {"dots1", 'P'},
                                                {"lfm2_moe", 'P'},
                                                {"gemma4", 'F'},
                                                {"granitemoeshared", 'F'},
                                                {"nemotron_h_latent", 'G'},
                                                {"deepseek_v4", 'P'},
                                                {"longcat_flash", 'P'},
                                                {"kimi_linear", 'P'}};
  return kRows;
}

inline std::vector<FixtureRow> all_fixtures() {
  std::vector<FixtureRow> rows = fixtures();
  rows.insert(rows.end(), model_fixtures().begin(), model_fixtures().end());
  return rows;
}

// All fixtures but those of one layout.
inline std::vector<FixtureRow> fixtures_but(char layout) {
  std::vector<FixtureRow> rows;
  for (const FixtureRow& row : fixtures()) {
    if (row.layout != layout) rows.push_back(row);
  }
  return rows;
}

// A safetensors file in memory.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path) : path_(path) {
    const std::string text = read_text(path);
    uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof(length));
    header_ = nlohmann::ordered_json::parse(text.substr(8, length));
    prefix_ = text.substr(0, 8 + length);
    data_.assign(text.begin() + static_cast<std::ptrdiff_t>(8 + length), text.end());
  }
  bool has(const std::string& name) const { return header_.contains(name); }
  std::vector<int64_t> shape(const std::string& name) const {
    return header_.at(name)["shape"].get<std::vector<int64_t>>();
  }
  uint8_t* data(const std::string& name) {
    return data_.data() + header_.at(name)["data_offsets"][0].get<size_t>();
  }
  size_t bytes(const std::string& name) const {
    const auto& offsets = header_.at(name)["data_offsets"];
    return offsets[1].get<size_t>() - offsets[0].get<size_t>();
  }
  std::vector<std::string> names_ending(const std::string& suffix) const {
    std::vector<std::string> names;
    for (const auto& [name, unused] : header_.items()) {
      if (name.size() > suffix.size() &&
          name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
        names.push_back(name);
      }
    }
    return names;
  }
  const std::string& path() const { return path_; }
  void save() const { write_text(path_, prefix_ + std::string(data_.begin(), data_.end())); }

 private:
  std::string path_;
  std::string prefix_;
  nlohmann::ordered_json header_;
  std::vector<uint8_t> data_;
};

// A copy of a fixture that may be spoiled: its tensors by name, over all shards.
class FixtureCopy {
 public:
  explicit FixtureCopy(const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator(fixture(name))) {
      const std::string file = folder_ / entry.path().filename().string();
      std::filesystem::copy_file(entry.path(), file);
      const bool tensors = entry.path().extension() == ".safetensors";
      if (tensors && entry.path().filename() != "expect.safetensors") files_.emplace_back(file);
    }
  }
  const std::string& path() const { return folder_.path(); }
  std::string expect_path() const { return folder_ / "expect.safetensors"; }

  bool has(const std::string& name) const {
    return std::any_of(files_.begin(), files_.end(),
                       [&](const TensorFile& file) { return file.has(name); });
  }
  TensorFile& file_of(const std::string& name) {
    for (TensorFile& file : files_) {
      if (file.has(name)) return file;
    }
    throw std::runtime_error("no tensor " + name);
  }
  void save() const {
    for (const TensorFile& file : files_) file.save();
  }

 private:
  TempDir folder_;
  std::vector<TensorFile> files_;
};

inline std::string name_of_fixture(const ::testing::TestParamInfo<FixtureRow>& row) {
  return row.param.name;
}

}  // namespace perch::test
