#include "diff_model.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "check/child.h"
#include "check/diff.h"
#include "check/run_check.h"
#include "layer_call.h"
#include "numeric/decode.h"

namespace perch_command {
namespace {

using nlohmann::json;
using perch_check::CaseOutcome;
using perch_check::Child;
using perch_check::Failed;
using perch_check::Status;

// A layer that has run on one side.
struct SideRun {
  std::string name;     // "A humming-cpu/KERNEL"
  std::string refusal;  // why there is no layer
  std::string kernel;
  uint32_t variant = 0;
  bool rounds_weights = false;
  perch_model* model = nullptr;
  perch_host::Layer layer;
  std::unique_ptr<LayerCall> call;

  double value(const perch_layer_config& config, const perch_comparison& at) const {
    const int64_t index = at.worst_row * output_width(config) + at.worst_column;
    return double{perch::numeric::load_float(config.out_dtype, call->y.get()->data, index)};
  }
};

// Everything that the child has open.
class ModelRun {
 public:
  ModelRun(const DiffModel& diff, const Child::Say& say) : diff_(diff), say_(say) {
    begin("A: loading");
    a_runtime_ = open_runtime(diff.a.common);
    a_model_ = open(a_runtime_, diff.a);
    begin("B: loading");
    b_runtime_ = open_runtime(diff.b.common);
    b_model_ = open(b_runtime_, diff.b);
    begin("loading");
    reference_ = open_runtime(diff.common);
    if (!diff.input.file.empty()) tensors_ = perch_host::open_tensors(diff.input.file);
    layers_ = matching_layers(a_model_, diff.model);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const uint32_t index : layers_) {
      names.emplace_back(perch_model_layer_config(a_model_.get(), index)->name);
    }
    return names;
  }

  CaseOutcome run(size_t i);

 private:
  void begin(const std::string& stage) const { say_(json{{"begin", stage}}.dump()); }

  perch_host::Model open(const perch_host::Runtime& runtime, const DiffSide& side) const {
    ModelOptions options = diff_.model;
    options.backend = side.library.id;
    return open_model(runtime, options);
  }

  LayerInput input_of(uint32_t index) const;
  std::unique_ptr<LayerCall> run_on_reference(const LayerInput& input, uint32_t index) const;
  SideRun run_side(const char* letter, const DiffSide& side, const perch_host::Model& model,
                   uint32_t index, const LayerInput& input) const;
  void compare(uint32_t index, const SideRun& a, const SideRun& b, const LayerCall* reference,
               perch_check::CheckResult* result) const;

