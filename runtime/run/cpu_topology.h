// How many CPU threads this process should use, and on which memory nodes.
//
// Reading (read_cpu_limits) and deciding (the rest, pure functions) are apart, so that decisions
// are tested on machines nobody has. Not here: the user's own choice of a thread count, which wins
// over the default and needs none of this, and pinning.
#pragma once

#include <string>
#include <vector>

namespace perch {

// A CPU as the kernel numbers them: with SMT, several make one physical core.
struct AllowedCpu {
  int cpu = 0;
  int core = 0;  // the lowest CPU of its physical core
  int node = 0;  // memory node
};

struct CpuLimits {
  std::vector<AllowedCpu> cpus;  // those the affinity mask allows, ascending
  double quota_cpus = 0.0;       // the tightest cgroup quota, in CPUs' worth of time; 0: none
};

// What the system allows the calling thread: its affinity mask, the cgroup quotas above it, the
// cores and nodes of its CPUs. What cannot be read counts as no limit, each CPU as a core, all of
// them on node 0; without an affinity mask it is one CPU.
CpuLimits read_cpu_limits();

// The same with the affinity mask given, and /proc and /sys found under `root` ("" is the real
// one).
CpuLimits read_cpu_limits(const std::vector<int>& allowed_cpus, const std::string& root);

// One thread per allowed physical core, no more than the whole CPUs of the quota (a fraction would
// buy throttling: all threads stand still for the rest of the period), at least 1.
int default_thread_count(const CpuLimits& limits);

// Allowed physical cores of each memory node that has any, ascending by node.
std::vector<int> cores_per_node(const CpuLimits& limits);

// Threads for each node: evenly, as each node brings its own memory bandwidth, but a node gets more
// threads than it has cores only when every core is taken, and then in proportion to its cores.
// `threads` >= 0, and some node must have a core.
std::vector<int> split_threads_over_nodes(int threads, const std::vector<int>& cores_per_node);

}  // namespace perch
