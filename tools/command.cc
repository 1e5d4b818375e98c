#include "command.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "base/recipe.h"

namespace perch_command {

void add_common_options(CLI::App* app, CommonOptions* options) {
  app->add_option("--config", options->config, "YAML policy (default: the installed one)");
  app->add_option("--backend-path", options->backend_path,
                  "more backends: absolute files or directories, colon-separated");
  app->add_option("--threads", options->threads, "CPU threads (default: one per physical core)")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--json", options->json, "one JSON document on stdout");
  app->add_flag("-v,--verbose", options->verbose, "more messages on stderr; twice for debug");
  app->add_flag("-q,--quiet", options->quiet, "errors only");
}

void add_model_options(CLI::App* app, ModelOptions* options) {
  app->add_option("--layer", options->layer, "only layers whose name matches this glob");
  app->add_option("--backend", options->backend, "only this backend");
  app->add_option("--require", options->require, "promises that must be made")->delimiter(',');
  app->add_option("--prefer", options->prefer, "promises that rank higher")->delimiter(',');
  app->add_option("--tp", options->tp, "this tensor-parallel rank of so many: R/N");
  app->add_option("--ep", options->ep, "this expert-parallel rank of so many: R/N");
  app->add_option("--placement", options->placement, "of experts on ranks")
      ->check(CLI::IsMember({"linear", "round-robin"}));
  app->add_option("--requant", options->requant,
                  "convert weights to this format, with loss: int4g32:bf16");
  app->add_option("--orientation", options->orientation, "of fused experts")
      ->check(CLI::IsMember({"auto", "native", "transposed"}));
  app->add_option("--dtype", options->dtype, "of input and output (default: the checkpoint's)")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  app->add_option("--out-dtype", options->out_dtype, "of the output alone")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  app->add_flag("--allow-unexpected", options->allow_unexpected,
                "warn of unexpected expert tensors instead of refusing them");
}

bool no_backend_fits(const Error& error) {
  return error.code() == PERCH_E_UNSUPPORTED &&
         std::string(error.what()).find("no backend fits") != std::string::npos;
}

perch_host::Runtime open_runtime(const CommonOptions& common) {
  perch_runtime_opts opts{};
  opts.struct_size = sizeof(opts);
  opts.num_threads = common.threads;
  opts.config_path = common.config.empty() ? nullptr : common.config.c_str();
  opts.config_text = common.config_text.empty() ? nullptr : common.config_text.c_str();
  opts.backend_path = common.backend_path.empty() ? nullptr : common.backend_path.c_str();
  if (common.verbose > 0) opts.log_level = common.verbose > 1 ? PERCH_LOG_DEBUG : PERCH_LOG_INFO;
  if (common.quiet) opts.log_level = PERCH_LOG_ERROR;
  return perch_host::make_runtime(&opts);
}

perch_caps parse_caps(const std::vector<std::string>& names, const char* option) {
  perch_caps caps = 0;
  for (const std::string& name : names) {
    const auto cap = perch::parse_cap(name);
    if (!cap) {
      throw Failure(kExitBadInput, fmt::format("{}: got \"{}\"; want promises of: {}", option, name,
                                               perch::print_caps(PERCH_CAPS_KNOWN)));
    }
    caps |= *cap;
  }
  return caps;
}

namespace {

void parse_rank(const std::string& text, const char* option, uint32_t* rank, uint32_t* size) {
  if (text.empty()) return;
  char end = '\0';
  unsigned long long of = 0;
  unsigned long long which = 0;
  const bool digits = text.find_first_not_of("0123456789/") == std::string::npos;
  const bool read = digits && text.size() < 16 &&
                    std::sscanf(text.c_str(), "%llu/%llu%c", &which, &of, &end) == 2;
  *rank = static_cast<uint32_t>(which);
  *size = static_cast<uint32_t>(of);
  if (!read || of == 0 || of > 65536 || which > 65536) {
    throw Failure(kExitBadInput,
                  fmt::format("{}: got \"{}\"; want RANK/SIZE, such as 0/2", option, text));
  }
}

uint32_t dtype_of(const std::string& name) {
  return name.empty() ? 0 : perch::parse_type(name).value_or(0);
}

}  // namespace

perch_host::Model open_model(const perch_host::Runtime& runtime, const ModelOptions& options) {
  perch_model_opts opts{};
  opts.struct_size = sizeof(opts);
  parse_rank(options.tp, "--tp", &opts.tp_rank, &opts.tp_size);
  parse_rank(options.ep, "--ep", &opts.ep_rank, &opts.ep_size);
  if (options.placement == "round-robin") opts.placement = PERCH_PLACEMENT_ROUND_ROBIN;
  opts.requant = options.requant.empty() ? nullptr : options.requant.c_str();
  if (options.orientation == "native") opts.orientation = PERCH_ORIENTATION_NATIVE;
  if (options.orientation == "transposed") opts.orientation = PERCH_ORIENTATION_TRANSPOSED;
  opts.in_dtype = dtype_of(options.dtype);
  opts.out_dtype = dtype_of(options.out_dtype.empty() ? options.dtype : options.out_dtype);
  opts.max_tokens = options.max_tokens;
  opts.require = parse_caps(options.require, "--require");
  opts.prefer = parse_caps(options.prefer, "--prefer");
  opts.backend = options.backend.empty() ? nullptr : options.backend.c_str();
  if (options.allow_unexpected) opts.flags |= PERCH_MODEL_ALLOW_UNEXPECTED;
  return perch_host::open_model(runtime, options.model, &opts);
}

std::vector<uint32_t> matching_layers(const perch_host::Model& model, const ModelOptions& options) {
  std::vector<uint32_t> indices;
  for (uint32_t i = 0; i < perch_model_num_layers(model.get()); ++i) {
    const char* name = perch_model_layer_config(model.get(), i)->name;
    if (fnmatch(options.layer.c_str(), name, 0) == 0) indices.push_back(i);
  }
  if (indices.empty()) {
    throw Failure(
        kExitBadInput,
        fmt::format("--layer: got \"{}\", which matches none of {} layers; want a glob of "
                    "their names (perch inspect lists them)",
                    options.layer, perch_model_num_layers(model.get())));
  }
  return indices;
}

std::vector<std::pair<std::string, std::string>> parse_layer_options(
    const std::vector<std::string>& options) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& option : options) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Failure(kExitBadInput, fmt::format("--option: got \"{}\"; want KEY=VALUE", option));
    }
    pairs.emplace_back(option.substr(0, equals), option.substr(equals + 1));
  }
  return pairs;
}

std::string print_bytes(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.1f} kB", bytes / 1e3);
}

void Table::print(std::ostream& out, const std::string& indent) const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out << line << "\n";
  }
}

Progress::Progress(bool enabled) : active_(enabled && isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (shown_ > 0) std::cerr << "\r" << std::string(shown_, ' ') << "\r" << std::flush;
}

void Progress::show(const std::string& text) {
  if (!active_) return;
  std::cerr << "\r" << text << std::string(shown_ > text.size() ? shown_ - text.size() : 0, ' ')
            << std::flush;
  shown_ = std::max(shown_, text.size());
}

}  // namespace perch_command
