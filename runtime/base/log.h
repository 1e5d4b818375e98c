// Log: where the runtime's and its backends' messages go. spdlog is used in log.cc alone.
//
// One per runtime; nothing is global. A host's callback replaces stderr.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "perch/base.h"

namespace perch {

using LogFn = void(PERCH_CALL*)(void* ctx, int32_t level, const char* component,
                                const char* message);

class Log {
 public:
  // Messages below `level` (PERCH_LOG_*) are dropped.
  explicit Log(int32_t level);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // [any thread] `component` and `message` are UTF-8.
  void write(int32_t level, std::string_view component, std::string_view message);
  // fn null: stderr. Returns when no call of the old function is in flight.
  void set_sink(LogFn fn, void* ctx, int32_t level);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace perch
