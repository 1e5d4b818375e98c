#include "bench/timing.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "layer_input.h"

namespace perch_bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGrowSeconds = 20;
// Inputs are made in batches, outside the timed calls; the first call of a batch is not timed when
// calls are short, since the runtime's threads have gone to sleep meanwhile.
constexpr size_t kBatch = 32;
constexpr double kBatchBytes = 64e6;
constexpr double kShortMs = 20;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double free_memory() {
  return static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<double>(sysconf(_SC_PAGESIZE));
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs calls on the cycle's layers, with one output and one workspace for all.
class Runner {
 public:
  Runner(LayerCycle* cycle, const CallMaker& calls, bool ids64)
      : cycle_(cycle), calls_(calls), ids64_(ids64) {}

  std::unique_ptr<Call> make_call() {
    perch_check::CallData data = calls_(next_call_++);
    const auto bytes =
        static_cast<size_t>(Call::y_bytes(cycle_->config(), data.num_tokens)) + kAlign;
    // All calls of a target have about the same size, but BATCHED ones differ by their fullest
    // expert; y may not move while a call points to it, so there is room for four times as much.
    if (y_.empty()) y_.resize(4 * bytes);
    if (bytes > y_.size()) {
      throw std::runtime_error("bench: a call is four times as large as the first");
    }
    return std::make_unique<Call>(cycle_->config(), std::move(data), ids64_, align(y_.data()));
  }

  double run_ms(const Call& call) {
    perch_layer* layer = cycle_->next();
    perch_exec_args args = call.args();
    lend_workspace(layer, call.num_tokens(), &args);
    perch_error error = PERCH_ERROR_INIT;
    const auto begin = Clock::now();
    const perch_status status = perch_layer_execute(layer, &args, &error);
    const double ms = 1e3 * seconds_since(begin);
    if (status != PERCH_OK) throw perch_host::Error(status, error.message);
    return ms;
  }

 private:
  static constexpr size_t kAlign = 4096;

  static std::byte* align(std::byte* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    return data + (kAlign - address % kAlign) % kAlign;
  }

  void lend_workspace(perch_layer* layer, int64_t num_tokens, perch_exec_args* args) {
    const perch_layer_config& config = cycle_->config();
    perch_call_shape shape{};
    shape.struct_size = sizeof(shape);
    shape.form = config.kind == PERCH_KIND_MOE ? config.moe->form : PERCH_FORM_STANDARD;
    shape.num_tokens = num_tokens;
    perch_workspace_req need{};
    need.struct_size = sizeof(need);
    perch_host::check(perch_layer_workspace, layer, static_cast<const perch_call_shape*>(&shape),
                      &need);
    if (workspace_.size() < need.bytes + kAlign) workspace_.resize(need.bytes + kAlign);
    args->workspace = align(workspace_.data());
    args->workspace_bytes = need.bytes;
  }

  LayerCycle* cycle_;
  const CallMaker& calls_;
  bool ids64_;
  int64_t next_call_ = 0;
  std::vector<std::byte> y_, workspace_;
};

}  // namespace

LayerCycle::LayerCycle(Target target) : target_(std::move(target)) {
  layers_.push_back(target_.make_layer());
  info_.struct_size = sizeof(info_);
  info_.layout.struct_size = sizeof(info_.layout);
  perch_host::check(perch_layer_get_info, layers_[0].get(),
                    static_cast<const perch_call_shape*>(nullptr), &info_);
}

double LayerCycle::cold_bytes() const {
  return static_cast<double>(info_.packed_bytes) * static_cast<double>(layers_.size());
}

double LayerCycle::weight_bytes() const {
  const auto packed = static_cast<double>(info_.packed_bytes);
  return target_.format_bytes > 0 ? std::min(packed, target_.format_bytes) : packed;
}

void LayerCycle::grow_to(double bytes) {
  const auto begin = Clock::now();
  const auto packed = static_cast<double>(info_.packed_bytes);
  while (cold_bytes() < bytes && seconds_since(begin) < kGrowSeconds &&
         packed < free_memory() / 2) {
    layers_.push_back(target_.make_layer());
  }
}

namespace {

// The calls that were timed, and when there are enough.
class Log {
 public:
  Log(const LayerCycle& cycle, double budget_ms)
      : cycle_(cycle), per_visit_(operations_per_visit(cycle.config())), budget_ms_(budget_ms) {}

  Work work_of(const Call& call) const {
    return {cycle_.weight_bytes() * call.share_touched(),
            per_visit_ * static_cast<double>(call.visits())};
  }
  void keep(const Call& call, double ms) {
    ms_.push_back(ms);
    bytes_.push_back(work_of(call).bytes);
    operations_.push_back(work_of(call).operations);
    touched_.push_back(call.share_touched());
    spent_ms_ += ms;
  }
  // Whether one call more would be beyond the budget.
  bool full() const {
    if (ms_.empty()) return false;
    const double limit_ms = ms_.size() < kLeastCalls ? kOverdraw * budget_ms_ : budget_ms_;
    return spent_ms_ + ms_.back() > limit_ms;
  }
  Timing finish() {
    std::sort(ms_.begin(), ms_.end());
    return {std::move(ms_), {median_of(bytes_), median_of(operations_)}, median_of(touched_)};
  }

 private:
  const LayerCycle& cycle_;
  double per_visit_, budget_ms_, spent_ms_ = 0;
  std::vector<double> ms_, bytes_, operations_, touched_;
};

}  // namespace

Timing time_calls(LayerCycle* cycle, const CallMaker& calls, const TimingOptions& options,
                  double read_gbps) {
  const double budget_ms = 1e3 * options.seconds;
  Runner runner(cycle, calls, options.ids64);
  Log log(*cycle, budget_ms);
  const auto first = runner.make_call();
  double first_ms = runner.run_ms(*first);
  // Again, with pages in and threads awake, where that costs little.
  if (first_ms < budget_ms) first_ms = runner.run_ms(*first);
  if (first_ms < 10 * log.work_of(*first).bytes / read_gbps / 1e6) {
    cycle->grow_to(options.cold_bytes);
  }
  if (2 * first_ms > kOverdraw * budget_ms) log.keep(*first, first_ms);

  const double x_bytes = 4.0 * static_cast<double>(first->num_tokens()) *
                         static_cast<double>(perch_command::input_width(cycle->config()));
  const bool is_short = first_ms < kShortMs;
  const size_t batch =
      is_short ? std::clamp<size_t>(static_cast<size_t>(kBatchBytes / x_bytes), 2, kBatch) : 1;
  while (!log.full()) {
    std::vector<std::unique_ptr<Call>> made;
    for (size_t i = 0; i < batch; ++i) made.push_back(runner.make_call());
    if (is_short) runner.run_ms(*runner.make_call());
    for (size_t i = 0; i < made.size() && !log.full(); ++i) {
      log.keep(*made[i], runner.run_ms(*made[i]));
    }
  }
  return log.finish();
}

}  // namespace perch_bench
