// Reads /proc and /sys into CpuLimits, then decides on it. Nothing here is kept between calls.
#include "run/cpu_topology.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "base/check.h"

namespace perch {
namespace {

std::vector<int> affinity_cpus() {
  // The mask must be as wide as the kernel's, which only trying tells.
  for (int width = CPU_SETSIZE; width <= (1 << 20); width *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(width));
    PERCH_CHECK(set != nullptr);
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(width));
    const bool read = sched_getaffinity(0, bytes, set) == 0;
    const bool too_narrow = !read && errno == EINVAL;
    std::vector<int> cpus;
    for (int cpu = 0; read && cpu < width; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (!too_narrow) return cpus;
  }
  return {};
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "0-2,5" -> {0, 1, 2, 5}; empty if it is not such a list.
std::vector<int> parse_cpu_list(const std::string& text) {
  constexpr int kCpusMax = 1 << 20;  // a longer range is not a list of CPUs
  std::vector<int> cpus;
  std::istringstream in(text);
  int first = 0;
  while (in >> first) {
    int last = first;
    if (in.peek() == '-') {
      in.get();
      if (!(in >> last)) return {};
    }
    if (first < 0 || last < first || last >= kCpusMax) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (in.get() != ',') break;
  }
  return cpus;
}

std::map<int, int> read_node_of_cpu(const std::string& root) {
  const std::string base = root + "/sys/devices/system/node/";
  std::map<int, int> node_of_cpu;
  for (int node : parse_cpu_list(first_line(base + "online"))) {
    const std::string list = base + "node" + std::to_string(node) + "/cpulist";
    for (int cpu : parse_cpu_list(first_line(list))) node_of_cpu[cpu] = node;
  }
  return node_of_cpu;
}

int read_core(int cpu, const std::string& root) {
  const std::vector<int> siblings =
      parse_cpu_list(first_line(root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                "/topology/thread_siblings_list"));
  return siblings.empty() ? cpu : *std::min_element(siblings.begin(), siblings.end());
}

// The quota of one cgroup directory, of either version; nothing if it sets none. Files of v2 do not
// exist in v1 and the other way round, so both are simply tried.
std::optional<double> read_quota(const std::string& directory) {
  std::istringstream v2(first_line(directory + "/cpu.max"));  // "max 100000" or "50000 100000"
  double quota = 0.0;
  double period = 0.0;
  if (v2 >> quota >> period && quota > 0.0 && period > 0.0) return quota / period;
  std::istringstream v1(first_line(directory + "/cpu.cfs_quota_us") + " " +
                        first_line(directory + "/cpu.cfs_period_us"));  // -1: none
  if (v1 >> quota >> period && quota > 0.0 && period > 0.0) return quota / period;
  return std::nullopt;
}

// The tightest quota from `group` up to the mount point; 0 if none. In a container `group` may be a
// path of the host that the mount does not show: the walk then ends at what it does show.
double tightest_quota(const std::string& mount, std::string group) {
  double tightest = 0.0;
  if (group.find("..") != std::string::npos) group.clear();  // outside of this cgroup namespace
  for (;;) {
    if (group == "/") group.clear();
    const std::optional<double> quota = read_quota(mount + group);
    if (quota && (tightest == 0.0 || *quota < tightest)) tightest = *quota;
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return tightest;
    group.erase(slash);
  }
}

bool has_word(const std::string& comma_list, const std::string& word) {
  std::istringstream in(comma_list);
  for (std::string item; std::getline(in, item, ',');) {
    if (item == word) return true;
  }
  return false;
}

// Lines of /proc/self/cgroup: "0::/group" for v2, "4:cpu,cpuacct:/group" for v1.
double read_quota_cpus(const std::string& root) {
  const std::string fs = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  double tightest = 0.0;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    std::vector<std::string> mounts;
    if (controllers.empty()) {
      mounts = {fs, fs + "/unified"};
    } else if (has_word(controllers, "cpu")) {
      mounts = {fs + "/cpu", fmt::format("{}/{}", fs, controllers)};
    }
    for (const std::string& mount : mounts) {
      const double quota = tightest_quota(mount, group);
      if (quota > 0.0 && (tightest == 0.0 || quota < tightest)) tightest = quota;
    }
  }
  return tightest;
}

std::map<int, std::set<int>> cores_of_nodes(const CpuLimits& limits) {
  std::map<int, std::set<int>> cores;
  for (const AllowedCpu& cpu : limits.cpus) cores[cpu.node].insert(cpu.core);
  return cores;
}

}  // namespace

CpuLimits read_cpu_limits() { return read_cpu_limits(affinity_cpus(), ""); }

CpuLimits read_cpu_limits(const std::vector<int>& allowed_cpus, const std::string& root) {
  const std::map<int, int> node_of_cpu = read_node_of_cpu(root);
  CpuLimits limits;
  for (int cpu : allowed_cpus) {
    const auto node = node_of_cpu.find(cpu);
    limits.cpus.push_back(
        {cpu, read_core(cpu, root), node == node_of_cpu.end() ? 0 : node->second});
  }
  limits.quota_cpus = read_quota_cpus(root);
  return limits;
}

int default_thread_count(const CpuLimits& limits) {
  std::set<int> cores;
  for (const AllowedCpu& cpu : limits.cpus) cores.insert(cpu.core);
  int count = std::max(1, static_cast<int>(cores.size()));
  if (limits.quota_cpus > 0.0 && limits.quota_cpus < count) {
    count = std::max(1, static_cast<int>(std::floor(limits.quota_cpus)));
  }
  return count;
}

std::vector<int> cores_per_node(const CpuLimits& limits) {
  std::vector<int> counts;
  for (const auto& [node, cores] : cores_of_nodes(limits)) {
    counts.push_back(static_cast<int>(cores.size()));
  }
  return counts;
}

std::vector<int> split_threads_over_nodes(int threads, const std::vector<int>& cores_per_node) {
  PERCH_CHECK(threads >= 0);
  PERCH_CHECK(std::any_of(cores_per_node.begin(), cores_per_node.end(),
                          [](int cores) { return cores > 0; }));
  std::vector<int> split(cores_per_node.size(), 0);
  // Whether node a takes the next thread rather than b: one with a free core before one without,
  // then fewer threads; among full nodes fewer threads a core.
  const auto before = [&](size_t a, size_t b) {
    const bool a_free = split[a] < cores_per_node[a];
    const bool b_free = split[b] < cores_per_node[b];
    if (a_free != b_free) return a_free;
    if (a_free) return split[a] < split[b];
    return int64_t{split[a]} * cores_per_node[b] < int64_t{split[b]} * cores_per_node[a];
  };
  for (int thread = 0; thread < threads; ++thread) {
    size_t best = split.size();
    for (size_t node = 0; node < split.size(); ++node) {
      if (cores_per_node[node] <= 0) continue;
      if (best == split.size() || before(node, best)) best = node;
    }
    ++split[best];
  }
  return split;
}

}  // namespace perch
