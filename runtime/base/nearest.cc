// See nearest.h: the optimal string alignment distance, on names of up to 64 bytes.

#include "base/nearest.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace perch {
namespace {

constexpr size_t kLongestName = 64;
using Row = std::array<size_t, kLongestName + 1>;

char folded(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

size_t distance(std::string_view a, std::string_view b) {
  Row before{}, previous{}, current{};
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = folded(a[i - 1]) == folded(b[j - 1]);
      size_t least = previous[j - 1] + (same ? 0 : 1);
      least = std::min({least, previous[j] + 1, current[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
                           folded(a[i - 2]) == folded(b[j - 1]);
      if (swapped) least = std::min(least, before[j - 2] + 1);
      current[j] = least;
    }
    before = previous;
    previous = current;
  }
  return previous[b.size()];
}

}  // namespace

std::optional<std::string_view> nearest_name(std::string_view wrong,
                                             std::span<const std::string_view> known) {
  if (wrong.empty() || wrong.size() > kLongestName) return std::nullopt;
  std::optional<std::string_view> nearest;
  size_t least = (wrong.size() + 2) / 3 + 1;
  for (const std::string_view name : known) {
    if (name.size() > kLongestName) continue;
    const size_t edits = distance(wrong, name);
    if (edits >= least) continue;
    least = edits;
    nearest = name;
  }
  return nearest;
}

std::string did_you_mean(std::string_view wrong, std::span<const std::string_view> known) {
  const auto name = nearest_name(wrong, known);
  return name ? "; did you mean \"" + std::string(*name) + "\"?" : "";
}

}  // namespace perch
