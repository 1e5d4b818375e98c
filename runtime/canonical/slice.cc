#include "canonical/slice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"

namespace perch {

Result<Range> tensor_parallel_range(const std::string& what, int64_t size, int64_t unit,
                                    const Split& split) {
  const int64_t units = ceil_div(size, unit);
  if (units < split.tp_size) {
    return invalid_argument(
        fmt::format("{}: got size {} in units of {} for tp {}; want at least one unit per rank: tp "
                    "{} or less works",
                    what, size, unit, split.tp_size, units));
  }
  const auto edge = [&](int64_t rank) {
    return std::min(size, ceil_div(units * rank, split.tp_size) * unit);
  };
  return Range{edge(split.tp_rank), edge(int64_t{split.tp_rank} + 1)};
}

Range expert_parallel_range(int64_t experts, const Split& split) {
  const int64_t base = experts / split.ep_size;
  const int64_t rest = experts % split.ep_size;
  const int64_t rank = split.ep_rank;
  const int64_t begin = rank * base + std::min(rank, rest);
  return {begin, begin + base + (rank < rest ? 1 : 0)};
}

std::vector<int32_t> expert_map(int64_t experts, const Range& local) {
  std::vector<int32_t> map(static_cast<size_t>(experts), -1);
  for (int64_t e = local.begin; e < local.end; ++e) {
    map[static_cast<size_t>(e)] = static_cast<int32_t>(e - local.begin);
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
