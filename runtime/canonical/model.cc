#include "canonical/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace perch {
namespace {

Status check_unexpected(const Layout& layout, const CanonicalOptions& options,
                        std::vector<std::string>* warnings) {
  for (const RawTensor* tensor : layout.unexpected) {
    const std::string text = fmt::format(
        "{}: unexpected: no known part of an expert has this name; want gate_proj, "
        "up_proj, down_proj, w1, w2, w3, gate_up_proj",
        print_tensor(*tensor));
    const bool scale = tensor->name.find("scale") != std::string::npos;
    if (!options.allow_unexpected || scale) return invalid_argument(text);
    warnings->push_back(text + "; ignored");
  }
  return {};
}

// Names that no part of a transformer has: most often a slip of a converter, so they are listed.
void warn_strangers(const Checkpoint& checkpoint, std::vector<std::string>* warnings) {
  constexpr std::array kKnown = {"layers.", "embed",     "norm",    "head",   "visual", "vision",
                                 "mtp",     "projector", "blocks.", "rotary", "wte",    "wpe"};
  for (const RawTensor& tensor : checkpoint.tensors) {
    const bool known = std::any_of(kKnown.begin(), kKnown.end(), [&](const char* part) {
      return tensor.name.find(part) != std::string::npos;
    });
    if (!known) {
      warnings->push_back(print_tensor(tensor) +
                          ": unexpected: belongs to no known part of a model");
    }
  }
}

// A layer with a router and no experts has lost them, most often to a rename.
Status check_routers(const CanonicalModel& model, const Layout& layout) {
  const ModelTypeRow& row = find_model_type(model.config.model_type);
  if (row.router.empty() || !model.config.num_experts) return {};
  const std::string suffix = fmt::format(".{}.weight", row.router);
  for (const RawTensor& tensor : model.checkpoint.tensors) {
    if (!tensor.name.ends_with(suffix) || tensor.shape.size() != 2 ||
        tensor.shape[0] != *model.config.num_experts) {
      continue;
    }
    const std::string parent = tensor.name.substr(0, tensor.name.size() - suffix.size());
    const bool found = std::any_of(
        layout.layers.begin(), layout.layers.end(),
        [&](const LayerSource& layer) { return layer.moe && router_parent(layer.name) == parent; });
    if (found) continue;
    return invalid_argument(
        fmt::format("layer \"{0}\": got a router (\"{1}\") and no tensors of its {2} experts; want "
                    "{0}.experts.<e>.{{gate,up,down}}_proj.* or {0}.experts.{{gate_up,down}}_proj",
                    parent, tensor.name, *model.config.num_experts));
  }
  return {};
}

Status add_layer(const ModelTypeRow& row, LayerSource source, const CanonicalOptions& options,
                 CanonicalModel* model) {
  std::optional<ModelConfig> own;
  if (model->config.by_layer && source.moe) {
    PERCH_ASSIGN_OR_RETURN(own, config_of_layer(model->config, source.name));
  }
  const ModelConfig& config = own ? *own : model->config;
  PERCH_ASSIGN_OR_RETURN(CanonicalLayer layer,
                         canonicalize_layer(config, std::move(source), options, &model->warnings));
  if (layer.source.moe) {
    const Checkpoint& checkpoint = model->checkpoint;
    PERCH_ASSIGN_OR_RETURN(layer.router,
                           find_router(config, row, layer.source, checkpoint, &layer.note));
    layer.neighbours = find_neighbours(config, layer.source.name, checkpoint);
  }
  model->layers.push_back(std::move(layer));
  return {};
}

// Everything but the checkpoint, which is there.
Status fill_model(const CanonicalOptions& options, CanonicalModel* out) {
  CanonicalModel& model = *out;
  model.warnings = model.checkpoint.warnings;
  PERCH_ASSIGN_OR_RETURN(
      model.config, parse_model_config(model.checkpoint.config_json, model.checkpoint.extra_json));
  const ModelTypeRow& row = find_model_type(model.config.model_type);
  if (!row.refusal.empty()) {
    return unsupported(
        fmt::format("config.json: model_type: got \"{}\"; want one that Perch reads: here {}",
                    row.model_type, row.refusal));
  }
  const OrientationChoice orientation = choose_orientation(model.config, row, options.orientation);
  PERCH_ASSIGN_OR_RETURN(Layout layout,
                         find_layers(model.config, model.checkpoint.tensors, orientation));
  PERCH_RETURN_IF_ERROR(check_unexpected(layout, options, &model.warnings));
  PERCH_RETURN_IF_ERROR(check_routers(model, layout));
  warn_strangers(model.checkpoint, &model.warnings);
  if (row.model_type.empty()) {
    model.warnings.push_back(
        fmt::format("config.json: model_type \"{}\" is not known: fused "
                    "experts are taken as native and routing is not offered",
                    model.config.model_type));
  }
  for (LayerSource& source : layout.layers) {
    PERCH_RETURN_IF_ERROR(add_layer(row, std::move(source), options, out));
  }
  if (model.layers.empty()) {
    model.warnings.push_back("the checkpoint has no MoE layer and no quantized linear layer");
  }
  return {};
}

}  // namespace

Result<CanonicalModel> canonicalize_model(Checkpoint checkpoint, const CanonicalOptions& options) {
  PERCH_RETURN_IF_ERROR(check_split(options.split));
  CanonicalModel model;
  model.checkpoint = std::move(checkpoint);
  const Status filled = fill_model(options, &model);
  if (!filled.ok()) return in_folder(model.checkpoint, filled);
  return model;
}

}  // namespace perch
