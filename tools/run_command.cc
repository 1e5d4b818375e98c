// perch run: load a checkpoint, choose a backend for each layer, run it, and check what comes out.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <set>

#include "bench/limits/disk.h"
#include "bench/limits/limits.h"
#include "command.h"
#include "layer_call.h"
#include "safetensors_writer.h"
#include "selection_table.h"

namespace perch_command {
namespace {

using nlohmann::ordered_json;

struct RunOptions {
  ModelOptions model;
  InputOptions input;
  std::string output;
  bool verify = false;
  bool limits = false;
  int64_t alone = -1;
  int repeat = 5;
};

struct LayerRun {
  const RunOptions& options;
  perch_model* model;
  uint32_t index;
  perch_layer* layer;
  const LayerInput& input;

  const perch_layer_config& config() const { return *perch_model_layer_config(model, index); }
  const int32_t* map() const { return perch_model_expert_map(model, index); }
};

// Share of a layer's packed weights that this call reads: experts with a row, of those held here.
double touched_share(const LayerRun& run) {
  const perch_layer_config& config = run.config();
  if (config.kind != PERCH_KIND_MOE) return 1.0;
  std::set<int32_t> touched;
  for (const int32_t id : run.input.ids) {
    if (id < 0) continue;
    const int32_t local = run.map() == nullptr ? id : run.map()[id];
    if (local >= 0) touched.insert(local);
  }
  return static_cast<double>(touched.size()) / config.moe->num_experts;
}

std::vector<double> time_calls(const LayerRun& run, LayerCall* call) {
  perch_host::Executor executor(run.layer);
  executor.run(call->args, run.input.tokens);  // pages in, threads awake
  std::vector<double> times;
  for (int i = 0; i < run.options.repeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    executor.run(call->args, run.input.tokens);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    times.push_back(taken.count());
  }
  std::sort(times.begin(), times.end());
  return times;
}

ordered_json comparison_json(const std::string& against, const perch_comparison& comparison) {
  return {{"against", against},
          {"ok", comparison.ok != 0},
          {"worst_ratio", comparison.worst_ratio},
          {"worst_row", comparison.worst_row},
          {"worst_column", comparison.worst_column},
          {"got", comparison.got},
          {"want", comparison.want},
          {"allowed", comparison.allowed},
          {"worst_row_l2", comparison.worst_row_l2}};
}

perch_comparison compare(const LayerRun& run, const LayerCall& call, const DLTensor* expected) {
  return compare_call(run.model, run.index, run.layer, call, expected);
}

// The same rows on the reference backend, in f32 out.
ordered_json verify(const LayerRun& run, const perch_host::Runtime& runtime,
                    const LayerCall& call) {
  const auto reference =
      run_reference(runtime, run.options.model, run.config(), run.index, run.input);
  return comparison_json("reference", compare(run, call, reference->y.get()));
}

// One row by itself: its bytes must be those it had among the others.
ordered_json run_alone(const LayerRun& run, LayerCall* all) {
  const int64_t row = run.options.alone;
  if (row >= run.input.tokens) {
    throw Failure(kExitBadInput,
                  fmt::format("--alone: got {}; want less than {} tokens", row, run.input.tokens));
  }
  LayerCall one(run.config(), run.input, run.map(), row, 1);
  perch_host::Executor(run.layer).run(one.args, 1);
  const int64_t bytes = LayerCall::y_bytes(run.config(), 1);
  const bool same = std::memcmp(one.y.data<std::byte>(), all->y.data<std::byte>() + row * bytes,
                                static_cast<size_t>(bytes)) == 0;
  return {{"row", row}, {"tokens", run.input.tokens}, {"identical_bytes", same}};
}

// How fast the checkpoint became packed weights. The file was read too, unless it was cached.
ordered_json load_json(const ordered_json& load) {
  const double seconds = load["seconds"].get<double>();
  const double bytes = load["bytes_read"].get<double>();
  return {{"ms", seconds * 1e3},
          {"bytes_read", load["bytes_read"]},
          {"gbps", seconds > 0 ? bytes / seconds / 1e9 : 0.0}};
}

// What --limits measures.
struct Limits {
  std::unique_ptr<perch_bench::MachineLimits> machine;  // null where it was not asked for
  double disk_gbps = 0;                                 // 0: not measured
};

// The disk under the largest file of weights.
double measure_disk(const ordered_json& files) {
  std::string largest;
  uintmax_t most = 0;
  for (const auto& file : files) {
    std::error_code failed;
    const uintmax_t size = std::filesystem::file_size(file.get<std::string>(), failed);
    if (!failed && size > most) {
      most = size;
      largest = file.get<std::string>();
    }
  }
  return largest.empty() ? 0 : perch_bench::disk_read_gbps(largest);
}

ordered_json run_layer(const LayerRun& run, const perch_host::Runtime& runtime,
                       const Limits& limits, std::vector<std::byte>* output) {
  perch_bench::MachineLimits* machine = limits.machine.get();
  const auto selection = ordered_json::parse(perch_host::json(perch_layer_explain, run.layer));
  const perch_layer_info info = layer_info(run.layer);
  LayerCall call(run.config(), run.input, run.map(), 0, run.input.tokens);
  double read_gbps = machine == nullptr ? 0 : machine->read().gbps;
  const std::vector<double> times = time_calls(run, &call);
  const double median = times[times.size() / 2];
  const double bytes = static_cast<double>(info.packed_bytes) * touched_share(run);
  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = PERCH_FORM_STANDARD;
  shape.num_tokens = run.input.tokens;
  perch_workspace_req workspace{};
  workspace.struct_size = sizeof(workspace);
  perch_host::check(perch_layer_workspace, run.layer, &shape, &workspace);

  ordered_json result = {
      {"name", selection["layer"]},
      {"kind", selection["kind"]},
      {"recipe", selection["recipe"]},
      {"backend", info.backend},
      {"variant", info.variant},
      {"kernel", info.kernel},
      {"device", selection["device"]},
      {"caps", selection["chosen"]["caps"]},
      {"rule", selection["rule"]},
      {"notes", selection["notes"]},
      {"require", selection["require"]},
      {"fallback", info.fallback != 0},
      {"candidates", selection["candidates"]},
      {"tokens", run.input.tokens},
      {"bytes",
       {{"packed", info.packed_bytes},
        {"workspace", workspace.bytes},
        {"checkpoint", selection["load"]["bytes_read"]},
        {"touched", static_cast<uint64_t>(bytes)}}},
      {"time_ms", {{"median", median}, {"min", times.front()}, {"runs", times.size()}}},
      {"gbps", bytes / median / 1e6},
      {"load", load_json(selection["load"])},
      {"error", nullptr}};
  if (machine != nullptr) {
    // Again after the run, and the larger counts: on a shared machine the limit moves.
    read_gbps = std::max(read_gbps, machine->read().gbps);
    result["share_of_read_bandwidth"] = bytes / median / 1e6 / read_gbps;
    const auto load_gbps = result["load"]["gbps"].get<double>();
    result["load"]["share_of_read_bandwidth"] = load_gbps / read_gbps;
    if (limits.disk_gbps > 0) result["load"]["share_of_disk"] = load_gbps / limits.disk_gbps;
  }
  if (run.input.expected != nullptr) {
    result["error"] =
        comparison_json(run.options.input.file, compare(run, call, run.input.expected));
  } else if (run.options.verify) {
    result["error"] = verify(run, runtime, call);
  }
  if (run.options.alone >= 0) result["alone"] = run_alone(run, &call);
  const auto* y = call.y.data<std::byte>();
  output->assign(y, y + LayerCall::y_bytes(run.config(), run.input.tokens));
  return result;
}

void print_people(const ordered_json& layer) {
  std::string line = fmt::format(
      "{}  {}  {} -> {}/{} {}  T {}  {:.3f} ms  {:.1f} GB/s", layer["name"].get<std::string>(),
      layer["kind"].get<std::string>(), layer["recipe"].get<std::string>(),
      layer["backend"].get<std::string>(), layer["variant"].get<int>(),
      layer["kernel"].get<std::string>(), layer["tokens"].get<long long>(),
      layer["time_ms"]["median"].get<double>(), layer["gbps"].get<double>());
  if (layer.contains("share_of_read_bandwidth")) {
    line += fmt::format(" = {:.0f} % of read bandwidth",
                        100 * layer["share_of_read_bandwidth"].get<double>());
  }
  std::cout << line << "\n";
  const auto& load = layer["load"];
  if (load.contains("share_of_read_bandwidth")) {
    std::cout << fmt::format("    loaded in {:.1f} ms, {:.2f} GB/s = {:.0f} % of read bandwidth",
                             load["ms"].get<double>(), load["gbps"].get<double>(),
                             100 * load["share_of_read_bandwidth"].get<double>());
    if (load.contains("share_of_disk")) {
      std::cout << fmt::format(", {:.0f} % of the disk's",
                               100 * load["share_of_disk"].get<double>());
    }
    std::cout << "\n";
  }
  for (const auto& note : layer["notes"]) {
    std::cout << "    note: " << note.get<std::string>() << "\n";
  }
  const auto& error = layer["error"];
  if (!error.is_null()) {
    std::cout << fmt::format(
        "    {} against {}: worst {:.3f} of what is allowed, row {} column {}: "
        "got {:.6g}, want {:.6g}\n",
        error["ok"].get<bool>() ? "agrees" : "DIFFERS", error["against"].get<std::string>(),
        error["worst_ratio"].is_null() ? HUGE_VAL : error["worst_ratio"].get<double>(),
        error["worst_row"].get<long long>(), error["worst_column"].get<long long>(),
        error["got"].is_null() ? NAN : error["got"].get<double>(),
        error["want"].is_null() ? NAN : error["want"].get<double>());
  }
  if (layer.contains("alone")) {
    const auto& alone = layer["alone"];
    std::cout << fmt::format(
        "    row {} alone and among {} rows: {}\n", alone["row"].get<long long>(),
        alone["tokens"].get<long long>(),
        alone["identical_bytes"].get<bool>() ? "identical bytes" : "different bytes");
  }
}

bool layer_passed(const ordered_json& layer) {
  const auto& error = layer["error"];
  if (!error.is_null() && !error["ok"].get<bool>()) return false;
  // Different bytes are a failure only where the backend promised that they would not be.
  if (!layer.contains("alone") || layer["alone"]["identical_bytes"].get<bool>()) return true;
  const auto& caps = layer["caps"];
  return std::find(caps.begin(), caps.end(), "batch_invariant") == caps.end();
}

void write_outputs(const RunOptions& options, const perch_host::Model& model,
                   const std::vector<uint32_t>& indices,
                   const std::vector<std::vector<std::byte>>& outputs) {
  if (options.output.empty()) return;
  std::vector<OutputTensor> tensors;
  for (size_t i = 0; i < indices.size(); ++i) {
    const perch_layer_config& config = *perch_model_layer_config(model.get(), indices[i]);
    const char* dtype = config.out_dtype == PERCH_TYPE_F32   ? "F32"
                        : config.out_dtype == PERCH_TYPE_F16 ? "F16"
                                                             : "BF16";
    const auto bytes = static_cast<int64_t>(outputs[i].size());
    const int64_t width = output_width(config);
    tensors.push_back({std::string(config.name) + ".output",
                       dtype,
                       {bytes / type_bytes(config.out_dtype) / width, width},
                       static_cast<uint64_t>(bytes)});
  }
  SafetensorsWriter writer(options.output, tensors);
  for (const auto& output : outputs) writer.append(output.data(), output.size());
  writer.close();
}

int run_run(const CommonOptions& common, const RunOptions& options) {
  const perch_host::Runtime runtime = open_runtime(common);
  const perch_host::Model model = open_model(runtime, options.model);
  perch_host::Tensors tensors;
  if (!options.input.file.empty()) tensors = perch_host::open_tensors(options.input.file);
  const auto inspected = ordered_json::parse(perch_host::json(perch_model_inspect, model.get()));
  Limits limits;
  if (options.limits) {
    auto opened = perch_bench::MachineLimits::open(perch_runtime_num_threads(runtime.get()), "");
    if (!opened.ok()) throw Failure(kExitFailed, opened.status().message());
    limits.machine = std::move(*opened);
    limits.disk_gbps = measure_disk(inspected["files"]);
  }

  const std::vector<uint32_t> all = matching_layers(model, options.model);
  std::vector<std::string> sources = {options.input.file};
  for (const auto& file : inspected["files"]) sources.push_back(file.get<std::string>());
  refuse_to_overwrite(options.output, sources);
  ordered_json layers = ordered_json::array();
  std::vector<uint32_t> ran;
  std::vector<std::vector<std::byte>> outputs;
  bool ok = true;
  for (const uint32_t index : all) {
    ordered_json result;
    {
      Progress progress(!common.quiet);
      progress.show(fmt::format("layer {} of {}: {}", layers.size() + 1, all.size(),
                                perch_model_layer_config(model.get(), index)->name));
      const auto input = make_input(model.get(), index, options.input, tensors.get());
      if (!input) {
        if (!options.input.expect) continue;
        throw Failure(
            kExitBadInput,
            fmt::format("{}: has no {}.input; want every layer, or --layer for fewer",
                        options.input.file, perch_model_layer_config(model.get(), index)->name));
      }
      const perch_host::Layer layer = perch_host::make_layer(model, index);
      const LayerRun run{options, model.get(), index, layer.get(), *input};
      outputs.emplace_back();
      ran.push_back(index);
      result = run_layer(run, runtime, limits, &outputs.back());
    }
    result["bytes"]["checkpoint"] = inspected["layers"][index]["bytes"];
    ok = ok && layer_passed(result);
    if (!common.json) print_people(result);
    layers.push_back(std::move(result));
  }
  if (layers.empty()) {
    throw Failure(kExitBadInput, fmt::format("{}: has no <layer>.input for any of {} layers",
                                             options.input.file, all.size()));
  }
  write_outputs(options, model, ran, outputs);
  if (common.json) {
    ordered_json document = {{"ok", ok}, {"layers", std::move(layers)}};
    if (limits.machine != nullptr) {
      document["machine"] = {{"read_gbps", limits.machine->read().gbps}, {"disk_gbps", nullptr}};
      if (limits.disk_gbps > 0) document["machine"]["disk_gbps"] = limits.disk_gbps;
    }
    std::cout << document.dump(2) << "\n";
  }
  return ok ? kExitFine : kExitFailed;
}

}  // namespace

void register_run(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command = app->add_subcommand("run", "load, choose, prepare and run each layer");
  auto options = std::make_shared<RunOptions>();
  command->add_option("MODEL", options->model.model, "checkpoint directory")->required();
  add_common_options(command, common);
  add_model_options(command, &options->model);
  add_input_options(command, &options->input,
                    "as --input, with <layer>.output to compare with: exit 1 where it differs");
  command->add_option("--output", options->output, "safetensors file for <layer>.output");
  command->add_flag("--verify", options->verify, "compare with the reference backend");
  command->add_option("--alone", options->alone,
                      "run this row by itself too, and compare its bytes");
  command->add_option("--repeat", options->repeat, "timed calls (default 5)")
      ->check(CLI::Range(1, 100000));
  command->add_flag(
      "--limits", options->limits,
      "measure how fast this machine reads memory, and the checkpoint from its disk past "
      "the cache (files of 16 MiB and more), and print the shares of them");
  command->callback([=] {
    *handler = [=] {
      options->model.max_tokens = std::max<long long>(4096, options->input.tokens);
      return run_run(*common, *options);
    };
  });
}

}  // namespace perch_command
