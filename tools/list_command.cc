// perch list: every library found, what it is, and why it is not used when it is not.
#include <fmt/format.h>

#include <iostream>

#include "command.h"

namespace perch_command {
namespace {

using nlohmann::ordered_json;

std::string join_devices(const ordered_json& devices) {
  std::string text;
  for (const auto& device : devices) {
    text += (text.empty() ? "" : ", ") + device["device"].get<std::string>() + " (" +
            device["arch"].get<std::string>() + ")";
    if (!device["usable"].get<bool>()) text += " unusable: " + device["reason"].get<std::string>();
  }
  return text;
}

void print_people(const ordered_json& report) {
  Table table({"ID", "VERSION", "ABI", "STATE", "DEVICES", "MAY PROMISE"});
  for (const auto& library : report["libraries"]) {
    std::string caps;
    for (const auto& cap : library["caps_possible"]) {
      caps += (caps.empty() ? "" : " ") + cap.get<std::string>();
    }
    table.add({library["id"], library["version"], library["abi"], library["state"],
               join_devices(library["devices"]), caps});
  }
  table.print(std::cout);
  for (const auto& library : report["libraries"]) {
    if (library["reason"].get<std::string>().empty()) continue;
    std::cout << fmt::format("\n{} ({}): {}\n", library["path"].get<std::string>(),
                             library["state"].get<std::string>(),
                             library["reason"].get<std::string>());
  }
  std::cout << "\nSearched, in this order:\n";
  for (const auto& place : report["search"]) {
    const std::string reason = place["reason"];
    std::cout << fmt::format(
        "  {} ({}): {}\n", place["path"].get<std::string>(), place["origin"].get<std::string>(),
        reason.empty() ? fmt::format("{} libraries", place["files"].get<int>()) : reason);
  }
}

int run_list(const CommonOptions& common) {
  const perch_host::Runtime runtime = open_runtime(common);
  const auto report = ordered_json::parse(perch_host::json(perch_runtime_report, runtime.get()));
  if (common.json) {
    std::cout << report.dump(2) << "\n";
  } else {
    print_people(report);
  }
  return kExitFine;
}

}  // namespace

void register_list(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command = app->add_subcommand("list", "every backend library found, with its state");
  add_common_options(command, common);
  command->callback([=] { *handler = [=] { return run_list(*common); }; });
}

}  // namespace perch_command
