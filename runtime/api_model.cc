// perch_model_*: what a model is asked, and the layers made from it. Opening: api_model_open.cc.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api.h"
#include "api_tensors.h"
#include "base/recipe.h"
#include "run/compare_output.h"
#include "run/exec_tensors.h"
#include "run/router_logits.h"
#include "select/report.h"

namespace perch {
namespace {

using nlohmann::ordered_json;

// Keys only where there is such a neighbour.
void add_neighbours(const Neighbours& neighbours, ordered_json* document) {
  if (const auto& shared = neighbours.shared) {
    ordered_json& out = (*document)["shared_expert"];
    out = {{"module", shared->module}, {"width", nullptr}, {"gate", nullptr}};
    if (shared->width != 0) out["width"] = shared->width;
    if (!shared->gate.empty()) out["gate"] = shared->gate;
  }
  if (const auto& latent = neighbours.latent) {
    ordered_json& out = (*document)["latent"];
    out = {{"width", latent->width}, {"hidden", latent->hidden}};
    out["down"] = latent->down;
    out["up"] = latent->up;
  }
}

ordered_json layer_json(const CanonicalLayer& layer) {
  const LayerConfig& config = layer.config;
  ordered_json document = {{"name", config.name()},
                           {"kind", config.is_moe() ? "moe" : "linear"},
                           {"recipe", recipe_text(config)},
                           {"format", print_weight(config.first())}};
  if (config.is_moe()) {
    const perch_moe_config& moe = config.moe();
    document["sizes"] = {{"experts", moe.num_experts},
                         {"experts_global", moe.num_experts_global},
                         {"topk", moe.topk},
                         {"hidden", moe.hidden},
                         {"intermediate", moe.intermediate}};
    document["activation"] = print_activation(moe);
    document["routing"] = layer.router ? layer.router->formula : layer.note;
    document["orientation"] = {{"value", orientation_name(layer.source.orientation)},
                               {"decided_by", layer.source.orientation.decided_by}};
    add_neighbours(layer.neighbours, &document);
  } else {
    document["sizes"] = {{"n", config.rows(0)}, {"k", config.columns(0)}};
  }
  document["derived"] = ordered_json::array();
  for (const DerivedTensor& tensor : layer.derived) {
    document["derived"].push_back(
        {{"name", tensor.name}, {"reason", tensor.reason}, {"lossy", tensor.lossy}});
  }
  document["tensors"] = layer.source.tensors;
  document["bytes"] = layer.checkpoint_bytes;
  return document;
}

std::string inspect_json(CanonicalModel& model) {
  ordered_json document = {{"model_type", model.config.model_type},
                           {"transformers_version", model.config.transformers_version},
                           {"files", ordered_json::array()},
                           {"warnings", model.warnings},
                           {"layers", ordered_json::array()}};
  for (const auto& file : model.checkpoint.files) document["files"].push_back(file->path());
  for (const CanonicalLayer& layer : model.layers) document["layers"].push_back(layer_json(layer));
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Layer `index` of the model, or an error that says how many there are.
Result<CanonicalLayer*> find_layer(perch_model* model, uint32_t index, const char* function) {
  if (model == nullptr) return null_argument(function, "model");
  const size_t count = model->model.layers.size();
  if (index < count) return &model->model.layers[index];
  return invalid_argument(
      fmt::format("{}: index: got {}; want less than {}", function, index, count));
}

SelectRequest model_request(const perch_model& model, const CanonicalLayer& layer) {
  return {&layer.config, model.model.config.model_type, model.backend, model.requant};
}

// What must be the same for weights to be exchanged.
std::string layer_text(const LayerConfig& config) {
  std::string sizes = fmt::format("{} x {}", config.rows(0), config.columns(0));
  if (config.is_moe()) {
    const perch_moe_config& moe = config.moe();
    sizes = fmt::format("{} of {} experts, topk {}, hidden {}, intermediate {}", moe.num_experts,
                        moe.num_experts_global, moe.topk, moe.hidden, moe.intermediate);
  }
  return fmt::format("{} ({})", sizes, recipe_text(config));
}

Status make_model_layer(perch_model* model, uint32_t index, const perch_stream* stream,
                        perch_layer** out) {
  constexpr const char* kFunction = "perch_model_layer";
  if (out == nullptr) return null_argument(kFunction, "layer");
  PERCH_ASSIGN_OR_RETURN(const CanonicalLayer* layer, find_layer(model, index, kFunction));
  PERCH_ASSIGN_OR_RETURN(Selection selection,
                         choose(model->runtime, model_request(*model, *layer)));
  const perch_stream on = stream_or_cpu(stream, layer->config.abi().device);
  LoadReport report;
  PERCH_ASSIGN_OR_RETURN(*out, make_layer(model->runtime, std::move(selection),
                                          [&](const Selection& s, const Candidate& c) {
                                            return prepare_layer(*layer, s, c, on, &report);
                                          }));
  (*out)->load = report;
  if (!(*out)->state.selection.requant.empty()) {
    (*out)->state.selection.notes.push_back(
        fmt::format("weights converted with a relative error of {:.3g}, at most {:.3g} in one",
                    report.requant.relative(), report.requant.largest));
  }
  for (const std::string& note : (*out)->state.selection.notes) {
    model->runtime->log.write(PERCH_LOG_INFO, "prepare",
                              fmt::format("layer '{}': {}", layer->config.name(), note));
  }
  return {};
}

Status update_model_layer(perch_model* model, uint32_t index, perch_layer* layer) {
  constexpr const char* kFunction = "perch_model_update";
  if (layer == nullptr) return null_argument(kFunction, "layer");
  PERCH_ASSIGN_OR_RETURN(const CanonicalLayer* source, find_layer(model, index, kFunction));
  const LayerState& state = layer->state;
  // The layer's own selection says what its weights are; the new ones must select the same.
  PERCH_ASSIGN_OR_RETURN(const Selection selection,
                         select_in(model->runtime, model_request(*model, *source)));
  const std::string want = layer_text(state.config());
  const std::string got = layer_text(selection.config);
  if (got != want) {
    return invalid_argument(
        fmt::format("{}: layer {}: got {}; want {}, as it is loaded", kFunction, index, got, want));
  }
  return update_all(*source, state.selection, state.candidate, state.prepared);
}

}  // namespace
}  // namespace perch

extern "C" {

perch_status perch_model_inspect(perch_model* model, char* json, uint64_t capacity,
                                 uint64_t* needed, perch_error* error) {
  return perch::guarded_call(error, "perch_model_inspect", [&]() -> perch::Status {
    if (model == nullptr) return perch::null_argument("perch_model_inspect", "model");
    return perch::copy_json(perch::inspect_json(model->model), json, capacity, needed);
  });
}

uint32_t perch_model_num_layers(perch_model* model) {
  return model == nullptr ? 0 : static_cast<uint32_t>(model->model.layers.size());
}

const perch_layer_config* perch_model_layer_config(perch_model* model, uint32_t index) {
  if (index >= perch_model_num_layers(model)) return nullptr;
  return &model->model.layers[index].config.abi();
}

const int32_t* perch_model_expert_map(perch_model* model, uint32_t index) {
  if (index >= perch_model_num_layers(model)) return nullptr;
  const auto& map = model->model.layers[index].expert_map;
  return map.empty() ? nullptr : map.data();
}

perch_status perch_model_explain(perch_model* model, uint32_t index, char* json, uint64_t capacity,
                                 uint64_t* needed, perch_error* error) {
  constexpr const char* kFunction = "perch_model_explain";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    PERCH_ASSIGN_OR_RETURN(const perch::CanonicalLayer* layer,
                           perch::find_layer(model, index, kFunction));
    PERCH_ASSIGN_OR_RETURN(const perch::Selection selection,
                           perch::select_in(model->runtime, perch::model_request(*model, *layer)));
    return perch::copy_json(perch::selection_json(selection).dump(
                                -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
                            json, capacity, needed);
  });
}

perch_status perch_model_layer(perch_model* model, uint32_t index, const perch_stream* stream,
                               perch_layer** layer, perch_error* error) {
  return perch::guarded_call(error, "perch_model_layer",
                             [&] { return perch::make_model_layer(model, index, stream, layer); });
}

perch_status perch_model_update(perch_model* model, uint32_t index, perch_layer* layer,
                                perch_error* error) {
  return perch::guarded_call(error, "perch_model_update",
                             [&] { return perch::update_model_layer(model, index, layer); });
}

perch_status perch_model_tensors(perch_model* model, uint32_t index, int32_t expert,
                                 perch_tensors** tensors, perch_error* error) {
  constexpr const char* kFunction = "perch_model_tensors";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    if (tensors == nullptr) return perch::null_argument(kFunction, "tensors");
    PERCH_ASSIGN_OR_RETURN(const perch::CanonicalLayer* layer,
                           perch::find_layer(model, index, kFunction));
    auto owned = std::make_unique<perch_tensors>();
    PERCH_ASSIGN_OR_RETURN(owned->canonical, perch::read_expert(*layer, layer->config, expert));
    perch::add_canonical_tensors(owned->canonical.tensors, &owned->list);
    *tensors = owned.release();
    return {};
  });
}

