// The same call again: later, elsewhere, on other threads, beside others. Compared by bytes where
// that is promised, with the oracle where it is not.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include "check/check.h"
#include "check/heap_watch.h"

namespace perch_check {
namespace {

int32_t cores() { return static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency())); }

uint64_t digest(const Output& output) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (size_t i = 0; i < output.place.size(); ++i) {
    for (const std::byte byte : output.row(i)) {
      hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001B3ULL;
    }
  }
  return hash;
}

// The digest of this call in a process that has done nothing yet; 0 when it could not be had.
uint64_t digest_elsewhere(Context& context, const CallData& call) {
  int ends[2];
  if (pipe(ends) != 0) return 0;
  const pid_t child = fork();
  if (child < 0) return 0;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint64_t own = 0;
    try {
      own = digest(context.run(*context.setup()->layer, call));
    } catch (...) {
      own = 0;  // told apart by the parent: it has run the same call itself
    }
    const ssize_t written = write(ends[1], &own, sizeof(own));
    _exit(written == sizeof(own) ? 0 : 1);
  }
  close(ends[1]);
  uint64_t hash = 0;
  if (read(ends[0], &hash, sizeof(hash)) != sizeof(hash)) hash = 0;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return hash;
}

int64_t count_threads() {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    count += entry.exists() ? 1 : 0;
  }
  return count;
}

// A layer of the same recipe with sizes of one, where the candidate takes it: what a library sizes
// by the first layer it sees is then too small for the case's own.
void run_small_layer(const Context& context) {
  perch::Case small = context.problem();
  if (small.config.is_moe()) {
    small.config.moe().hidden = small.config.moe().intermediate = 1;
  } else {
    small.config.linear().out_features = small.config.linear().in_features = 1;
  }
  Instance instance(context.api(), {});
  if (!instance.query(small.config.abi(), context.variant()).yes()) return;
  const Prepared layer(instance, small.config, context.variant(), {});
  if (!layer.reply().ok()) throw Failed{"a layer of sizes 1", layer.reply().print(), "PERCH_OK"};
  const Output output = execute(layer, make_call(small, {0}, Fill::kReal, small.load));
  if (!output.reply.ok()) throw Failed{"a layer of sizes 1", output.reply.print(), "PERCH_OK"};
}

}  // namespace

void check_determinism(Context& context) {
  const CallData call = context.own_call(Fill::kReal);
  // First of all, while this process is fresh too.
  const uint64_t elsewhere = digest_elsewhere(context, call);
  const Output want = context.run(context.layer(), call);
  if (elsewhere != digest(want)) {
    throw Failed{"another process", fmt::format("digest {:016x}", elsewhere),
                 fmt::format("digest {:016x}", digest(want))};
  }
  for (int repeat = 1; repeat <= 3; ++repeat) {
    CallOptions options;
    options.side = repeat % 2 == 0 ? Side::kTail : Side::kHead;  // other addresses
    expect_same_rows(context, fmt::format("repeat {}", repeat),
                     context.run(context.layer(), call, options), want);
  }
  PrepareOptions backwards;
  backwards.backwards = true;
  expect_same_rows(context, "weights prepared again, the last expert first",
                   context.run(*context.setup({}, backwards)->layer, call), want);
}

void check_threads(Context& context) {
  const CallData call = context.own_call(Fill::kReal);
  const Output want = context.run(context.layer(), call);
  const bool promised = context.promises(PERCH_CAP_DETERMINISTIC);
  const auto compare = [&](const HostOptions& host, const std::string& what) {
    const Output got = context.run(*context.setup(host)->layer, call);
    if (promised) {
      expect_same_rows(context, what, got, want);
    } else {
      context.expect_numbers(call, got, Fill::kReal);
    }
  };
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    HostOptions host;
    host.threads = seed == 1 ? 1 : 4;
    host.schedule = Schedule::kShuffled;
    host.seed = seed;
    compare(host, fmt::format("tasks one by one in the shuffled order {}, {} threads", seed,
                              host.threads));
  }
  for (const int32_t threads : {2, 3, 2 * cores() + 1}) {
    HostOptions host;
    host.threads = threads;
    host.schedule = Schedule::kThreads;
    for (int repeat = 0; repeat < 2; ++repeat) {
      compare(host, fmt::format("{} threads", threads));
    }
  }
}

void check_no_alloc(Context& context) {
  if (!HeapWatch::available()) {
    throw Skipped{Skipped::Reason::kNoHeapWatch, "a sanitizer's allocator is in the way"};
  }
  const CallData call = context.own_call(Fill::kReal);
  CallOptions options;
  options.count_allocations = true;
  // The first call too: "execute allocates nothing" knows no warm-up.
  for (int repeat = 0; repeat < 2; ++repeat) {
    const Output output = context.run(context.layer(), call, options);
    if (output.allocations == 0) continue;
    throw Failed{fmt::format("call {}", repeat + 1),
                 fmt::format("{} allocations", output.allocations), "0"};
  }
}

