// perch bench: how long a layer takes, beside what this machine can do at the same moment.
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <map>

#include "base/recipe.h"
#include "bench/lines.h"
#include "bench/plot.h"
#include "bench/report.h"
#include "bench/row.h"
#include "check/suite.h"
#include "command.h"

namespace perch_command {
namespace {

using nlohmann::ordered_json;
using perch_bench::BenchLine;
using perch_bench::LayerCycle;
using perch_bench::MachineLimits;
using perch_bench::Row;
using perch_bench::RowName;

struct BenchOptions {
  std::vector<std::string> what;  // cases and checkpoint directories
  std::string suite;
  ModelOptions model;
  std::vector<int64_t> tokens = {1, 4, 16, 64};
  std::vector<std::string> layer_options;
  std::string isa;
  std::string plot;
  double seconds = 1;
  double cold_bytes = 0;
};

constexpr const char* kFooter = R"(What a row says
  MS       median of the timed calls; rows and routing are new in every call
  FLOOR    the larger of bytes / read bandwidth and operations / peak. Bytes: packed weights of
           the experts that the call touches (no more than the format needs). Operations: 2 N K
           for every row of every matrix. Peak: int8 where activations are quantized to it, bf16
           where x is bf16 (the better of its own instruction and f32's), else f32.
  SHARE    FLOOR / MS. Both limits are measured before and after the calls, with all threads, and
           the larger counts. A share above 105 % is void: the limits are measured again, three
           times at most.
  BOUND    which of the two limits makes the floor
Exit code: 0; 1 where a row with '>= SHARE' is short, void or skipped; 2 bad input; 3 where no
backend ran anything. Time alone fails nothing.)";

bool is_case(const std::string& text) {
  return text.rfind("moe ", 0) == 0 || text.rfind("linear ", 0) == 0;
}

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

// A policy that leaves a layer no choice.
std::string policy_for(const std::string& backend) {
  if (backend.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") != std::string::npos ||
      backend.empty()) {
    throw Failure(kExitBadInput, fmt::format("--backend: got \"{}\"; want ids of backends, "
                                             "comma-separated (perch list has them)",
                                             backend));
  }
  return fmt::format("version: 1\nselect:\n  rules:\n    - match: {{}}\n      use: [{}]\n",
                     backend);
}

class Bench {
 public:
  Bench(const CommonOptions& common, const BenchOptions& options)
      : common_(common),
        options_(options),
        report_(!common.json),
        layer_options_(parse_layer_options(options.layer_options)) {
    backends_ = split_commas(options.model.backend);
    if (options.model.backend.empty()) return;
    for (const std::string& backend : backends_) policy_for(backend);
  }

  int run();

 private:
  void run_cases(const std::vector<BenchLine>& lines);
  void run_group(const std::vector<BenchLine>& lines, const std::string& backend);
  void run_model(const std::string& directory);
  void run_layer(const perch_host::Model& model, uint32_t index, const std::string& title);

  // What every row has: calls on the cycle's layers, or the reason why there are none.
  void measure(LayerCycle* cycle, const perch_bench::CallMaker& calls, const RowName& name,
               bool ids64);
  void skip(const RowName& name, const std::string& why);

  perch_host::Runtime open(const std::string& backend, int threads) const;
  // For so many threads; made anew where the number changes.
  MachineLimits* machine(int threads);
  perch::LayerConfig config_of(const std::vector<BenchLine>& lines) const;
  void read_suite(std::vector<BenchLine>* lines) const;
  int finish();

