// perch explain: which backend each layer gets, why, and why not each of the others.
#include <fmt/format.h>

#include <iostream>

#include "base/case_line.h"
#include "command.h"
#include "selection_table.h"

namespace perch_command {
namespace {

using nlohmann::ordered_json;

bool is_case(const std::string& text) {
  return text.rfind("moe ", 0) == 0 || text.rfind("linear ", 0) == 0;
}

ordered_json explain_case(const perch_host::Runtime& runtime, const ModelOptions& options) {
  auto parsed = perch::parse_case(options.model);
  if (!parsed.ok()) throw Failure(kExitBadInput, "CASE: " + parsed.status().message());
  for (const std::string& name : options.require) {
    const auto cap = perch::parse_cap(name);
    if (!cap) throw Failure(kExitBadInput, "--require: got \"" + name + "\"; want a promise");
    parsed->config.layer().require |= *cap;
  }
  return ordered_json::parse(perch_host::json(perch_select, runtime.get(), &parsed->config.abi()));
}

int run_explain(const CommonOptions& common, const ModelOptions& options) {
  const perch_host::Runtime runtime = open_runtime(common);
  ordered_json layers = ordered_json::array();
  if (is_case(options.model)) {
    layers.push_back(explain_case(runtime, options));
  } else {
    const perch_host::Model model = open_model(runtime, options);
    for (const uint32_t index : matching_layers(model, options)) {
      layers.push_back(
          ordered_json::parse(perch_host::json(perch_model_explain, model.get(), index)));
    }
  }
  const auto report = ordered_json::parse(perch_host::json(perch_runtime_report, runtime.get()));
  int code = kExitFine;
  for (const auto& layer : layers) {
    if (layer["chosen"].is_null()) code = kExitNoBackend;
  }
  if (common.json) {
    std::cout << ordered_json{{"layers", layers}, {"config", report["config"]}}.dump(2) << "\n";
    return code;
  }
  for (const auto& layer : layers) print_selection(layer, std::cout);
  std::cout << "Effective config (with the origin of each value):\n"
            << report["config"].dump(2) << "\n";
  return code;
}

}  // namespace

void print_selection(const nlohmann::ordered_json& layer, std::ostream& out) {
  const std::string rule = layer["rule"];
  std::string require;
  for (const auto& cap : layer["require"]) require += " " + cap.get<std::string>();
  out << fmt::format(
      "{} ({}, {}, {}){}{}\n", layer["layer"].get<std::string>(), layer["kind"].get<std::string>(),
      layer["recipe"].get<std::string>(), layer["device"].get<std::string>(),
      require.empty() ? "" : ", require" + require, rule.empty() ? "" : ", rule " + rule);
  for (const auto& note : layer["notes"]) out << "  note: " << note.get<std::string>() << "\n";
  const bool chosen = !layer["chosen"].is_null();
  if (!chosen) out << "  no backend fits\n";
  Table table({"", "BACKEND", "KERNEL", "PROMISES OR REASONS"});
  bool first = true;
  for (const auto& candidate : layer["candidates"]) {
    const bool fits = candidate["verdict"] == "yes";
    std::string text;
    if (fits) {
      for (const auto& cap : candidate["caps"]) text += cap.get<std::string>() + " ";
    }
    for (const auto& reason : candidate["reasons"]) {
      text += fmt::format("{} {}: {}; ", reason["code"].get<std::string>(),
                          reason["field"].get<std::string>(), reason["text"].get<std::string>());
    }
    table.add({fits ? (first && chosen ? "=>" : "ok") : "no",
               fmt::format("{}/{}", candidate["backend"].get<std::string>(),
                           candidate["variant"].get<int>()),
               candidate["kernel"], text});
    first = false;
  }
  table.print(out, "  ");
  out << "\n";
}

void register_explain(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command =
      app->add_subcommand("explain", "the candidates of each layer, with all reasons");
  auto options = std::make_shared<ModelOptions>();
  command->add_option("MODEL|CASE", options->model, "checkpoint directory, or a case line")
      ->required();
  add_common_options(command, common);
  add_model_options(command, options.get());
  command->callback([=] { *handler = [=] { return run_explain(*common, *options); }; });
}

}  // namespace perch_command
