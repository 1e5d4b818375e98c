#include "canonical/module_names.h"

#include <algorithm>
#include <array>

#include "canonical/python_pattern.h"

namespace perch {
namespace {

constexpr std::array<std::string_view, 4> kNoise = {"model", "language_model", "backbone",
                                                    "transformer"};
// As wholes, since tools write these and no other mixtures.
constexpr std::array<std::string_view, 6> kPrefixes = {
    "", "model.", "language_model.model.", "model.language_model.", "backbone.", "transformer."};

bool begins_at_layers(std::string_view core) {
  return core.starts_with("layers.") || core.starts_with("blocks.");
}

// Whether `part` begins `name` and ends there at the end of a segment.
bool begins_with(std::string_view name, std::string_view part) {
  return name.starts_with(part) && (name.size() == part.size() || name[part.size()] == '.');
}

bool has_segments(std::string_view name, std::string_view part) {
  for (size_t at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1)) {
    if ((at == 0 || name[at - 1] == '.') && begins_with(name.substr(at), part)) return true;
  }
  return false;
}

bool is_special(char c) { return c == '*' || c == '?' || c == '['; }

// The length of the [...] that `wildcard` begins with, 0 where it has no end; whether c is in it.
size_t set_length(std::string_view wildcard, char c, bool* in) {
  const bool inverted = wildcard.size() > 1 && wildcard[1] == '!';
  const size_t first = inverted ? 2 : 1;
  const size_t end = wildcard.find(']', first + 1);
  if (end == std::string_view::npos) return 0;
  *in = false;
  for (size_t i = first; i < end; ++i) {
    const bool range = i + 2 < end && wildcard[i + 1] == '-';
    *in |= range ? wildcard[i] <= c && c <= wildcard[i + 2] : wildcard[i] == c;
    if (range) i += 2;
  }
  if (inverted) *in = !*in;
  return end + 1;
}

// How much of the wildcard takes the one character c: 0 where it does not. Not for `*`.
size_t one_length(std::string_view wildcard, char c) {
  if (wildcard.empty()) return 0;
  bool in = false;
  const size_t set = wildcard[0] == '[' ? set_length(wildcard, c, &in) : 0;
  if (set > 0) return in ? set : 0;
  return wildcard[0] == '?' || wildcard[0] == c ? 1 : 0;
}

// With both prefixes, or without: not where "model.*" would be left with nothing but the star.
bool wildcard_fits(std::string_view wildcard, std::string_view name) {
  if (wildcard_match(wildcard, name)) return true;
  const std::string_view core = core_name(wildcard);
  return !core.empty() && !is_special(core[0]) && wildcard_match(core, core_name(name));
}

}  // namespace

bool wildcard_match(std::string_view wildcard, std::string_view text) {
  // What comes before the first special character must be there as it stands: for most names of a
  // long list, that is all there is to compare.
  size_t at = 0;
  while (at < std::min(wildcard.size(), text.size()) && !is_special(wildcard[at]) &&
         wildcard[at] == text[at]) {
    ++at;
  }
  if (at < wildcard.size() && !is_special(wildcard[at])) return false;
  size_t taken = at;
  size_t after_star = std::string_view::npos;
  size_t star_taken = 0;
  while (taken < text.size()) {
    if (at < wildcard.size() && wildcard[at] == '*') {
      after_star = ++at;
      star_taken = taken;
    } else if (const size_t length = one_length(wildcard.substr(at), text[taken]); length > 0) {
      at += length;
      ++taken;
    } else if (after_star != std::string_view::npos) {
      // Only the last star needs to take more: what came before it matches already.
      at = after_star;
      taken = ++star_taken;
    } else {
      return false;
    }
  }
  return wildcard.find_first_not_of('*', at) == std::string_view::npos;
}

std::string_view core_name(std::string_view name) {
  const auto is_noise = [](std::string_view segment) {
    return std::find(kNoise.begin(), kNoise.end(), segment) != kNoise.end();
  };
  for (size_t dot = name.find('.'); dot != std::string_view::npos && is_noise(name.substr(0, dot));
       dot = name.find('.')) {
    name.remove_prefix(dot + 1);
  }
  return name;
}

bool is_wildcard(std::string_view entry) {
  return std::any_of(entry.begin(), entry.end(), is_special);
}

bool same_module(std::string_view entry, std::string_view module) {
  // Lists have hundreds of names and models tens of thousands of modules: most differ at the end.
  if (entry.empty() || module.empty() || entry.back() != module.back()) return false;
  return core_name(entry) == core_name(module);
}

bool is_within(std::string_view module, std::string_view entry) {
  return !entry.empty() &&
         (begins_with(module, entry) || begins_with(core_name(module), core_name(entry)));
}

Result<bool> is_not_converted(std::string_view module, std::string_view entry) {
  if (entry.starts_with("re:")) return pattern_names(entry.substr(3), module);
  if (entry.find('*') != std::string_view::npos) {
    for (size_t end = module.find('.'); end != std::string_view::npos;
         end = module.find('.', end + 1)) {
      if (wildcard_fits(entry, module.substr(0, end))) return true;
    }
    return wildcard_fits(entry, module);
  }
  if (is_within(module, entry)) return true;
  const bool anywhere = core_name(entry) == entry && !begins_at_layers(entry);
  return anywhere && !entry.empty() && has_segments(module, entry);
}

std::vector<std::string> names_of(std::string_view module) {
  std::vector<std::string> names = {std::string(module)};
  const std::string_view core = core_name(module);
  if (core == module && !begins_at_layers(core)) return names;
  for (const std::string_view prefix : kPrefixes) {
    std::string name = std::string(prefix) += core;
    if (name != module) names.push_back(std::move(name));
  }
  return names;
}

Result<bool> pattern_names(std::string_view pattern, std::string_view module) {
  PERCH_ASSIGN_OR_RETURN(const bool own, python_match(pattern, module));
  const bool own_only = pattern.starts_with(".*") || pattern.starts_with("^.*") ||
                        pattern.find("(?!") != std::string_view::npos;
  if (own || own_only) return own;
  for (const std::string& name : names_of(module)) {
    PERCH_ASSIGN_OR_RETURN(const bool matches, python_match(pattern, name));
    if (matches) return true;
  }
  return false;
}

bool wildcard_names(std::string_view wildcard, std::string_view module) {
  const std::string_view experts = experts_module(module);
  return wildcard_fits(wildcard, module) || (!experts.empty() && wildcard_fits(wildcard, experts));
}

std::string_view experts_module(std::string_view module) {
  constexpr std::string_view kExperts = "experts";
  for (size_t at = module.rfind(kExperts); at != std::string_view::npos;
       at = at == 0 ? at : module.rfind(kExperts, at - 1)) {
    const bool whole = at == 0 || module[at - 1] == '.';
    if (whole && begins_with(module.substr(at), kExperts)) {
      return module.substr(0, at + kExperts.size());
    }
    if (at == 0) break;
  }
  return {};
}

}  // namespace perch
