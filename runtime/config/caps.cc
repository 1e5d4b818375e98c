// See caps.h. Part of step 1, config.
#include "config/caps.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace perch {
namespace {

constexpr std::array<std::string_view, 14> kNames = {"DETERMINISTIC",
                                                     "BATCH_INVARIANT",
                                                     "EXPERT_LOAD_INVARIANT",
                                                     "GRAPH_CAPTURE",
                                                     "ASYNC",
                                                     "NO_ALLOC_EXECUTE",
                                                     "CONCURRENT_EXECUTE",
                                                     "INPLACE",
                                                     "FP32_ACCUM",
                                                     "ROW_STRIDED_ACT",
                                                     "ZERO_COPY_WEIGHTS",
                                                     "THREADS_FROM_HOST",
                                                     "Y_MAY_ALIAS_WORKSPACE",
                                                     "PREQUANTIZED_INPUT"};
static_assert(PERCH_CAPS_KNOWN == (perch_caps{1} << kNames.size()) - 1, "a name for every bit");
static_assert(PERCH_CAP_FP32_ACCUM == perch_caps{1} << 8, "the order of the bits");

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

}  // namespace

std::span<const std::string_view> cap_names() { return kNames; }

std::optional<perch_caps> cap_from_name(std::string_view name) {
  for (size_t bit = 0; bit < kNames.size(); ++bit) {
    const bool same = std::equal(name.begin(), name.end(), kNames[bit].begin(), kNames[bit].end(),
                                 [](char a, char b) { return upper(a) == b; });
    if (same) return perch_caps{1} << bit;
  }
  return std::nullopt;
}

std::vector<std::string_view> names_of_caps(perch_caps caps) {
  std::vector<std::string_view> names;
  for (size_t bit = 0; bit < kNames.size(); ++bit) {
    if ((caps >> bit & 1U) != 0) names.push_back(kNames[bit]);
  }
  return names;
}

}  // namespace perch
