// How messages name a module and the shape of a tensor.
#include "canonical/raw_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "checkpoint/mapped_file.h"

namespace perch {

std::string print_module(const Projection& projection) {
  std::vector<std::string> paths;
  for (const auto& [suffix, view] : projection.parts) {
    if (view.tensor->file == nullptr) continue;
    const std::string& path = view.tensor->file->path();
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  }
  return fmt::format("{}{}module {}", fmt::join(paths, ", "), paths.empty() ? "" : ": ",
                     quoted_name(projection.module));
}

std::string print_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace perch
