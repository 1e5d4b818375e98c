// Thread counts from affinity, cgroups, SMT and memory nodes (field_reports.md I2), on fake /proc
// and /sys trees; only the last tests look at the machine they run on.
#include "run/cpu_topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace perch {
namespace {

std::vector<int> first_cpus(int count) {
  std::vector<int> cpus(static_cast<size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

class FakeRoot : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "perch_cpu_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text << "\n";
  }
  void write_siblings(int cpu, const std::string& list) {
    write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          list);
  }
  CpuLimits read(int cpus) const { return read_cpu_limits(first_cpus(cpus), root_); }
  int count(int cpus) const { return default_thread_count(read(cpus)); }

  std::string root_;
};

TEST_F(FakeRoot, NothingReadableIsOneThreadPerAllowedCpu) {
  EXPECT_EQ(count(6), 6);
  EXPECT_EQ(count(1), 1);
  EXPECT_EQ(count(0), 1);
  EXPECT_EQ(cores_per_node(read(6)), std::vector<int>{6});
}

TEST_F(FakeRoot, SmtSiblingsAreOneCore) {  // 4 cores, 8 threads, numbered far apart
  for (int cpu = 0; cpu < 8; ++cpu) {
    write_siblings(cpu, std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
  }
  EXPECT_EQ(count(8), 4);
  EXPECT_EQ(default_thread_count(read_cpu_limits({1, 5}, root_)), 1);
  EXPECT_EQ(default_thread_count(read_cpu_limits({5, 6}, root_)), 2);
}

TEST_F(FakeRoot, SmtSiblingsNextToEachOther) {
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int even = cpu / 2 * 2;
    write_siblings(cpu, std::to_string(even) + "-" + std::to_string(even + 1));
  }
  EXPECT_EQ(count(8), 4);
}

TEST_F(FakeRoot, UnreadableSiblingsCountAsCores) {
  for (const char* text : {"", "x", "-1", "3-1", "0-", "0-2000000000"}) {
    write_siblings(0, text);
    write_siblings(1, text);
    EXPECT_EQ(count(2), 2) << '"' << text << '"';
  }
}

TEST_F(FakeRoot, CgroupV2Quota) {
  write("/proc/self/cgroup", "0::/a/b");
  write("/sys/fs/cgroup/a/b/cpu.max", "100000 100000");
  EXPECT_EQ(count(8), 1);
  write("/sys/fs/cgroup/a/b/cpu.max", "250000 100000");
  EXPECT_EQ(count(8), 2);
  write("/sys/fs/cgroup/a/b/cpu.max", "50000 100000");
  EXPECT_EQ(count(8), 1);
  write("/sys/fs/cgroup/a/b/cpu.max", "max 100000");
  EXPECT_EQ(count(8), 8);
  write("/sys/fs/cgroup/a/b/cpu.max", "1600000 100000");
  EXPECT_EQ(count(8), 8);
}

TEST_F(FakeRoot, CgroupV2TightestOfAllAboveCounts) {
  write("/proc/self/cgroup", "0::/a/b");
  write("/sys/fs/cgroup/a/b/cpu.max", "600000 100000");
  write("/sys/fs/cgroup/a/cpu.max", "300000 100000");
  EXPECT_EQ(count(8), 3);
  write("/sys/fs/cgroup/cpu.max", "200000 100000");
  EXPECT_EQ(count(8), 2);
}

TEST_F(FakeRoot, CgroupNamespaceRoot) {
  write("/sys/fs/cgroup/cpu.max", "200000 100000");
  for (const char* group : {"0::/", "0::/../..", "0::/docker/not-mounted-here"}) {
    write("/proc/self/cgroup", group);
    EXPECT_EQ(count(8), 2) << group;
  }
}

TEST_F(FakeRoot, CgroupV1Quota) {
  write("/proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/a\n2:cpuset:/s");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000");
  EXPECT_EQ(count(8), 3);
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(count(8), 8);
}

TEST_F(FakeRoot, HybridCgroupTakesTheTighter) {
  write("/proc/self/cgroup", "4:cpu:/a\n0::/b");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(count(8), 4);
  write("/sys/fs/cgroup/unified/b/cpu.max", "200000 100000");
  EXPECT_EQ(count(8), 2);
}

