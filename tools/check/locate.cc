#include "check/locate.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/nearest.h"
#include "check/child.h"

namespace perch_check {
namespace {

using nlohmann::json;
using perch_command::CommonOptions;
using perch_command::Failure;

// Seconds that all entries and creates together may take.
constexpr double kPatience = 60;

// The report's libraries, or throws with what the child said.
json list_libraries(const CommonOptions& common) {
  Child child([&](const Child::Say& say) {
    json answer = {{"error", ""}};
    try {
      const perch_host::Runtime runtime = perch_command::open_runtime(common);
      answer["libraries"] =
          json::parse(perch_host::json(perch_runtime_report, runtime.get()))["libraries"];
    } catch (const std::exception& error) {
      answer["error"] = error.what();
    }
    say(answer.dump(-1, ' ', false, json::error_handler_t::replace));
  });
  std::vector<std::string> lines;
  if (!listen(&child, kPatience, [&](const std::string& line) { lines.push_back(line); })) {
    throw Failure(perch_command::kExitFailed,
                  fmt::format("loading the backends: no answer within {} s", kPatience));
  }
  if (lines.empty()) {
    throw Failure(perch_command::kExitFailed, "loading the backends: " + child.epitaph());
  }
  const json answer = json::parse(lines[0]);
  const std::string error = answer["error"];
  if (!error.empty()) throw Failure(perch_command::kExitBadInput, error);
  return answer["libraries"];
}

}  // namespace

std::string shell_quoted(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyz"
                                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./:=,+") == std::string::npos;
  if (plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

Located locate_backend(const CommonOptions& common, const std::string& id,
                       const std::string& option) {
  const json libraries = list_libraries(common);
  std::vector<std::string> ids;
  std::string reason;
  for (const json& library : libraries) {
    if (library["state"] == "loaded") ids.push_back(library["id"]);
    if (library["id"] != id) continue;
    if (library["state"] == "loaded") return {library["path"], id};
    reason = fmt::format("{}: {}", library["path"].get<std::string>(),
                         library["reason"].get<std::string>());
  }
  if (!reason.empty()) throw Failure(perch_command::kExitBadInput, reason);
  std::string all;
  for (const std::string& known : ids) all += " " + known;
  const std::vector<std::string_view> views(ids.begin(), ids.end());
  const auto near = perch::nearest_name(id, views);
  throw Failure(perch_command::kExitBadInput,
                fmt::format("{}: got \"{}\"; want one of:{}{}", option, id, all,
                            near ? fmt::format("; did you mean {}?", *near) : ""));
}

Located locate_plugin(const CommonOptions& common, const std::string& file,
                      const std::string& option) {
  std::error_code failed;
  const std::string path = std::filesystem::canonical(file, failed).string();
  if (failed) {
    throw Failure(perch_command::kExitBadInput,
                  fmt::format("{}: {}: {}", option, file, failed.message()));
  }
  CommonOptions only = common;
  only.backend_path = path;
  for (const json& library : list_libraries(only)) {
    std::error_code none;
    if (!std::filesystem::equivalent(library["path"].get<std::string>(), path, none)) continue;
    if (library["state"] == "loaded") return {path, library["id"]};
    throw Failure(perch_command::kExitBadInput,
                  fmt::format("{}: {}", path, library["reason"].get<std::string>()));
  }
  throw Failure(perch_command::kExitBadInput, path + ": not found by the loader");
}

}  // namespace perch_check
