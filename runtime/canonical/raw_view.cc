#include "canonical/raw_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace perch {

std::string module_label(const Projection& projection) {
  const std::string where =
      projection.parts.empty() ? "" : file_prefix(*projection.parts.front().second.tensor);
  return where + "module " + quoted_name(projection.module);
}

std::string print_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace perch
