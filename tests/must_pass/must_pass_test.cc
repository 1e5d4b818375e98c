// The cases that each backend passes are a list in the tree: one that leaves it, or a tolerance
// that loosens, needs a row in tests/cases/ledger with the reason.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "../cli/cli_rig.h"
#include "agree/agreement.h"

namespace perch::test {
namespace {

const std::string kCases = PERCH_SOURCE_DIR "/tests/cases/";

std::vector<std::string> rows_of(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') rows.push_back(line);
  }
  return rows;
}

// A row of the ledger: "case humming-cpu 1 moe t1 ... | reason", "tolerance margin 1.5 2 | reason".
struct LedgerRow {
  std::string subject;  // what stands before the bar
  std::string reason;
};

std::vector<LedgerRow> ledger() {
  std::vector<LedgerRow> rows;
  for (const std::string& line : rows_of(kCases + "ledger")) {
    const size_t bar = line.find(" | ");
    if (bar == std::string::npos) {
      ADD_FAILURE() << "a row without a reason: " << line;
    } else {
      rows.push_back({line.substr(0, bar), line.substr(bar + 3)});
    }
  }
  return rows;
}

bool excused(const std::string& subject) {
  const auto rows = ledger();
  return std::any_of(rows.begin(), rows.end(), [&](const LedgerRow& row) {
    return row.subject == subject && !row.reason.empty();
  });
}

struct Run {
  const char* name;
  const char* backend;
  const char* level;  // humming-cpu's: each has kernels of its own; "" for the machine's best
};

void PrintTo(const Run& run, std::ostream* out) { *out << run.name; }

class MustPass : public ::testing::TestWithParam<Run> {};

// A level that this machine has.
bool offers(const std::string& level) {
  const std::string any_case = " --check claims 'linear t1 n8 k8 w=bf16'";
  return perch_command("check --backend humming-cpu --option isa=" + level + any_case).code == 0;
}

// One run of the suite ci: nothing failed, nothing untrusted, and all of the list passed.
TEST_P(MustPass, SuiteCi) {
  const std::string backend = GetParam().backend;
  const std::string level = GetParam().level;
  if (!level.empty() && !offers(level)) GTEST_SKIP() << "this machine lacks " << level;
  const std::string option = level.empty() ? "" : " --option isa=" + level;
  const CommandResult ran =
      perch_command("check --backend " + backend + " --suite ci --json -q" + option);
  const json report = ran.document();
  EXPECT_EQ(ran.code, 0) << report["failures"].dump(2) << ran.err;
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["untrusted"], 0);
  if (backend == "reference") {
    EXPECT_GE(report["passed"], 300);
    EXPECT_EQ(report["skipped"].size(), 0U) << report["skipped"].dump();
  }
  std::set<std::string> passed;
  for (const json& one : report["cases"]) {
    if (one["status"] != "passed") continue;
    passed.insert(std::to_string(one["variant"].get<int>()) + " " + one["case"].get<std::string>());
  }
  for (const std::string& row : rows_of(kCases + "must_pass/" + backend)) {
    const bool here = passed.count(row) != 0;
    const bool allowed = excused("case " + backend + " " + row);
    EXPECT_TRUE(here || allowed) << row << " left the list without a row in tests/cases/ledger";
    EXPECT_FALSE(here && allowed) << row << " passes: its row in tests/cases/ledger can go";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MustPass,
                         ::testing::Values(Run{"reference", "reference", ""},
                                           Run{"humming_cpu", "humming-cpu", ""},
                                           Run{"humming_cpu_avx2", "humming-cpu", "avx2"},
                                           Run{"humming_cpu_portable", "humming-cpu", "portable"}),
                         [](const auto& run) { return std::string(run.param.name); });

TEST(Tolerance, LoosensOnlyWithAReason) {
  const Tolerance now = tolerance();
  const std::map<std::string, double> values = {{"margin", now.margin},
                                                {"accumulation", now.accumulation},
                                                {"constant", now.constant},
                                                {"mid_sigma", now.mid_sigma},
                                                {"row_share", now.row_share}};
  size_t seen = 0;
  for (const std::string& row : rows_of(kCases + "must_pass/tolerance")) {
    std::istringstream words(row);
    std::string name;
    double agreed = 0;
    words >> name >> agreed;
    const auto found = values.find(name);
    ASSERT_NE(found, values.end()) << row;
    ++seen;
    if (found->second <= agreed) continue;
    std::ostringstream subject;
    subject << "tolerance " << name << " " << agreed << " " << found->second;
    EXPECT_TRUE(excused(subject.str())) << subject.str() << ": not in tests/cases/ledger";
  }
  EXPECT_EQ(seen, values.size()) << "a constant is missing in must_pass/tolerance";
}

}  // namespace
}  // namespace perch::test
