// perch_runtime_*: options and config in, a runtime with its backends out.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "api.h"
#include "base/extensions.h"
#include "base/recipe.h"
#include "config/effective.h"
#include "config/environment.h"
#include "config/match.h"
#include "config/yaml_reader.h"
#include "run/cpu_topology.h"
#include "select/candidate.h"

namespace perch {
namespace {

using nlohmann::ordered_json;

// <directory of libperch.so>/perch/default.yaml, where an installation puts it.
std::string installed_config() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&installed_config), &info) == 0) return "";
  std::error_code ignored;
  const std::filesystem::path library = std::filesystem::canonical(info.dli_fname, ignored);
  const std::filesystem::path path = library.parent_path() / "perch" / "default.yaml";
  return std::filesystem::exists(path, ignored) ? path.string() : "";
}

Result<Config> read_config(const perch_runtime_opts& opts) {
  if (opts.config_path != nullptr && opts.config_text != nullptr) {
    return invalid_argument(
        "perch_runtime_create: config_text: got a text and config_path too; want one of them");
  }
  if (opts.config_text != nullptr) return parse_config(opts.config_text, "config_text");
  if (opts.config_path != nullptr) return load_config(opts.config_path);
  const std::string installed = installed_config();
  return installed.empty() ? Result<Config>(Config()) : load_config(installed);
}

// The four variables of ours; nothing of a setuid program's environment is believed.
Status read_environment(Config* config) {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  PERCH_RETURN_IF_ERROR(check_environment(entries));
  std::vector<std::pair<std::string, std::string>> variables;
  for (const std::string_view name : environment_variables()) {
    const std::string key(name);
    if (const char* value = secure_getenv(key.c_str())) variables.emplace_back(key, value);
  }
  return apply_environment(*config, variables);
}

Result<Config> effective_config(const perch_runtime_opts& opts) {
  PERCH_ASSIGN_OR_RETURN(Config config, read_config(opts));
  PERCH_RETURN_IF_ERROR(read_environment(&config));
  if (config.backends.probe.value == Probe::kProcess) {
    return unsupported(
        fmt::format("{}: probe: got process; want none: this version loads libraries "
                    "in its own process only",
                    config.backends.probe.origin.where));
  }
  if (opts.num_threads != 0) {
    PERCH_RETURN_IF_ERROR(apply_option(config, "threads", std::to_string(opts.num_threads),
                                       "perch_runtime_opts.num_threads"));
  }
  if (opts.backend_path != nullptr) {
    PERCH_RETURN_IF_ERROR(
        apply_option(config, "backend_path", opts.backend_path, "perch_runtime_opts.backend_path"));
  }
  if (opts.log_level != 0) config.log_level = {opts.log_level, {"perch_runtime_opts.log_level"}};
  return config;
}

int32_t threads_of(perch_runtime* runtime) { return runtime->num_threads; }

void run_parallel(perch_runtime* runtime, int64_t count, perch_task_fn task, void* arg) {
  if (runtime->host_parallel_for != nullptr) {
    runtime->host_parallel_for(runtime->host_parallel_for_ctx, count, task, arg);
  } else {
    runtime->pool->parallel_for(count, task, arg);
  }
}

HostServices services_of(perch_runtime* runtime) {
  HostServices services;
  services.ctx = runtime;
  services.num_threads = [](void* ctx) { return threads_of(static_cast<perch_runtime*>(ctx)); };
  services.parallel_for = [](void* ctx, int64_t count, perch_task_fn task, void* arg) {
    run_parallel(static_cast<perch_runtime*>(ctx), count, task, arg);
  };
  return services;
}

// Paths come from three places and are searched in this order: options, file, environment.
PluginOptions plugin_options(perch_runtime* runtime) {
  const BackendsConfig& backends = runtime->config.backends;
  PluginOptions options;
  for (const Setting<std::string>& path : backends.paths)
    options.config_paths.push_back(path.value);
  options.use_environment = false;  // the config has it
  options.allow = backends.allow.value;
  options.deny = backends.deny.value;
  options.must_load = backends.must_load.value;
  options.trust_any = backends.trust_any.value;
  for (const auto& [id, setting] : backends.options) options.backend_options[id] = setting.value;
  options.host = services_of(runtime);
  options.log.ctx = runtime;
  options.log.write = [](void* ctx, int32_t level, const char* component, const char* message) {
    static_cast<perch_runtime*>(ctx)->log.write(level, component, message);
  };
  return options;
}

void start_threads(const perch_runtime_opts& opts, perch_runtime* runtime) {
  const int32_t wanted = runtime->config.threads.value;
  const int32_t count =
      wanted > 0 ? wanted : static_cast<int32_t>(default_thread_count(read_cpu_limits()));
  if (opts.parallel_for != nullptr) {
    runtime->host_parallel_for = opts.parallel_for;
    runtime->host_parallel_for_ctx = opts.parallel_for_ctx;
    runtime->num_threads = count;
    return;
  }
  runtime->pool = std::make_unique<ThreadPool>(count);
  runtime->num_threads = runtime->pool->num_threads();
}

