// Times a layer's calls with weights that come from memory.
#pragma once

#include <string>
#include <vector>

#include "bench/target.h"

namespace perch_bench {

// Layers of one target, used in turn, so that no cache holds the weights of the next call.
class LayerCycle {
 public:
  explicit LayerCycle(Target target);

  const perch_layer_config& config() const { return *target_.config; }
  const perch_layer_info& info() const { return info_; }
  double cold_bytes() const;  // of all layers together

  // Bytes of the weights of one layer that a call must read: what the backend packed, or what the
  // format holds where that is less, since padding is no work.
  double weight_bytes() const;

  // More layers until they hold so many bytes. Stops earlier, without an error, when that has
  // taken kGrowSeconds or half of the memory that is free.
  void grow_to(double bytes);
  perch_layer* next() { return layers_[turn_++ % layers_.size()].get(); }

 private:
  Target target_;
  std::vector<perch_host::Layer> layers_;
  perch_layer_info info_{};
  size_t turn_ = 0;
};

struct TimingOptions {
  double seconds = 1;     // of timed calls
  double cold_bytes = 0;  // what the layers should hold together
  bool ids64 = false;
};

struct Timing {
  std::vector<double> ms;  // ascending
  Work work;               // the median call's
  double touched = 1;      // share of the experts, median
  double median() const { return ms[ms.size() / 2]; }
};

inline constexpr size_t kLeastCalls = 5;
// A time budget may be overdrawn so far for kLeastCalls; then fewer calls have to do.
inline constexpr double kOverdraw = 4;

// read_gbps: about what the machine reads, to see whether memory matters to this backend at all:
// where a call takes more than ten times what its weights take to read, the layers are not
// multiplied.
Timing time_calls(LayerCycle* cycle, const CallMaker& calls, const TimingOptions& options,
                  double read_gbps);

}  // namespace perch_bench