  const CommonOptions& common_;
  const BenchOptions& options_;
  perch_bench::Report report_;
  std::vector<std::string> backends_;
  std::vector<std::pair<std::string, std::string>> layer_options_;
  std::unique_ptr<MachineLimits> machine_;
  std::vector<Row> rows_;
};

perch_host::Runtime Bench::open(const std::string& backend, int threads) const {
  CommonOptions common = common_;
  if (!backend.empty() && !common.config.empty()) {
    throw Failure(kExitBadInput,
                  "--backend: on a CASE it is a policy of its own; want it without "
                  "--config (backends.paths is --backend-path, options are --option)");
  }
  if (!backend.empty()) common.config_text = policy_for(backend);
  if (threads > 0) common.threads = threads;
  return open_runtime(common);
}

MachineLimits* Bench::machine(int threads) {
  if (machine_ != nullptr && machine_->threads() == threads) return machine_.get();
  machine_.reset();
  auto opened = MachineLimits::open(threads, options_.isa);
  if (!opened.ok()) throw Failure(kExitBadInput, "--" + opened.status().message());
  machine_ = std::move(*opened);
  if (machine_->read().gbps == 0) {
    throw Failure(kExitFailed, "limits: the memory to read could not be mapped");
  }
  report_.machine(machine_.get());
  return machine_.get();
}

perch::LayerConfig Bench::config_of(const std::vector<BenchLine>& lines) const {
  perch::LayerConfig config = lines.front().problem.config;
  int64_t most = 0;
  for (const BenchLine& line : lines) most = std::max(most, line.problem.t);
  // BATCHED calls have a row more per expert than the fullest one needs.
  config.layer().max_tokens = most + 1;
  config.layer().require |= parse_caps(options_.model.require, "--require");
  for (const auto& [key, value] : layer_options_) config.set_option(key, value);
  return config;
}

void Bench::measure(LayerCycle* cycle, const perch_bench::CallMaker& calls, const RowName& name,
                    bool ids64) {
  perch_bench::TimingOptions timing;
  timing.seconds = options_.seconds;
  timing.cold_bytes = options_.cold_bytes;
  timing.ids64 = ids64;
  rows_.push_back(perch_bench::measure_row(cycle, calls, name, timing, machine_.get()));
  report_.row(rows_.back());
}

void Bench::skip(const RowName& name, const std::string& why) {
  rows_.emplace_back();
  rows_.back().name = name;
  rows_.back().skipped = why;
  report_.row(rows_.back());
}

void Bench::run_group(const std::vector<BenchLine>& lines, const std::string& backend) {
  const perch_host::Runtime runtime = open(backend, lines.front().problem.threads);
  machine(perch_runtime_num_threads(runtime.get()));
  const perch::LayerConfig config = config_of(lines);
  std::unique_ptr<LayerCycle> cycle;
  std::string refusal;
  try {
    cycle = std::make_unique<LayerCycle>(perch_bench::case_target(runtime, config));
    const std::string& kernel = lines.front().problem.kernel;
    if (!kernel.empty() && kernel != cycle->info().kernel) {
      refusal = fmt::format("kernel={}: got {}", kernel, cycle->info().kernel);
    }
  } catch (const Error& error) {
    if (error.code() != PERCH_E_UNSUPPORTED) throw;
    refusal = error.what();
  }
  for (const BenchLine& line : lines) {
    RowName name{perch::print_case(line.problem), perch::recipe_text(line.problem.config), backend,
                 line.problem.t, line.required};
    if (refusal.empty()) {
      Progress progress(!common_.quiet);
      progress.show(fmt::format("{}: {}", cycle->info().backend, name.line));
      measure(cycle.get(), perch_bench::case_calls(line.problem), name, line.problem.ids64);
    } else {
      skip(name, refusal);
    }
  }
}

void Bench::run_cases(const std::vector<BenchLine>& lines) {
  for (const auto& group : perch_bench::group_lines(lines)) {
    for (const std::string& backend : backends_) run_group(group, backend);
    report_.end_group();
  }
}

void Bench::run_layer(const perch_host::Model& model, uint32_t index, const std::string& title) {
  LayerCycle cycle(perch_bench::model_target(model, index));
  for (const int64_t tokens : options_.tokens) {
    Progress progress(!common_.quiet);
    progress.show(fmt::format("{}: {} t{}", cycle.info().backend, title, tokens));
    RowName name{fmt::format("{} t{}", title, tokens), cycle.info().recipe, cycle.info().backend,
                 tokens, std::nullopt};
    measure(&cycle, perch_bench::model_calls(model, index, tokens), name, false);
  }
}

void Bench::run_model(const std::string& directory) {
  if (!options_.layer_options.empty()) {
    throw Failure(kExitBadInput,
                  "--option: is for cases; a model's layers take theirs from the "
                  "rules of --config");
  }
  const perch_host::Runtime runtime = open_runtime(common_);
  for (const std::string& backend : backends_) {
    ModelOptions options = options_.model;
    options.model = directory;
    options.backend = backend;
    options.max_tokens = *std::max_element(options_.tokens.begin(), options_.tokens.end());
    const perch_host::Model model = open_model(runtime, options);
    const std::vector<uint32_t> indices = matching_layers(model, options);
    machine(perch_runtime_num_threads(runtime.get()));
    for (const uint32_t index : indices) {
      const std::string title = perch_model_layer_config(model.get(), index)->name;
      try {
        run_layer(model, index, title);
      } catch (const Error& error) {
        if (error.code() != PERCH_E_UNSUPPORTED) throw;
        skip({title, "", backend, options_.tokens.front(), std::nullopt}, error.what());
      }
    }
  }
  report_.end_group();
}

int Bench::finish() {
  int code = rows_.empty() ? kExitFine : kExitNoBackend;
  for (const Row& row : rows_) {
    if (row.skipped.empty()) code = kExitFine;
  }
  for (const Row& row : rows_) {
    if (row.failed()) code = kExitFailed;
  }
  if (!options_.plot.empty() && code != kExitNoBackend) {
    perch_bench::draw_plot(options_.plot, report_.plot_machine(rows_), rows_);
  }
  if (common_.json) {
    ordered_json rows = ordered_json::array();
    for (const Row& row : rows_) rows.push_back(perch_bench::row_json(row));
    std::cout << ordered_json{{"machine", report_.machine_json()}, {"rows", std::move(rows)}}.dump(
                     2)
              << "\n";
  } else {
    report_.summary(rows_);
  }
  return code;
}

void Bench::read_suite(std::vector<BenchLine>* lines) const {
  const bool is_file = options_.suite.find('/') != std::string::npos;
  const std::string path = is_file ? options_.suite : perch_check::find_suite(options_.suite);
  if (path.empty()) {
    std::string names;
    for (const std::string& name : perch_check::suite_names()) names += " " + name;
    throw Failure(kExitBadInput, fmt::format("--suite: got \"{}\"; want the path of a file, or one "
                                             "of:{}",
                                             options_.suite, names));
  }
  const auto suite = perch_check::read_suite(path);
  if (!suite.ok()) throw Failure(kExitBadInput, suite.status().message());
  for (const perch_check::SuiteLine& line : *suite) {
    auto problem = perch::parse_case(line.line);
    if (!problem.ok()) throw Failure(kExitBadInput, path + ": " + problem.status().message());
    lines->push_back({std::move(*problem), line.required});
  }
}

int Bench::run() {
  if (!options_.plot.empty()) perch_bench::require_plot(options_.plot);
  std::vector<BenchLine> lines;
  std::vector<std::string> models;
  for (const std::string& what : options_.what) {
    if (what == "moe" || what == "linear") {
      throw Failure(kExitBadInput, fmt::format("CASE: got \"{}\" alone; want the whole line as "
                                               "one argument, in quotes",
                                               what));
    }
    if (!is_case(what)) {
      models.push_back(what);
      continue;
    }
    const auto expanded = perch_check::expand_braces(what);
    if (!expanded.ok()) throw Failure(kExitBadInput, "CASE: " + expanded.status().message());
    for (const std::string& text : *expanded) {
      auto line = perch_bench::parse_bench_line(text);
      if (!line.ok()) throw Failure(kExitBadInput, "CASE: " + line.status().message());
      lines.push_back(std::move(*line));
    }
  }
  if (!options_.suite.empty()) read_suite(&lines);
  if (lines.empty() && models.empty()) {
    throw Failure(kExitBadInput, "bench: got nothing to time; want a CASE, a MODEL or --suite");
  }
  for (const BenchLine& line : lines) {
    if (line.problem.strided) {
      throw Failure(kExitBadInput, "CASE: strided: is not timed; want the case without it");
    }
  }
  if (!lines.empty()) run_cases(lines);
  for (const std::string& model : models) run_model(model);
  return finish();
}

}  // namespace

void register_bench(CLI::App* app, CommonOptions* common, Handler* handler) {
  CLI::App* command = app->add_subcommand("bench", "time layers beside the machine's own limits");
  auto options = std::make_shared<BenchOptions>();
  options->cold_bytes = std::max(1e9, 4.0 * static_cast<double>(perch_bench::last_cache_bytes()));
  command->add_option("CASE|MODEL", options->what,
                      "case lines, each in quotes, perhaps with the share to reach behind it: "
                      "'linear t1 n4096 k4096 w=bf16 >= 0.9'; or checkpoint directories");
  command->add_option(
      "--suite", options->suite,
      "a suite by name, or a file of cases by path: a line each, with lists in braces and "
      "perhaps ' >= SHARE' behind");
  add_common_options(command, common);
  add_model_options(command, &options->model);
  command->get_option("--backend")
      ->description(
          "these backends, comma-separated, each on every case (default: the policy's "
          "choice)");
  command->add_option("--tokens", options->tokens, "T of a model's layers (default 1,4,16,64)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--option", options->layer_options,
                   "KEY=VALUE: a compute option of each case's layer, such as isa=avx2")
      ->allow_extra_args(false);
  // One word each: what follows is a CASE.
  command->get_option("--require")->allow_extra_args(false);
  command->get_option("--prefer")->allow_extra_args(false);
  command->add_option("--isa", options->isa,
                      "limits of this level (portable, avx2, avx512, avx512_vnni, avx512_bf16) in "
                      "place of the machine's best");
  command
      ->add_option("--seconds", options->seconds,
                   "of timed calls per row (default 1); at least 5 calls unless they would "
                   "take four times that")
      ->check(CLI::Range(0.01, 3600.0));
  command
      ->add_option("--cold-bytes", options->cold_bytes,
                   "layers are used in turn until they hold so much, so that weights come from "
                   "memory (default 1e9, or four times the last cache where that is more)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--plot", options->plot, "an SVG: roofline, and shares by T (needs gnuplot)");
  command->footer(kFooter);
  command->callback([=] { *handler = [=] { return Bench(*common, *options).run(); }; });
}

}  // namespace perch_command