  const DiffModel& diff_;
  const Child::Say& say_;
  perch_host::Runtime a_runtime_, b_runtime_, reference_;
  perch_host::Model a_model_, b_model_;
  perch_host::Tensors tensors_;
  std::vector<uint32_t> layers_;
};

LayerInput ModelRun::input_of(uint32_t index) const {
  auto input = make_input(a_model_.get(), index, diff_.input, tensors_.get());
  if (input) return std::move(*input);
  throw Failure(
      kExitBadInput,
      fmt::format("{}: has no {}.input; want every layer, or --layer for fewer", diff_.input.file,
                  perch_model_layer_config(a_model_.get(), index)->name));
}

// Null where the reference refuses the layer too.
std::unique_ptr<LayerCall> ModelRun::run_on_reference(const LayerInput& input,
                                                      uint32_t index) const {
  begin("the reference");
  try {
    return run_reference(reference_, diff_.model, *perch_model_layer_config(a_model_.get(), index),
                         index, input);
  } catch (const Error& error) {
    if (!no_backend_fits(error)) throw;
    return nullptr;
  }
}

SideRun ModelRun::run_side(const char* letter, const DiffSide& side, const perch_host::Model& model,
                           uint32_t index, const LayerInput& input) const {
  SideRun run;
  run.name = fmt::format("{} {}", letter, side.library.id);
  run.model = model.get();
  std::string stage = run.name + ": preparing weights";
  try {
    begin(stage);
    run.layer = perch_host::make_layer(model, index);
    const perch_layer_info info = layer_info(run.layer.get());
    run.kernel = info.kernel;
    run.name += "/" + run.kernel;
    run.variant = info.variant;
    run.rounds_weights = (info.support_flags & PERCH_SUPPORT_ROUNDS_WEIGHTS) != 0;
    stage = fmt::format("{}: executing {} rows", run.name, input.tokens);
    begin(stage);
    run.call =
        std::make_unique<LayerCall>(*perch_model_layer_config(model.get(), index), input,
                                    perch_model_expert_map(model.get(), index), 0, input.tokens);
    perch_host::Executor(run.layer.get()).run(run.call->args, input.tokens);
  } catch (const Error& error) {
    if (!no_backend_fits(error)) throw Failed{stage, error.what(), "it to run"};
    run.refusal = error.what();
  }
  return run;
}

void ModelRun::compare(uint32_t index, const SideRun& a, const SideRun& b,
                       const LayerCall* reference, perch_check::CheckResult* result) const {
  begin("comparing");
  const perch_layer_config& config = *perch_model_layer_config(a.model, index);
  auto& figures = result->figures;
  const auto bytes = static_cast<size_t>(LayerCall::y_bytes(config, a.call->x.shape()[0]));
  const bool same = std::memcmp(a.call->y.get()->data, b.call->y.get()->data, bytes) == 0;
  figures["identical"] = same ? 1 : 0;
  // By the bound of the one that is allowed more, and twice that, since both may be off. Rows as a
  // whole are held to their bound where there is an exact answer, below.
  const bool by_b = b.rounds_weights && !a.rounds_weights;
  const SideRun& one = by_b ? b : a;
  const SideRun& other = by_b ? a : b;
  const perch_comparison between =
      compare_call(one.model, index, one.layer.get(), *one.call, other.call->y.get());
  figures["a_b"] = between.worst_ratio / 2;
  perch_comparison a_off{}, b_off{};
  a_off.ok = b_off.ok = 1;
  if (reference != nullptr) {
    a_off = compare_call(a.model, index, a.layer.get(), *a.call, reference->y.get());
    b_off = compare_call(b.model, index, b.layer.get(), *b.call, reference->y.get());
    figures["a_oracle"] = a_off.worst_ratio;
    figures["b_oracle"] = b_off.worst_ratio;
  }
  figures["wrong_a"] = a_off.ok == 0 ? 1 : 0;
  figures["wrong_b"] = b_off.ok == 0 ? 1 : 0;
  const bool agree = figures["a_b"] <= 1;
  if (agree && a_off.ok != 0 && b_off.ok != 0) return;
  const perch_comparison& worst = !agree ? between : a_off.ok == 0 ? a_off : b_off;
  const int64_t at = worst.worst_row * output_width(config) + worst.worst_column;
  const std::string want =
      reference == nullptr
          ? "the reference refuses this layer, so nobody says which is wrong"
          : fmt::format("{:.9g} by the reference in f32: {}",
                        double{static_cast<const float*>(reference->y.get()->data)[at]},
                        perch_check::print_wrong(a.name, a_off.ok == 0, b.name, b_off.ok == 0));
  throw Failed{fmt::format("row {}, column {}", worst.worst_row, worst.worst_column),
               perch_check::print_side(a.name, a.value(config, worst), a_off.worst_ratio) + "; " +
                   perch_check::print_side(b.name, b.value(config, worst), b_off.worst_ratio),
               want};
}

CaseOutcome ModelRun::run(size_t i) {
  const uint32_t index = layers_[i];
  CaseOutcome outcome;
  outcome.problem = perch_model_layer_config(a_model_.get(), index)->name;
  perch_check::CheckResult result;
  result.check = "diff";
  const LayerInput input = input_of(index);
  const std::unique_ptr<LayerCall> reference = run_on_reference(input, index);
  try {
    const SideRun a = run_side("A", diff_.a, a_model_, index, input);
    outcome.kernel = a.kernel;
    outcome.variant = a.variant;
    const SideRun b = run_side("B", diff_.b, b_model_, index, input);
    outcome.other_kernel = b.kernel;
    if (a.refusal.empty() && b.refusal.empty()) {
      compare(index, a, b, reference.get(), &result);
    } else {
      result.status = Status::kSkipped;
      result.reason = refusal_name(!a.refusal.empty(), !b.refusal.empty());
      result.got = a.refusal.empty() || b.refusal.empty() ? a.refusal + b.refusal
                                                          : a.refusal + "; " + b.refusal;
    }
  } catch (const Failed& failed) {
    result.status = Status::kFailed;
    result.where = failed.where;
    result.got = failed.got;
    result.want = failed.want;
  }
  outcome.checks = {result};
  perch_check::settle(&outcome);
  return outcome;
}

json outcome_json(const CaseOutcome& outcome) {
  return {{"problem", outcome.problem},
          {"variant", outcome.variant},
          {"kernel", outcome.kernel},
          {"other_kernel", outcome.other_kernel},
          {"result", perch_check::to_json(outcome.checks.front())}};
}

CaseOutcome outcome_of(const json& said) {
  CaseOutcome outcome;
  outcome.problem = said["problem"];
  outcome.variant = said["variant"];
  outcome.kernel = said["kernel"];
  outcome.other_kernel = said["other_kernel"];
  outcome.checks = {perch_check::result_from_json(said["result"])};
  perch_check::settle(&outcome);
  return outcome;
}

// The layers from `first` on. Says everything, an error too: it may be a child.
void run_layers(const DiffModel& diff, size_t first, const Child::Say& say) {
  const auto say_json = [&](const json& line) {
    say(line.dump(-1, ' ', false, json::error_handler_t::replace));
  };
  try {
    ModelRun run(diff, say);
    const std::vector<std::string> names = run.names();
    say_json({{"layers", names}});
    for (size_t i = first; i < names.size(); ++i) {
      say_json({{"outcome", outcome_json(run.run(i))}});
    }
  } catch (const Failure& failure) {
    say_json({{"error", failure.what()}, {"code", failure.code}});
  } catch (const std::exception& error) {
    say_json({{"error", error.what()}, {"code", static_cast<int>(kExitBadInput)}});
  }
}

// What one or several children have said.
struct Heard {
  const std::function<void(CaseOutcome)>& done;
  std::vector<std::string> layers;
  size_t ended = 0;  // layers with an outcome
  std::string stage;
  std::optional<Failure> failure;

