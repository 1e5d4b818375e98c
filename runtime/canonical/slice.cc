#include "canonical/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace perch {
namespace {

std::vector<int64_t> edges_of(int64_t size, int64_t unit, int64_t ranks) {
  const int64_t units = ceil_div(size, unit);
  std::vector<int64_t> edges;
  for (int64_t rank = 0; rank <= ranks; ++rank) {
    edges.push_back(std::min(size, ceil_div(units * rank, ranks) * unit));
  }
  return edges;
}

}  // namespace

Result<std::vector<int64_t>> tensor_parallel_edges(const std::string& what, int64_t size,
                                                   const Grain& grain, int64_t tp_size) {
  const int64_t groups = ceil_div(size, grain.group);
  if (groups % tp_size == 0) return edges_of(size, grain.group, tp_size);
  if (size % tp_size == 0) {
    const int64_t part = size / tp_size;
    if (std::gcd(grain.group, part) % grain.finest == 0) return edges_of(size, part, tp_size);
  }
  // A divisor of the group that is a multiple of the finest, the largest first.
  for (int64_t parts = 1; parts <= grain.group / grain.finest; ++parts) {
    const int64_t unit = grain.group / parts;
    if (grain.group % parts != 0 || unit % grain.finest != 0) continue;
    if (ceil_div(size, unit) >= tp_size) return edges_of(size, unit, tp_size);
  }
  return invalid_argument(fmt::format(
      "{}: got size {} in groups of {} for tp {}; want at least {} for each rank: tp {} "
      "or less works, or expert parallelism",
      what, size, grain.group, tp_size, grain.finest, ceil_div(size, grain.finest)));
}

std::vector<int64_t> expert_parallel_ids(int64_t experts, const Split& split) {
  std::vector<int64_t> ids;
  if (split.round_robin) {
    for (int64_t e = split.ep_rank; e < experts; e += split.ep_size) ids.push_back(e);
    return ids;
  }
  const int64_t base = experts / split.ep_size;
  const int64_t rest = experts % split.ep_size;
  const int64_t rank = split.ep_rank;
  const int64_t begin = rank * base + std::min(rank, rest);
  ids.resize(static_cast<size_t>(base + (rank < rest ? 1 : 0)));
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

std::vector<int32_t> expert_map(int64_t experts, const std::vector<int64_t>& local) {
  std::vector<int32_t> map(static_cast<size_t>(experts), -1);
  for (size_t i = 0; i < local.size(); ++i) {
    map[static_cast<size_t>(local[i])] = static_cast<int32_t>(i);
  }
  return map;
}

Status check_split(const Split& split) {
  const auto check = [](const char* what, uint32_t rank, uint32_t size) -> Status {
    if (size >= 1 && size <= 65536 && rank < size) return {};
    return invalid_argument(
        fmt::format("{}: got rank {} of {}; want 0 <= rank < size", what, rank, size));
  };
  PERCH_RETURN_IF_ERROR(check("tp", split.tp_rank, split.tp_size));
  return check("ep", split.ep_rank, split.ep_size);
}

}  // namespace perch
