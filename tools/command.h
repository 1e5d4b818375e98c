// What the subcommands share: common options, exit codes, output.
//
// A subcommand is one file with one register_* function; main.cc lists them. JSON goes to stdout as
// one document, everything for people but the result goes to stderr.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <perch/perch.hpp>
#include <string>
#include <vector>

namespace perch_command {

using perch_host::Error;

enum ExitCode { kExitFine = 0, kExitFailed = 1, kExitBadInput = 2, kExitNoBackend = 3 };

// A subcommand's result when it is not "fine".
struct Failure : std::runtime_error {
  Failure(int exit_code, const std::string& message)
      : std::runtime_error(message), code(exit_code) {}
  int code;
};

struct CommonOptions {
  std::string config;
  std::string config_text;  // a policy in place of a file's
  std::string backend_path;
  int threads = 0;
  int verbose = 0;
  bool quiet = false;
  bool json = false;
};

// Options that choose and shape a model's layers: explain, run, route and inspect.
struct ModelOptions {
  std::string model;
  std::string layer = "*";
  std::string backend;
  std::vector<std::string> require;
  std::vector<std::string> prefer;
  std::string tp;  // "R/N"
  std::string ep;
  std::string placement = "linear";
  std::string orientation = "auto";
  std::string requant;    // weight format to convert to; "" = as stored
  std::string dtype;      // of x and y: f32, f16, bf16; "" = the checkpoint's
  std::string out_dtype;  // of y alone
  long long max_tokens = 0;
  bool allow_unexpected = false;
};

void add_common_options(CLI::App* app, CommonOptions* options);
void add_model_options(CLI::App* app, ModelOptions* options);

perch_host::Runtime open_runtime(const CommonOptions& common);
// Whether it says that no backend takes a layer, rather than that something is wrong.
bool no_backend_fits(const Error& error);
perch_host::Model open_model(const perch_host::Runtime& runtime, const ModelOptions& options);

// Promises by name; Failure names the option and the known ones.
perch_caps parse_caps(const std::vector<std::string>& names, const char* option);

// Indices of the layers whose names match the glob; Failure when there are none.
std::vector<uint32_t> matching_layers(const perch_host::Model& model, const ModelOptions& options);

// Of --option, in order; exits with kExitBadInput for one that is not KEY=VALUE.
std::vector<std::pair<std::string, std::string>> parse_layer_options(
    const std::vector<std::string>& options);

// "0.123", "1.2 MB": numbers for people.
std::string print_bytes(double bytes);

// Columns padded to their widest cell; the last one runs free.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print(std::ostream& out, const std::string& indent = "") const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// One line on a terminal's stderr that is rewritten; nothing in a pipe.
class Progress {
 public:
  explicit Progress(bool enabled);
  ~Progress();
  void show(const std::string& text);

 private:
  bool active_;
  size_t shown_ = 0;
};

using Handler = std::function<int()>;
// Each adds its subcommand to the app and sets *handler when it was called.
void register_list(CLI::App* app, CommonOptions* common, Handler* handler);
void register_inspect(CLI::App* app, CommonOptions* common, Handler* handler);
void register_explain(CLI::App* app, CommonOptions* common, Handler* handler);
void register_run(CLI::App* app, CommonOptions* common, Handler* handler);
void register_route(CLI::App* app, CommonOptions* common, Handler* handler);
void register_check(CLI::App* app, CommonOptions* common, Handler* handler);
void register_synth(CLI::App* app, CommonOptions* common, Handler* handler);
void register_diff(CLI::App* app, CommonOptions* common, Handler* handler);
void register_bench(CLI::App* app, CommonOptions* common, Handler* handler);

}  // namespace perch_command