  void hear(const std::string& line) {
    const json said = json::parse(line);
    if (said.contains("begin")) stage = said["begin"];
    if (said.contains("layers")) layers = said["layers"].get<std::vector<std::string>>();
    if (said.contains("error")) failure.emplace(said["code"].get<int>(), said["error"]);
    if (!said.contains("outcome")) return;
    ++ended;
    done(outcome_of(said["outcome"]));
  }

  // The layer that was under way when the child died.
  void lose(bool in_time, double timeout_s, const Child& child) {
    perch_check::CheckResult result;
    result.check = "diff";
    result.status = in_time ? Status::kCrashed : Status::kTimeout;
    result.where = stage;
    result.got = in_time ? child.epitaph() : fmt::format("no answer within {} s", timeout_s);
    CaseOutcome outcome;
    outcome.problem = layers[ended++];
    outcome.checks = {result};
    perch_check::settle(&outcome);
    done(std::move(outcome));
  }
};

}  // namespace

void diff_model(const DiffModel& diff, const std::function<void(CaseOutcome)>& done) {
  Heard heard{done, {}, 0, "", std::nullopt};
  const auto hear = [&](const std::string& line) { heard.hear(line); };
  do {
    if (diff.isolate) {
      Child child([&](const Child::Say& say) { run_layers(diff, heard.ended, say); });
      const bool in_time = perch_check::listen(&child, diff.timeout_s, hear);
      if (heard.failure) throw Failure(*heard.failure);
      if (heard.layers.empty()) {
        throw Failure(kExitFailed, fmt::format("{}: {}", heard.stage, child.epitaph()));
      }
      if (heard.ended < heard.layers.size()) heard.lose(in_time, diff.timeout_s, child);
    } else {
      run_layers(diff, 0, hear);
      if (heard.failure) throw Failure(*heard.failure);
    }
  } while (heard.ended < heard.layers.size());
}

}  // namespace perch_command