TEST_F(FakeRoot, MalformedCgroupIsNoLimit) {
  for (const char* text : {"", "::", "0:", "nonsense", "0::/a"}) {
    write("/proc/self/cgroup", text);
    for (const char* quota : {"", "x", "0 0", "100000 0", "-5 100000"}) {
      write("/sys/fs/cgroup/a/cpu.max", quota);
      EXPECT_EQ(count(8), 8) << text << " / " << quota;
    }
  }
}

TEST_F(FakeRoot, CoresOfNodesThatHaveAny) {  // 2 sockets of 2 cores with SMT, node 2 is memory only
  for (int cpu = 0; cpu < 8; ++cpu) {
    write_siblings(cpu, std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
  }
  write("/sys/devices/system/node/online", "0-2");
  write("/sys/devices/system/node/node0/cpulist", "0-1,4-5");
  write("/sys/devices/system/node/node1/cpulist", "2-3,6-7");
  write("/sys/devices/system/node/node2/cpulist", "");
  EXPECT_EQ(cores_per_node(read(8)), (std::vector<int>{2, 2}));
  EXPECT_EQ(cores_per_node(read_cpu_limits({0, 2, 3}, root_)), (std::vector<int>{1, 2}));
  EXPECT_EQ(cores_per_node(read_cpu_limits({3, 7}, root_)), std::vector<int>{1});
}

TEST(SplitThreadsOverNodes, EvenlyWhileCoresAreFree) {
  EXPECT_EQ(split_threads_over_nodes(42, {24, 24}), (std::vector<int>{21, 21}));
  EXPECT_EQ(split_threads_over_nodes(41, {24, 24}), (std::vector<int>{21, 20}));
  EXPECT_EQ(split_threads_over_nodes(3, {24, 24}), (std::vector<int>{2, 1}));
  EXPECT_EQ(split_threads_over_nodes(1, {24, 24}), (std::vector<int>{1, 0}));
  EXPECT_EQ(split_threads_over_nodes(0, {24, 24}), (std::vector<int>{0, 0}));
}

TEST(SplitThreadsOverNodes, SmallNodeFillsUpThenTheOtherTakesTheRest) {
  EXPECT_EQ(split_threads_over_nodes(20, {4, 24}), (std::vector<int>{4, 16}));
  EXPECT_EQ(split_threads_over_nodes(5, {0, 8}), (std::vector<int>{0, 5}));
}

TEST(SplitThreadsOverNodes, MoreThreadsThanCoresInProportion) {
  EXPECT_EQ(split_threads_over_nodes(56, {4, 24}), (std::vector<int>{8, 48}));
  EXPECT_EQ(split_threads_over_nodes(9, {2, 0}), (std::vector<int>{9, 0}));
}

TEST(SplitThreadsOverNodes, NoNodeIsOverfullWhileACoreIsFree) {
  const std::vector<std::vector<int>> machines = {{24, 24}, {4, 24}, {1, 2, 3}, {8, 0, 8, 5}, {1}};
  for (const std::vector<int>& cores : machines) {
    for (int threads = 0; threads <= 100; ++threads) {
      const std::vector<int> split = split_threads_over_nodes(threads, cores);
      ASSERT_EQ(std::accumulate(split.begin(), split.end(), 0), threads);
      bool overfull = false;
      bool free = false;
      for (size_t node = 0; node < cores.size(); ++node) {
        overfull |= split[node] > cores[node];
        free |= split[node] < cores[node];
      }
      EXPECT_FALSE(overfull && free) << threads;
    }
  }
}

TEST(ThisMachine, LimitsArePlausible) {
  const CpuLimits limits = read_cpu_limits();
  ASSERT_FALSE(limits.cpus.empty());
  const std::vector<int> cores = cores_per_node(limits);
  EXPECT_LE(default_thread_count(limits), std::accumulate(cores.begin(), cores.end(), 0));
  EXPECT_GE(default_thread_count(limits), 1);
}

TEST(ThisMachine, PinnedToOneCpuIsOneThread) {  // as under `taskset -c`
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int cpu = read_cpu_limits().cpus.back().cpu;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const CpuLimits limits = read_cpu_limits();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  ASSERT_EQ(limits.cpus.size(), 1u);
  EXPECT_EQ(limits.cpus[0].cpu, cpu);
  EXPECT_EQ(default_thread_count(limits), 1);
}

}  // namespace
}  // namespace perch
