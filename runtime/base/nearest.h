// "Did you mean ...?": the known name nearest to one that is not known. Step 1, config, and every
// later step that refuses a name. A suggestion only: nothing is ever corrected silently.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace perch {

// The known name with the fewest typing errors to `wrong` (a letter missing, extra, wrong, or two
// swapped; case and '-' against '_' do not count), the first of equals. Nothing where more than a
// third of the letters, rounded up, would have to change: a far-fetched guess misleads.
std::optional<std::string_view> nearest_name(std::string_view wrong,
                                             std::span<const std::string_view> known);

// The end of a message: "; did you mean "backends"?", or "" where no known name is near.
std::string did_you_mean(std::string_view wrong, std::span<const std::string_view> known);

}  // namespace perch
