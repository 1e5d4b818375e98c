// The checker itself: its memory notices, its host plays fair, its suites and its shrinking are
// what they say. That its checks bite is proven by tests/mutants.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "../abi/shell.h"
#include "agree/agreement.h"
#include "base/case_line.h"
#include "check/child.h"
#include "check/host.h"
#include "check/memory.h"
#include "check/shrink.h"
#include "check/suite.h"

namespace perch_check {
namespace {

using perch::test::TempDir;
using perch::test::write_text;

perch::Case parse(const std::string& line) {
  auto parsed = perch::parse_case(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return std::move(parsed.value());
}

// ---- Memory ------------------------------------------------------------------------------------

TEST(GuardedBuffer, KeepsTheAlignmentItWasAskedFor) {
  for (const size_t align : {1U, 2U, 4U, 64U, 4096U, 1U << 21}) {
    for (const size_t bytes : {1U, 63U, 1000U, 4096U, 4097U}) {
      for (const Side side : {Side::kHead, Side::kTail}) {
        const GuardedBuffer buffer("b", bytes, align, side);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % align, 0U);
        std::memset(buffer.data(), 1, bytes);  // all of it is there
        EXPECT_EQ(buffer.broken_canary(), 0);
      }
    }
  }
}

TEST(GuardedBuffer, ACanaryTellsWhere) {
  GuardedBuffer head("b", 10, 1, Side::kHead);
  head.data()[10] = std::byte{0};
  EXPECT_EQ(head.broken_canary(), 10);
  GuardedBuffer tail("b", 10, 8, Side::kTail);
  tail.data()[-1] = std::byte{0};
  EXPECT_EQ(tail.broken_canary(), -1);
}

// What the child's epitaph says after `work`.
std::string epitaph_of(const std::function<void()>& work) {
  Child child([&](const Child::Say&) { work(); });
  while (!child.ended()) child.read_lines();
  EXPECT_FALSE(child.clean());
  return child.epitaph();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(GuardedBuffer, AFaultNamesTheBuffer) {
  const auto touch = [](Side side, size_t bytes, int64_t at, bool write) {
    return epitaph_of([=] {
      const GuardedBuffer buffer("topk_ids", bytes, 4, side);
      auto* byte = reinterpret_cast<volatile char*>(buffer.data()) + at;
      if (write) {
        *byte = 1;
      } else {
        [[maybe_unused]] const char value = *byte;
      }
    });
  };
  EXPECT_NE(
      touch(Side::kTail, 4096, 4096, true).find("topk_ids (4096 bytes): written at offset 4096"),
      std::string::npos);
  EXPECT_NE(touch(Side::kHead, 100, -1, false).find("topk_ids (100 bytes): read at offset -1"),
            std::string::npos);
  EXPECT_NE(touch(Side::kTail, 0, 0, true).find("topk_ids (0 bytes): written at offset 0"),
            std::string::npos);
}
#endif

TEST(Child, SaysHowItEnded) {
  EXPECT_NE(epitaph_of([] { std::abort(); }).find("Aborted"), std::string::npos);
  EXPECT_NE(epitaph_of([] {
              std::fprintf(stderr, "the backend said this\n");
              std::fflush(stderr);
              std::_Exit(3);
            }).find("exit code 3: the backend said this"),
            std::string::npos);
  Child child([](const Child::Say& say) { say("one"), say("two"); });
  std::vector<std::string> lines;
  while (!child.ended()) {
    for (const std::string& line : child.read_lines()) lines.push_back(line);
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(child.clean());
}

// ---- Host --------------------------------------------------------------------------------------

struct Seen {
  std::vector<int64_t> order;
  std::vector<int32_t> tids;
};

Seen run_tasks(const HostOptions& options, int64_t count) {
  CheckHost host(options);
  Seen seen;
  host.api()->parallel_for(
      host.api()->ctx, count,
      [](void* arg, int64_t index, int32_t tid) {
        static_cast<Seen*>(arg)->order.push_back(index);
        static_cast<Seen*>(arg)->tids.push_back(tid);
      },
      &seen);
  return seen;
}

TEST(CheckHost, ShufflesBySeed) {
  HostOptions options;
  options.schedule = Schedule::kShuffled;
  options.threads = 4;
  options.seed = 1;
  const Seen first = run_tasks(options, 50);
  EXPECT_EQ(first.order, run_tasks(options, 50).order);
  options.seed = 2;
  EXPECT_NE(first.order, run_tasks(options, 50).order);
  EXPECT_EQ(std::set<int64_t>(first.order.begin(), first.order.end()).size(), 50U);
  EXPECT_GT(std::set<int32_t>(first.tids.begin(), first.tids.end()).size(), 1U);
}

TEST(CheckHost, ACallRunsInsideAnother) {
  HostOptions options;
  options.threads = 2;
  CheckHost host(options);
  std::vector<int32_t> tids(4, -1);
  std::vector<int> order;
  struct Task {
    std::vector<int>* order;
    int label;
    int32_t* tid;
  };
  const auto task = [](void* arg, int64_t, int32_t tid) {
    auto* self = static_cast<Task*>(arg);
    self->order->push_back(self->label);
    *self->tid = tid;
  };
  Task outer{&order, 1, &tids[0]}, inner{&order, 2, &tids[1]};
  host.run_inside([&] { host.api()->parallel_for(host.api()->ctx, 1, task, &inner); });
  host.api()->parallel_for(host.api()->ctx, 2, task, &outer);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1}));
  EXPECT_EQ(host.complaint(), "");
}

TEST(CheckHost, ComplainsOfNesting) {
  CheckHost host(HostOptions{});
  host.api()->parallel_for(
      host.api()->ctx, 1,
      [](void* arg, int64_t, int32_t) {
        auto* inside = static_cast<CheckHost*>(arg);
        inside->api()->parallel_for(
            inside->api()->ctx, 1, [](void*, int64_t, int32_t) {}, nullptr);
      },
      &host);
  EXPECT_NE(host.complaint().find("nesting"), std::string::npos);
}

// ---- Data --------------------------------------------------------------------------------------

TEST(CaseData, ARowKeepsItsNumbersInAnyBatch) {
  const perch::Case problem = parse("moe t9 e5 top2 h16 i8 w=bf16 act=silu seed=3");
  const CallData alone = make_call(problem, {4}, Fill::kReal, "uniform");
  const CallData among = make_call(problem, {7, 4, 9}, Fill::kReal, "zipf", {4});
  const size_t row = alone.x.size();
  EXPECT_EQ(std::memcmp(alone.x.data(), among.x.data() + row, row), 0);
  EXPECT_TRUE(std::equal(alone.ids.begin(), alone.ids.end(), among.ids.begin() + 2));
  EXPECT_TRUE(std::equal(alone.weights.begin(), alone.weights.end(), among.weights.begin() + 2));
}

TEST(CaseData, ASmallerMatrixIsAPartOfALargerOne) {
  const auto large =
      make_expert(parse("linear t1 n8 k32 w=int4g8:f32+z").config, 0, 5, Fill::kReal);
  const auto small =
      make_expert(parse("linear t1 n3 k16 w=int4g8:f32+z").config, 0, 5, Fill::kReal);
  for (size_t t = 0; t < small.size(); ++t) {
    const size_t from = large[t].data.size() / 8;
    const size_t to = small[t].data.size() / 3;
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(std::memcmp(large[t].data.data() + row * from, small[t].data.data() + row * to, to),
                0)
          << small[t].spec.name << " row " << row;
    }
  }
}