perch_status perch_model_compare(perch_model* model, uint32_t index, perch_layer* layer,
                                 const perch_exec_args* args, const DLTensor* expected,
                                 perch_comparison* comparison, perch_error* error) {
  constexpr const char* kFunction = "perch_model_compare";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    if (layer == nullptr || args == nullptr || expected == nullptr || comparison == nullptr) {
      return perch::null_argument(kFunction, "layer, args, expected or comparison");
    }
    if (comparison->struct_size < sizeof(perch_comparison)) {
      return {PERCH_E_ABI_MISMATCH,
              fmt::format("{}: comparison.struct_size: got {}; want {}", kFunction,
                          comparison->struct_size, sizeof(perch_comparison))};
    }
    PERCH_ASSIGN_OR_RETURN(const perch::CanonicalLayer* canonical,
                           perch::find_layer(model, index, kFunction));
    const perch::LayerState& state = layer->state;
    if (state.config().name() != canonical->config.name()) {
      return perch::invalid_argument(fmt::format("{}: layer: got '{}'; want '{}', layer {}",
                                                 kFunction, state.config().name(),
                                                 canonical->config.name(), index));
    }
    const perch::CallRules rules{state.config(), state.candidate.caps, 0};
    perch::ExecTensors tensors;
    PERCH_RETURN_IF_ERROR(perch::check_args_header(*args));
    PERCH_RETURN_IF_ERROR(perch::check_exec_tensors(rules, *args, &tensors));
    PERCH_RETURN_IF_ERROR(perch::check_routing_values(rules, tensors));
    return perch::compare_output(*canonical, state.selection, state.candidate.flags, tensors.args,
                                 *expected, comparison);
  });
}

const perch_route_config* perch_model_route_config(perch_model* model, uint32_t index) {
  if (index >= perch_model_num_layers(model)) return nullptr;
  const auto& router = model->model.layers[index].router;
  return router ? &router->config : nullptr;
}

perch_status perch_model_router_logits(perch_model* model, uint32_t index, const DLTensor* x,
                                       const DLTensor* logits, perch_error* error) {
  constexpr const char* kFunction = "perch_model_router_logits";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    PERCH_ASSIGN_OR_RETURN(const perch::CanonicalLayer* layer,
                           perch::find_layer(model, index, kFunction));
    if (!layer->router) {
      return perch::not_found(fmt::format("{}: layer '{}' has no router: {}", kFunction,
                                          layer->config.name(), layer->note));
    }
    return perch::router_logits(*layer->router, x, logits);
  });
}

}  // extern "C"
