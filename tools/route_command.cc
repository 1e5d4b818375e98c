// perch route: router logits -> expert ids and weights, as the model defines it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "command.h"
#include "layer_input.h"

namespace perch_command {
namespace {

using nlohmann::ordered_json;

struct RouteOptions {
  ModelOptions model;
  InputOptions input;
};

struct Routed {
  int64_t tokens = 0;
  int64_t topk = 0;
  std::vector<float> logits;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  const float* expert_scale = nullptr;  // [experts] or null; the model's
};

// Rows of the file's logits, or of logits made from its input or from the seed.
std::optional<Routed> route_layer(perch_model* model, uint32_t index, const InputOptions& options,
                                  const perch_tensors* tensors) {
  const perch_route_config* config = perch_model_route_config(model, index);
  if (config == nullptr) return std::nullopt;
  const auto input = make_router_input(model, index, options, tensors);
  if (!input) return std::nullopt;
  const perch_layer_config& layer = *perch_model_layer_config(model, index);
  Routed routed;
  routed.tokens = input->tokens;
  routed.topk = config->topk;
  routed.expert_scale = config->expert_scale;
  routed.logits.resize(static_cast<size_t>(routed.tokens * config->num_experts));
  routed.ids.resize(static_cast<size_t>(routed.tokens * routed.topk));
  routed.weights.resize(routed.ids.size());
  perch_host::Tensor x(const_cast<std::byte*>(input->x.data()), dlpack_type(layer.in_dtype),
                       {routed.tokens, router_width(model, index)});
  perch_host::Tensor logits(routed.logits.data(), {kDLFloat, 32, 1},
                            {routed.tokens, config->num_experts});
  perch_host::Tensor ids(routed.ids.data(), {kDLInt, 32, 1}, {routed.tokens, routed.topk});
  perch_host::Tensor weights(routed.weights.data(), {kDLFloat, 32, 1},
                             {routed.tokens, routed.topk});
  perch_host::check(perch_model_router_logits, model, index, x.get(), logits.get());
  perch_host::check(perch_route, config, logits.get(), ids.get(), weights.get());
  return routed;
}

// Chosen experts and weights of a row against another choice of the same row: as sets, since models
// differ in the order, and equal logits may be chosen either way, each with its expert's own scale.
double row_difference(const Routed& routed, int64_t row, const int32_t* ids, const float* weights) {
  double worst = 0;
  const int64_t experts = static_cast<int64_t>(routed.logits.size()) / routed.tokens;
  for (int64_t i = 0; i < routed.topk; ++i) {
    double nearest = HUGE_VAL;
    for (int64_t j = 0; j < routed.topk; ++j) {
      const auto mine = static_cast<size_t>(row * routed.topk + j);
      const auto a = static_cast<size_t>(row * experts + routed.ids[mine]);
      const auto b = static_cast<size_t>(row * experts + ids[i]);
      const bool same = routed.ids[mine] == ids[i];
      if (!same && routed.logits[a] != routed.logits[b]) continue;
      double want = weights[i];
      if (!same && routed.expert_scale != nullptr) {
        want *= double{routed.expert_scale[routed.ids[mine]]} / routed.expert_scale[ids[i]];
      }
      const double difference =
          std::fabs(double{routed.weights[mine]} - want) / std::max(1e-6, std::fabs(want));
      nearest = same ? difference : std::min(nearest, difference);
      if (same) break;
    }
    worst = std::max(worst, nearest);
  }
  return worst;
}

constexpr double kWeightTolerance = 1e-5;  // f32 sums over the experts, in another order

ordered_json compare_routing(const Routed& routed, const std::string& layer,
                             const perch_tensors* tensors, const std::string& file) {
  const perch_named_tensor* ids = perch_tensors_find(tensors, (layer + ".ids").c_str());
  const perch_named_tensor* weights = perch_tensors_find(tensors, (layer + ".weights").c_str());
  if (ids == nullptr || weights == nullptr) {
    throw Failure(kExitBadInput, fmt::format("{}: want {}.ids and {}.weights", file, layer, layer));
  }
  double worst = 0;
  int64_t worst_row = 0;
  for (int64_t row = 0; row < routed.tokens; ++row) {
    const double difference = row_difference(
        routed, row, static_cast<const int32_t*>(ids->tensor->data) + row * routed.topk,
        static_cast<const float*>(weights->tensor->data) + row * routed.topk);
    if (difference > worst) {
      worst = difference;
      worst_row = row;
    }
  }
  return {{"against", file},
          {"ok", worst <= kWeightTolerance},
          {"worst_relative_weight", std::isfinite(worst) ? ordered_json(worst) : ordered_json()},
          {"worst_row", worst_row}};
}

void print_people(const ordered_json& layer) {
  std::cout << layer["name"].get<std::string>() << "\n";
  Table table({"ROW", "IDS", "WEIGHTS"});
  for (size_t row = 0; row < layer["ids"].size(); ++row) {
    std::string weights;
    for (const auto& weight : layer["weights"][row]) {
      weights += fmt::format("{:.6f} ", weight.get<double>());
    }
    table.add({std::to_string(row), layer["ids"][row].dump(), weights});
  }
  table.print(std::cout, "  ");
  if (layer["error"].is_null()) return;
  std::cout << fmt::format("  {} with {}\n",
                           layer["error"]["ok"].get<bool>() ? "agrees" : "DIFFERS",
                           layer["error"]["against"].get<std::string>());
}

int run_route(const CommonOptions& common, const RouteOptions& options) {
  const perch_host::Runtime runtime = open_runtime(common);
  const perch_host::Model model = open_model(runtime, options.model);
  perch_host::Tensors tensors;
  if (!options.input.file.empty()) tensors = perch_host::open_tensors(options.input.file);
  ordered_json layers = ordered_json::array();
  bool ok = true;
  for (const uint32_t index : matching_layers(model, options.model)) {
    const perch_layer_config& config = *perch_model_layer_config(model.get(), index);
    if (config.kind != PERCH_KIND_MOE) continue;
    const auto routed = route_layer(model.get(), index, options.input, tensors.get());
    if (!routed) continue;
    ordered_json layer = {{"name", config.name},
                          {"ids", ordered_json::array()},
                          {"weights", ordered_json::array()},
                          {"error", nullptr}};
    for (int64_t row = 0; row < routed->tokens; ++row) {
      const auto begin = row * routed->topk;
      layer["ids"].push_back(std::vector<int32_t>(routed->ids.begin() + begin,
                                                  routed->ids.begin() + begin + routed->topk));
      layer["weights"].push_back(std::vector<float>(
          routed->weights.begin() + begin, routed->weights.begin() + begin + routed->topk));
    }
    if (options.input.expect) {
      layer["error"] = compare_routing(*routed, config.name, tensors.get(), options.input.file);
      ok = ok && layer["error"]["ok"].get<bool>();
    }
    if (!common.json) print_people(layer);
    layers.push_back(std::move(layer));
  }
  if (layers.empty()) {
    throw Failure(kExitBadInput,
                  "no matching layer has a router and input; perch inspect says why");
  }
  if (common.json) std::cout << ordered_json{{"ok", ok}, {"layers", layers}}.dump(2) << "\n";
  return ok ? kExitFine : kExitFailed;
}

}  // namespace

void register_route(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command = app->add_subcommand("route", "expert ids and weights by the model's router");
  auto options = std::make_shared<RouteOptions>();
  command->add_option("MODEL", options->model.model, "checkpoint directory")->required();
  add_common_options(command, common);
  add_model_options(command, &options->model);
  add_input_options(command, &options->input,
                    "as --input, with <layer>.ids and .weights to compare with");
  command->callback([=] { *handler = [=] { return run_route(*common, *options); }; });
}

}  // namespace perch_command
