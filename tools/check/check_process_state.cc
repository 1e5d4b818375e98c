// Does the process look as before, whatever a backend did meanwhile?
#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "check/check.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

extern "C" char** environ;

namespace perch_check {
namespace {

// "default", "ignored", or whose function it is: an address would mean nothing to a reader.
std::string handler_name(const void* handler) {
  if (handler == reinterpret_cast<const void*>(SIG_DFL)) return "default";
  if (handler == reinterpret_cast<const void*>(SIG_IGN)) return "ignored";
  Dl_info info{};
  if (dladdr(handler, &info) == 0 || info.dli_fname == nullptr) return "a function of no library";
  const auto offset =
      reinterpret_cast<uintptr_t>(handler) - reinterpret_cast<uintptr_t>(info.dli_fbase);
  return fmt::format("{}+{:#x}", std::filesystem::path(info.dli_fname).filename().string(), offset);
}

void expect_state(const ProcessState& before, const std::string& step) {
  for (const auto& [name, value] : process_state()) {
    const auto found = before.find(name);
    if (found != before.end() && found->second == value) continue;
    throw Failed{fmt::format("{} after {}", name, step), value,
                 found == before.end() ? "as before" : found->second};
  }
}

}  // namespace

ProcessState process_state() {
  ProcessState state;
  state["rounding mode"] = fmt::format("{}", std::fegetround());
#if defined(__SSE__)
  // Without the sticky flags: those are what arithmetic leaves behind.
  state["MXCSR (rounding, flush-to-zero, masks)"] = fmt::format("{:#06x}", _mm_getcsr() & ~0x3FU);
#endif
#if defined(__x86_64__)
  uint16_t control = 0;
  asm volatile("fnstcw %0" : "=m"(control));
  state["x87 control word"] = fmt::format("{:#06x}", control);
#endif
  state["locale"] = std::setlocale(LC_ALL, nullptr);
  state["working directory"] = std::filesystem::current_path().string();
  const mode_t mask = umask(0);
  umask(mask);
  state["umask"] = fmt::format("{:04o}", mask);
  for (int number = 1; number < 32; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0) continue;
    state[fmt::format("handler of signal {}", number)] =
        handler_name(reinterpret_cast<const void*>(action.sa_sigaction));
  }
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
    state["affinity"] = fmt::format("{} cores", CPU_COUNT(&cpus));
  }
  std::string all;
  for (char** entry = environ; *entry != nullptr; ++entry) all += std::string(*entry) + "\n";
  state["environment"] = fmt::format("{:016x}", std::hash<std::string>()(all));
  return state;
}

void check_process_state(Context& context) {
  const CallData call = context.own_call(Fill::kReal);
  const ProcessState& before = context.state_before();
  expect_state(before, "loading and create");
  {
    Instance instance(context.api(), {});
    expect_state(before, "create");
    PrepareOptions prepare;
    prepare.seed = context.problem().seed;
    Prepared layer(instance, context.config(), context.variant(), prepare);
    expect_state(before, "prepare");
    if (!layer.reply().ok()) throw Failed{"prepare", layer.reply().print(), "PERCH_OK"};
    context.run(layer, call);
    expect_state(before, "execute");
  }
  expect_state(before, "destroy");
}

}  // namespace perch_check
