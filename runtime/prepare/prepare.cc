#include "prepare/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace perch {

Status backend_status(const std::string& backend, const char* call, perch_status status,
                      const perch_error& error) {
  if (status == PERCH_OK) return {};
  const std::string text(error.message, strnlen(error.message, sizeof(error.message)));
  // A code that this runtime does not know is a fault of the other side.
  const perch_status known = status > 0 && status <= PERCH_E_PERMISSION ? status : PERCH_E_INTERNAL;
  return {known, fmt::format("backend {}: {}: {}", backend, call,
                             text.empty() ? fmt::format("failed with code {}", status) : text)};
}

Result<std::unique_ptr<Preparation>> Preparation::begin(const Candidate& candidate,
                                                        const LayerConfig& config,
                                                        const perch_stream& stream) {
  std::unique_ptr<Preparation> preparation(new Preparation(candidate, config));
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status =
      candidate.api->prepare_begin(candidate.instance, &preparation->config_.abi(),
                                   candidate.variant, &stream, &preparation->builder_, &error);
  PERCH_RETURN_IF_ERROR(backend_status(candidate.backend, "prepare_begin", status, error));
  if (preparation->builder_ == nullptr) {
    return Status(PERCH_E_CONTRACT, fmt::format("backend {}: prepare_begin: said OK and gave no "
                                                "builder",
                                                candidate.backend));
  }
  preparation->have_.assign(config.is_moe() ? config.moe().num_experts : 1, false);
  return preparation;
}

Preparation::~Preparation() {
  if (builder_ != nullptr) candidate_.api->prepare_abort(builder_);
}

Status Preparation::put(int32_t expert, const ExpertTensors& tensors) {
  const bool moe = config_.is_moe();
  const auto index = static_cast<size_t>(moe ? expert : 0);
  if (moe ? (expert < 0 || index >= have_.size()) : expert != -1) {
    return invalid_argument(
        fmt::format("layer '{}': expert: got {}; want {}", config_.name(), expert,
                    moe ? fmt::format("0 to {}", have_.size() - 1) : std::string("-1 (linear)")));
  }
  if (have_[index]) {
    return invalid_argument(
        fmt::format("layer '{}': expert {}: got it twice; want it once", config_.name(), expert));
  }
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status =
      candidate_.api->prepare_put(builder_, expert, tensors.data(), tensors.size(), &error);
  PERCH_RETURN_IF_ERROR(
      backend_status(candidate_.backend, "prepare_put", status, error)
          .with_context(fmt::format("layer '{}', expert {}", config_.name(), expert)));
  have_[index] = true;
  return {};
}

Result<Prepared> Preparation::end() {
  const auto missing = std::find(have_.begin(), have_.end(), false);
  if (missing != have_.end()) {
    return invalid_argument(fmt::format("layer '{}': expert {}: missing; want each of {}",
                                        config_.name(), missing - have_.begin(), have_.size()));
  }
  perch_error error = PERCH_ERROR_INIT;
  perch_prepared* handle = nullptr;
  const perch_status status = candidate_.api->prepare_end(builder_, &handle, &error);
  PERCH_RETURN_IF_ERROR(backend_status(candidate_.backend, "prepare_end", status, error)
                            .with_context(fmt::format("layer '{}'", config_.name())));
  builder_ = nullptr;
  if (handle == nullptr) {
    return Status(
        PERCH_E_CONTRACT,
        fmt::format("backend {}: prepare_end: said OK and gave no weights", candidate_.backend));
  }
  return Prepared(candidate_.api, handle);
}

namespace {

// The experts of a layer; -1 alone for a linear one.
std::vector<int32_t> experts_of(const CanonicalLayer& layer) {
  if (!layer.config.is_moe()) return {-1};
  std::vector<int32_t> experts(layer.experts.size());
  std::iota(experts.begin(), experts.end(), 0);
  return experts;
}

}  // namespace

Result<Prepared> prepare_layer(const CanonicalLayer& layer, const Selection& selection,
                               const Candidate& candidate, const perch_stream& stream,
                               LoadReport* report) {
  *report = {};
  const auto begin = std::chrono::steady_clock::now();
  PERCH_ASSIGN_OR_RETURN(const std::unique_ptr<Preparation> preparation,
                         Preparation::begin(candidate, selection.config, stream));
  for (const int32_t expert : experts_of(layer)) {
    PERCH_ASSIGN_OR_RETURN(const CanonicalExpert canonical,
                           selected_expert(layer, selection, expert, &report->requant));
    report->bytes_read += canonical.bytes_read;
    ExpertTensors ready;
    add_canonical(canonical.tensors, &ready);
    PERCH_RETURN_IF_ERROR(preparation->put(expert, ready));
    release_expert(layer, expert);
  }
  Result<Prepared> prepared = preparation->end();
  report->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return prepared;
}

Result<CanonicalExpert> selected_expert(const CanonicalLayer& layer, const Selection& selection,
                                        int64_t expert, RequantError* error) {
  if (selection.requant.empty()) return read_expert(layer, selection.config, expert);
  // As stored, but with the input quantization in force: its scale crosses with the weights.
  LayerConfig stored = layer.config;
  stored.act_first() = selection.config.act_first();
  stored.act_second() = selection.config.act_second();
  PERCH_ASSIGN_OR_RETURN(const CanonicalExpert canonical, read_expert(layer, stored, expert));
  return requantize(canonical, stored, selection.config, error);
}

namespace {

// Whether the backend takes these tensors: asked by preparing them as a layer of one expert.
Status try_expert(const Candidate& candidate, const LayerConfig& config, int32_t expert,
                  const ExpertTensors& tensors) {
  LayerConfig alone = config;
  if (alone.is_moe()) alone.moe().num_experts = 1;
  perch_stream stream{};
  stream.device = config.abi().device;
  PERCH_ASSIGN_OR_RETURN(const std::unique_ptr<Preparation> preparation,
                         Preparation::begin(candidate, alone, stream));
  return preparation->put(expert < 0 ? -1 : 0, tensors)
      .with_context(fmt::format("new weights of expert {}", expert));
}

}  // namespace

Status update_all(const CanonicalLayer& layer, const Selection& selection,
                  const Candidate& candidate, const Prepared& prepared) {
  for (const bool trial : {true, false}) {
    for (const int32_t expert : experts_of(layer)) {
      RequantError unused;
      PERCH_ASSIGN_OR_RETURN(const CanonicalExpert canonical,
                             selected_expert(layer, selection, expert, &unused));
      ExpertTensors ready;
      add_canonical(canonical.tensors, &ready);
      PERCH_RETURN_IF_ERROR(trial ? try_expert(candidate, selection.config, expert, ready)
                                  : update_expert(prepared, candidate, expert, ready));
      if (!trial) release_expert(layer, expert);
    }
  }
  return {};
}

Status update_expert(const Prepared& prepared, const Candidate& candidate, int32_t expert,
                     const ExpertTensors& tensors) {
  const perch_backend_api& api = prepared.api();
  if (!PERCH_HAS_FIELD(&api, perch_backend_api, update) || api.update == nullptr) {
    return unsupported(
        fmt::format("backend {}: update: weights cannot be replaced in place", candidate.backend));
  }
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status =
      api.update(prepared.handle(), expert, tensors.data(), tensors.size(), &error);
  return backend_status(candidate.backend, "update", status, error);
}

}  // namespace perch