void check_host_threads(Context& context) {
  const int64_t before = count_threads();
  const int64_t started = threads_started();
  HostOptions host;
  host.threads = 3;
  const auto setup = context.setup(host);
  const CallData call = context.own_call(Fill::kReal);
  int64_t most = count_threads();
  setup->instance.host().at_end_of_loop([&] { most = std::max(most, count_threads()); });
  context.run(*setup->layer, call);
  most = std::max(most, count_threads());
  // Also one that has ended by now.
  if (threads_started() > started) most = std::max(most, before + threads_started() - started);
  if (most <= before) return;
  throw Failed{"threads of the process", fmt::format("{}", most),
               fmt::format("{}: all work through parallel_for", before)};
}

void check_concurrency(Context& context) {
  HostOptions host;
  host.threads = 4;
  const auto setup = context.setup(host);
  const Prepared& layer = *setup->layer;
  const int64_t tokens = std::max<int64_t>(1, context.tokens());
  std::vector<CallData> calls;
  std::vector<Output> want;
  for (int64_t i = 0; i < 4; ++i) {
    std::vector<RowKey> keys;
    for (int64_t row = 0; row < tokens; ++row) keys.push_back(i * tokens + row);
    calls.push_back(context.call(keys, context.problem().load));
    want.push_back(context.run(layer, calls.back()));
  }
  const bool promised = context.promises(PERCH_CAP_DETERMINISTIC);
  const auto compare = [&](const std::string& what, size_t i, const Output& got) {
    if (promised) {
      expect_same_rows(context, what, got, want[i]);
    } else {
      context.expect_numbers(calls[i], got, Fill::kReal);
    }
  };
  // One call in the middle of another, by design and not by luck.
  Output inner;
  setup->instance.host().run_inside([&] { inner = execute(layer, calls[1]); });
  const Output outer = context.run(layer, calls[0]);
  setup->instance.host().run_inside(nullptr);
  compare("a call that another one ran inside of", 0, outer);
  if (!inner.place.empty()) {
    if (!inner.reply.ok()) throw Failed{"a call inside another", inner.reply.print(), "PERCH_OK"};
    compare("a call inside another", 1, inner);
  }
  std::atomic<int> waiting{4};
  std::vector<std::vector<Output>> got(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      --waiting;
      while (waiting.load() > 0) std::this_thread::yield();
      for (int repeat = 0; repeat < 4; ++repeat) got[i].push_back(execute(layer, calls[i]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 4; ++i) {
    for (const Output& output : got[i]) {
      if (!output.reply.ok()) throw Failed{"4 callers", output.reply.print(), "PERCH_OK"};
      compare(fmt::format("caller {} of 4", i), i, output);
    }
  }
}

void check_sequences(Context& context) {
  const int64_t most = context.tokens();
  const std::vector<int64_t> sizes = {1, 1, most, 1, (most + 1) / 2, 2, most};
  const bool promised = context.promises(PERCH_CAP_DETERMINISTIC);
  const auto rows = [&](int64_t count, int64_t from) {
    std::vector<RowKey> keys;
    for (int64_t i = 0; i < count; ++i) keys.push_back(from + i);
    return context.call(keys, context.problem().load);
  };
  const auto compare = [&](const std::string& what, const CallData& call, const Output& got,
                           const PrepareOptions& weights) {
    // Right, and not only the same as anew: what a library remembers, it remembers for both.
    try {
      context.expect_numbers(call, got, Fill::kReal, weights);
    } catch (Failed& failed) {
      failed.where = what + ": " + failed.where;
      throw;
    }
    if (!promised) return;
    expect_same_rows(context, what, got, context.run(*context.setup({}, weights)->layer, call));
  };
  run_small_layer(context);
  // Two layers of one instance.
  PrepareOptions first, second;
  second.seed = context.problem().seed + 101;
  auto setup = context.setup({}, first);
  auto other =
      std::make_unique<Prepared>(setup->instance, context.config(), context.variant(), second);
  if (!other->reply().ok()) throw Failed{"a second layer", other->reply().print(), "PERCH_OK"};
  // All calls one behind the other, as in decoding; compared when all have run.
  struct Made {
    std::string what;
    CallData call;
    Output output;
    const PrepareOptions* weights;
  };
  std::vector<Made> made;
  for (const bool on_other : {false, true}) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t size = std::clamp<int64_t>(sizes[i], 0, most);
      CallData call = rows(size, static_cast<int64_t>(i) * 10);
      Output output = context.run(on_other ? *other : *setup->layer, call);
      made.push_back({fmt::format("call {} of a sequence, {} rows{}", i + 1, size,
                                  on_other ? ", second layer" : ""),
                      std::move(call), std::move(output), on_other ? &second : &first});
    }
  }
  for (const Made& one : made) compare(one.what, one.call, one.output, *one.weights);
  other.reset();
  const CallData last = rows(most, 7);
  compare("after another layer was released", last, context.run(*setup->layer, last), first);
}

}  // namespace perch_check