// ---- Suites and shrinking ----------------------------------------------------------------------

TEST(Suite, BracesMultiply) {
  EXPECT_EQ(*expand_braces("a{1,2}b{x|y,z}"),
            (std::vector<std::string>{"a1bx", "a1by,z", "a2bx", "a2by,z"}));
  EXPECT_FALSE(expand_braces("a{1").ok());
  EXPECT_FALSE(expand_braces("a1}").ok());
}

TEST(Suite, NamesIncludesAndShares) {
  const TempDir folder;
  write_text(folder / "one.cases", "linear t1 n1 k1 w=bf16  # said once\nlinear t1 n1 k1 w=bf16\n");
  write_text(folder / "two.cases",
             "include one\nbig: linear t{1,2} n2 k2 w=bf16 >= 0.9\n# nothing\n");
  const auto lines = read_suite(folder / "two.cases");
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  ASSERT_EQ(lines->size(), 3U);
  EXPECT_EQ((*lines)[0].line, "linear t1 n1 k1 w=bf16");
  EXPECT_EQ((*lines)[1].name, "big");
  EXPECT_EQ((*lines)[2].required, 0.9);
}

TEST(Suite, ErrorsNameFileAndLine) {
  const TempDir folder;
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"\nlinear t1 n1\n", "bad.cases:2: "},
           {"linear t1 n1 k1 w=bf16 >= much\n", "want a share"},
           {"include bad\n", "circle"},
           {"include none\n", "none.cases: cannot be read"}}) {
    write_text(folder / "bad.cases", text);
    const auto lines = read_suite(folder / "bad.cases");
    ASSERT_FALSE(lines.ok());
    EXPECT_NE(lines.status().message().find(part), std::string::npos) << lines.status().message();
  }
}

TEST(Suite, EveryInstalledOneReads) {
  const auto names = suite_names();
  for (const char* name : {"smoke", "ci", "nightly"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end());
  }
  for (const std::string& name : names) {
    const auto lines = read_suite(find_suite(name));
    ASSERT_TRUE(lines.ok()) << lines.status().message();
    for (const SuiteLine& line : *lines) EXPECT_EQ(perch::print_case(parse(line.line)), line.line);
  }
}

TEST(Shrink, EverySmallerCaseParsesAndDiffers) {
  const perch::Case problem = parse(
      "moe t17 e6 eg12 top2 h48 i40 w=int4g16:bf16+z+bias a=int8t act=swigluoai:1.702:1:7 "
      "load=zipf ids=i64 ep=1/2 strided seed=9");
  std::set<std::string> lines;
  for (const perch::Case& one : smaller_cases(problem)) {
    const std::string line = perch::print_case(one);
    EXPECT_TRUE(perch::parse_case(line).ok()) << line;
    EXPECT_NE(line, perch::print_case(problem));
    lines.insert(line);
  }
  EXPECT_GT(lines.size(), 40U);
  EXPECT_TRUE(smaller_cases(parse("linear t1 n1 k1 w=bf16")).empty());
}

}  // namespace
}  // namespace perch_check
