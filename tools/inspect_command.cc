// perch inspect: the layers of a checkpoint, and what decided how each was read.
#include <fmt/format.h>

#include <iostream>

#include "command.h"

namespace perch_command {
namespace {

using nlohmann::ordered_json;

std::string print_sizes(const ordered_json& layer) {
  const auto& sizes = layer["sizes"];
  if (layer["kind"] == "linear") {
    return fmt::format("{} x {}", sizes["n"].get<long long>(), sizes["k"].get<long long>());
  }
  return fmt::format("E {} top{} H {} I {}", sizes["experts"].get<long long>(),
                     sizes["topk"].get<long long>(), sizes["hidden"].get<long long>(),
                     sizes["intermediate"].get<long long>());
}

// The line under the table for a layer with modules that the host runs beside it; "" for others.
std::string print_neighbours(const ordered_json& layer) {
  std::string text;
  if (layer.contains("shared_expert")) {
    const auto& shared = layer["shared_expert"];
    text = " shared expert " + shared["module"].get<std::string>();
    if (!shared["width"].is_null()) text += fmt::format(" I {}", shared["width"].get<long long>());
    if (!shared["gate"].is_null()) text += " times sigmoid of " + shared["gate"].get<std::string>();
  }
  if (layer.contains("latent")) {
    const auto& latent = layer["latent"];
    text += fmt::format("{} latent {} of {} through {} and {}", text.empty() ? "" : ";",
                        latent["width"].get<long long>(), latent["hidden"].get<long long>(),
                        latent["down"].get<std::string>(), latent["up"].get<std::string>());
  }
  return text.empty() ? "" : layer["name"].get<std::string>() + ":" + text;
}

void print_people(const ordered_json& model, const std::vector<uint32_t>& indices) {
  std::cout << fmt::format("model_type {}, transformers_version {}\n\n",
                           model["model_type"].get<std::string>(),
                           model["transformers_version"].get<std::string>());
  Table table({"LAYER", "KIND", "SIZES", "RECIPE", "BYTES", "ORIENTATION", "ROUTING"});
  for (const uint32_t index : indices) {
    const auto& layer = model["layers"][index];
    const bool moe = layer["kind"] == "moe";
    table.add({layer["name"], layer["kind"], print_sizes(layer), layer["recipe"],
               print_bytes(layer["bytes"].get<double>()),
               moe ? fmt::format("{} ({})", layer["orientation"]["value"].get<std::string>(),
                                 layer["orientation"]["decided_by"].get<std::string>())
                   : "",
               moe ? layer["routing"].get<std::string>() : ""});
  }
  table.print(std::cout);
  for (const uint32_t index : indices) {
    const std::string neighbours = print_neighbours(model["layers"][index]);
    if (!neighbours.empty()) std::cout << "beside " << neighbours << "\n";
  }
  for (const auto& warning : model["warnings"]) {
    std::cout << "warning: " << warning.get<std::string>() << "\n";
  }
}

int run_inspect(const CommonOptions& common, const ModelOptions& options) {
  const perch_host::Runtime runtime = open_runtime(common);
  const perch_host::Model model = open_model(runtime, options);
  auto document = ordered_json::parse(perch_host::json(perch_model_inspect, model.get()));
  const std::vector<uint32_t> indices =
      perch_model_num_layers(model.get()) == 0 && options.layer == "*"
          ? std::vector<uint32_t>()
          : matching_layers(model, options);
  if (!common.json) {
    print_people(document, indices);
    return kExitFine;
  }
  ordered_json layers = ordered_json::array();
  for (const uint32_t index : indices) layers.push_back(document["layers"][index]);
  document["layers"] = std::move(layers);
  std::cout << document.dump(2) << "\n";
  return kExitFine;
}

}  // namespace

void register_inspect(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command = app->add_subcommand("inspect", "the layers of a checkpoint directory");
  auto options = std::make_shared<ModelOptions>();
  command->add_option("MODEL", options->model, "checkpoint directory")->required();
  add_common_options(command, common);
  add_model_options(command, options.get());
  command->callback([=] { *handler = [=] { return run_inspect(*common, *options); }; });
}

}  // namespace perch_command
