// See environment.h. Part of step 1, config.
#include "config/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>

#include "base/nearest.h"
#include "config/limits.h"
#include "config/text.h"
#include "config/yaml_value.h"

namespace perch {
namespace {

constexpr std::string_view kPrefix = "PERCH_";
constexpr std::array<std::string_view, 4> kVariables = {"PERCH_BACKEND_PATH", "PERCH_LOG",
                                                        "PERCH_THREADS", "PERCH_VALIDATE"};

// A value with its place, on its way into the config.
struct Incoming {
  std::string_view value;
  const std::string& origin;
};

Status wrong(const Incoming& in, const std::string& want) {
  return invalid_argument(fmt::format("{}: got {}; want {}", in.origin, quote(in.value), want));
}

Status unknown_variable(std::string_view name) {
  return invalid_argument(fmt::format("env {}: got an unknown variable; want {}{}",
                                      quote(name).substr(1, quote(name).size() - 2),
                                      one_of(kVariables), did_you_mean(name, kVariables)));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Puts a value in the place of another and notes what it replaced, unless that was the default.
template <class T>
void replace(Config& config, std::string_view name, Setting<T>& setting, T value,
             const Incoming& in) {
  if (setting.origin.where != Origin().where) {
    config.overridden.push_back(fmt::format("{}: {} from {} takes the place of {}", name,
                                            quote(in.value), in.origin, setting.origin.where));
  }
  setting = {std::move(value), {in.origin}};
}

Status set_log(Config& config, const Incoming& in) {
  const auto found = std::find(kLogLevelNames.begin(), kLogLevelNames.end(), in.value);
  if (found == kLogLevelNames.end()) {
    return wrong(in, one_of(kLogLevelNames) + did_you_mean(in.value, kLogLevelNames));
  }
  const auto index = static_cast<size_t>(found - kLogLevelNames.begin());
  replace(config, "log.level", config.log_level, kLogLevels[index], in);
  return {};
}

Status set_threads(Config& config, const Incoming& in) {
  int32_t threads = 0;
  const char* end = in.value.data() + in.value.size();
  const auto [stop, error] = std::from_chars(in.value.data(), end, threads);
  const bool is_number = error == std::errc() && stop == end;
  if (!is_number || threads < 0 || threads > kThreadsMax) {
    return wrong(in, fmt::format("a whole number from 0 (one per core) to {}", kThreadsMax));
  }
  replace(config, "threads", config.threads, threads, in);
  return {};
}

Status set_validate(Config& config, const Incoming& in) {
  if (in.value != "0" && in.value != "1") return wrong(in, "0 or 1");
  replace(config, "validate", config.validate, in.value == "1", in);
  return {};
}

enum class Place { kFirst, kLast };

Status add_paths(Config& config, const Incoming& in, Place place) {
  std::vector<Setting<std::string>> added;
  for (const std::string_view path : split(in.value, ':')) {
    if (!path.starts_with('/')) return wrong(in, "absolute paths with ':' between them");
    added.push_back({std::string(path), {in.origin}});
  }
  std::vector<Setting<std::string>>& paths = config.backends.paths;
  paths.insert(place == Place::kFirst ? paths.begin() : paths.end(), added.begin(), added.end());
  return {};
}

Status set_use(Config& config, const Incoming& in) {
  std::vector<std::string> ids;
  if (in.value != "auto") {
    for (const std::string_view id : split(in.value, ',')) {
      if (!is_backend_id(id)) return wrong(in, "backend ids with ',' between them, or auto");
      ids.emplace_back(id);
    }
  }
  if (!config.select.use_option) config.select.use_option.emplace();
  replace(config, "use", *config.select.use_option, std::move(ids), in);
  return {};
}

}  // namespace

std::span<const std::string_view> environment_variables() { return kVariables; }

Status check_environment(const std::vector<std::string>& entries) {
  for (const std::string_view entry : entries) {
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix)) continue;
    const bool known = std::find(kVariables.begin(), kVariables.end(), name) != kVariables.end();
    if (!known) return unknown_variable(name);
  }
  return {};
}

Status apply_environment(Config& config,
                         const std::vector<std::pair<std::string, std::string>>& variables) {
  Config changed = config;
  for (const auto& [name, value] : variables) {
    const std::string origin = "env " + name;
    const Incoming in{value, origin};
    if (name == kVariables[0]) {
      PERCH_RETURN_IF_ERROR(add_paths(changed, in, Place::kLast));
    } else if (name == kVariables[1]) {
      PERCH_RETURN_IF_ERROR(set_log(changed, in));
    } else if (name == kVariables[2]) {
      PERCH_RETURN_IF_ERROR(set_threads(changed, in));
    } else if (name == kVariables[3]) {
      PERCH_RETURN_IF_ERROR(set_validate(changed, in));
    } else {
      return unknown_variable(name);
    }
  }
  config = std::move(changed);
  return {};
}

Status apply_option(Config& config, std::string_view setting, std::string_view value,
                    const std::string& origin) {
  const Incoming in{value, origin};
  if (setting == "backend_path") return add_paths(config, in, Place::kFirst);
  if (setting == "log") return set_log(config, in);
  if (setting == "threads") return set_threads(config, in);
  if (setting == "validate") return set_validate(config, in);
  if (setting == "backend") return set_use(config, in);
  return internal_error(fmt::format("apply_option: no setting {}", quote(setting)));
}

}  // namespace perch