// A backend that refuses the options it was given would be missed without a word: every layer would
// run elsewhere. So a wrong option is the config's error.
Status check_backend_options(const perch_runtime& runtime) {
  for (const LibraryRecord& library : runtime.registry.libraries()) {
    const auto options = runtime.config.backends.options.find(library.id);
    if (library.state != LibraryState::kFailed || !library.id_known ||
        options == runtime.config.backends.options.end()) {
      continue;
    }
    return invalid_argument(fmt::format("{}: backends.options.{}: {}", options->second.origin.where,
                                        library.id, library.reason));
  }
  return {};
}

Status create(const perch_runtime_opts* given, perch_runtime** out) {
  constexpr const char* kFunction = "perch_runtime_create";
  if (out == nullptr) return null_argument(kFunction, "runtime");
  PERCH_ASSIGN_OR_RETURN(const perch_runtime_opts opts, read_options(given, kFunction, "opts"));
  PERCH_RETURN_IF_ERROR(check_extensions(opts.next, "perch_runtime_create: opts"));
  if (opts.num_threads < 0 || opts.flags != 0) {
    return invalid_argument(fmt::format("{}: opts: got num_threads {}, flags {}; want 0 or more, 0",
                                        kFunction, opts.num_threads, opts.flags));
  }
  PERCH_ASSIGN_OR_RETURN(Config config, effective_config(opts));
  auto runtime = std::make_unique<perch_runtime>(config.log_level.value);
  runtime->config = std::move(config);
  if (opts.log != nullptr) runtime->log.set_sink(opts.log, opts.log_ctx, 0);
  for (const std::string& warning : unreachable_rules(runtime->config)) {
    runtime->log.write(PERCH_LOG_WARN, "config", warning);
  }
  start_threads(opts, runtime.get());
  PERCH_RETURN_IF_ERROR(runtime->registry.load_all(plugin_options(runtime.get())));
  PERCH_RETURN_IF_ERROR(check_backend_options(*runtime));
  *out = runtime.release();
  return {};
}

ordered_json library_json(const LibraryRecord& library) {
  ordered_json devices = ordered_json::array();
  for (const DeviceRecord& device : library.devices) {
    devices.push_back({{"device", print_device(device.device)},
                       {"name", device.name},
                       {"arch", device.arch},
                       {"usable", device.usable},
                       {"reason", device.reason}});
  }
  return {{"path", library.path},
          {"real_path", library.real_path},
          {"id", library.id},
          {"version", library.version},
          {"vendor", library.vendor},
          {"build", library.build},
          {"build_id", library.build_id},
          {"abi", library.abi},
          {"state", state_name(library.state)},
          {"reason", library.reason},
          {"complaints", library.complaints},
          {"devices", std::move(devices)},
          {"caps_possible", cap_names(library.caps_possible)}};
}

std::string report_json(perch_runtime& runtime) {
  const std::shared_lock<std::shared_mutex> lock(runtime.registry_mutex);
  ordered_json document;
  document["libraries"] = ordered_json::array();
  for (const LibraryRecord& library : runtime.registry.libraries()) {
    document["libraries"].push_back(library_json(library));
  }
  document["search"] = ordered_json::array();
  for (const SearchPlace& place : runtime.registry.places()) {
    document["search"].push_back({{"path", place.path},
                                  {"origin", place.origin},
                                  {"files", place.num_files},
                                  {"reason", place.reason}});
  }
  document["threads"] = runtime.num_threads;
  document["config"] = ordered_json::parse(effective_config_json(runtime.config));
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace
}  // namespace perch

extern "C" {

perch_status perch_runtime_create(const perch_runtime_opts* opts, perch_runtime** runtime,
                                  perch_error* error) {
  return perch::guarded_call(error, "perch_runtime_create",
                             [&] { return perch::create(opts, runtime); });
}

void perch_runtime_destroy(perch_runtime* runtime) { delete runtime; }

perch_status perch_runtime_load(perch_runtime* runtime, const char* path, perch_error* error) {
  return perch::guarded_call(error, "perch_runtime_load", [&]() -> perch::Status {
    if (runtime == nullptr || path == nullptr) {
      return perch::null_argument("perch_runtime_load", runtime == nullptr ? "runtime" : "path");
    }
    const std::unique_lock<std::shared_mutex> lock(runtime->registry_mutex);
    return runtime->registry.load_file(path);
  });
}

perch_status perch_runtime_report(perch_runtime* runtime, char* json, uint64_t capacity,
                                  uint64_t* needed, perch_error* error) {
  return perch::guarded_call(error, "perch_runtime_report", [&]() -> perch::Status {
    if (runtime == nullptr) return perch::null_argument("perch_runtime_report", "runtime");
    return perch::copy_json(perch::report_json(*runtime), json, capacity, needed);
  });
}

perch_status perch_set_log(perch_runtime* runtime, perch_log_fn fn, void* ctx, int32_t level,
                           perch_error* error) {
  return perch::guarded_call(error, "perch_set_log", [&]() -> perch::Status {
    if (runtime == nullptr) return perch::null_argument("perch_set_log", "runtime");
    runtime->log.set_sink(fn, ctx, level);
    return {};
  });
}

int32_t perch_runtime_num_threads(perch_runtime* runtime) {
  return runtime == nullptr ? 0 : runtime->num_threads;
}

}  // extern "C"
