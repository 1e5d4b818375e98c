#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>

namespace perch {

struct Log::State {
  std::mutex mutex;  // held during a callback, so that set_sink waits for it
  int32_t level = PERCH_LOG_WARN;
  LogFn fn = nullptr;
  void* ctx = nullptr;
  // Not in spdlog's registry: a host's own spdlog, or a second runtime, must not meet it.
  spdlog::logger logger{"perch", std::make_shared<spdlog::sinks::stderr_sink_st>()};
};

namespace {
spdlog::level::level_enum spdlog_level(int32_t level) {
  if (level <= PERCH_LOG_DEBUG) return spdlog::level::debug;
  if (level <= PERCH_LOG_INFO) return spdlog::level::info;
  if (level <= PERCH_LOG_WARN) return spdlog::level::warn;
  return spdlog::level::err;
}
}  // namespace

Log::Log(int32_t level) : state_(std::make_unique<State>()) {
  state_->level = level;
  state_->logger.set_level(spdlog::level::trace);
  state_->logger.set_pattern("perch: %l: %v");
}

Log::~Log() = default;

void Log::write(int32_t level, std::string_view component, std::string_view message) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (level < state_->level) return;
  if (state_->fn != nullptr) {
    state_->fn(state_->ctx, level, std::string(component).c_str(), std::string(message).c_str());
    return;
  }
  state_->logger.log(spdlog_level(level), "{}: {}", component, message);
}

void Log::set_sink(LogFn fn, void* ctx, int32_t level) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->fn = fn;
  state_->ctx = ctx;
  if (level != 0) state_->level = level;
}

}  // namespace perch
