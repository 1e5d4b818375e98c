// Every fuzz target over its seeds and over mutants of them: what the fuzzers find stays found, in
// builds without clang too.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "mutate.h"

namespace perch::fuzz {
namespace {

constexpr int kMutants = 2000;
const std::filesystem::path kRoot = PERCH_SOURCE_DIR;

struct Seed {
  std::string path;
  std::string text;
};

void add_seeds(const std::filesystem::path& path, std::vector<Seed>* seeds) {
  if (std::filesystem::is_directory(path)) {
    std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(path), {});
    std::sort(files.begin(), files.end());
    for (const auto& file : files) add_seeds(file, seeds);
    return;
  }
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << path;
  seeds->push_back({path, {std::istreambuf_iterator<char>(in), {}}});
}

// corpus/<name>, and what seeds.txt names for it.
std::vector<Seed> seeds_of(const std::string& name) {
  std::vector<Seed> seeds;
  add_seeds(kRoot / "tests/fuzz/corpus" / name, &seeds);
  std::ifstream lines(kRoot / "tests/fuzz/seeds.txt");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string target, path;
    if (words >> target >> path && target == name) add_seeds(kRoot / path, &seeds);
  }
  return seeds;
}

// In a block of its own size, as libFuzzer calls it.
void run(const Target& target, const std::string& text) {
  const auto copy = exact_copy(Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  target.run({copy.get(), text.size()});
}

class FuzzTest : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzTest, SeedsAreTakenAndReachNoPlantedBug) {
  bool accepted = false;
  for (const Seed& seed : seeds_of(GetParam().name)) {
    SCOPED_TRACE(seed.path);
    notes() = {};
    run(GetParam(), seed.text);
    accepted |= notes().accepted;
    EXPECT_FALSE(notes().planted) << "the seeded fuzzer would not have to find it";
  }
  EXPECT_TRUE(accepted) << "no seed goes all the way through";
}

TEST_P(FuzzTest, MutantsOfSeeds) {
  const std::vector<Seed> seeds = seeds_of(GetParam().name);
  ASSERT_FALSE(seeds.empty());
  std::mt19937 random(20);
  for (int i = 0; i < kMutants; ++i) {
    const Seed& seed = seeds[below(seeds.size(), random)];
    run(GetParam(), mutate(seed.text, GetParam().words, random));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, ::testing::ValuesIn(targets()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace perch::fuzz
