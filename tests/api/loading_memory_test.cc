// What loading takes: private memory while a layer is packed, and bytes of the checkpoint for one
// rank of several.
#include <malloc.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "../abi/shell.h"
#include "api_rig.h"
#include "checkpoint_rig.h"

namespace perch::test {
namespace {

constexpr MoeSizes kSizes{24, 2, 512, 768};

// Anonymous resident memory in bytes: what this process alone holds, without file pages.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

// The most that anonymous_bytes was while it lived.
class PeakWatch {
 public:
  PeakWatch() : before_(anonymous_bytes()), peak_(before_), thread_([this] { watch(); }) {}
  ~PeakWatch() {
    if (thread_.joinable()) stop();
  }
  PeakWatch(const PeakWatch&) = delete;
  PeakWatch& operator=(const PeakWatch&) = delete;

  int64_t stop() {
    done_ = true;
    thread_.join();
    // On a busy machine the thread may have slept through the end.
    return std::max<int64_t>(peak_, anonymous_bytes()) - before_;
  }

 private:
  void watch() {
    while (!done_) peak_ = std::max<int64_t>(peak_, anonymous_bytes());
  }

  int64_t before_;
  std::atomic<int64_t> peak_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

class LoadingMemory : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    packed_moe(kSizes, 4, 32, 3, [](std::mt19937&) { return 0.25F; }).write(directory_.path());
  }

  // One expert's canonical tensors.
  static int64_t expert_bytes() {
    const int64_t weights = 3 * kSizes.hidden * kSizes.intermediate;
    return weights / 2 + weights / 32 * 4;
  }
  json loaded(const perch_model_opts& opts) const {
    const perch_host::Model model =
        open_directory(shared_runtime(GetParam()), directory_.path(), opts);
    const perch_host::Layer layer = perch_host::make_layer(model, 0);
    return json::parse(perch_host::json(perch_layer_explain, layer.get()))["load"];
  }

  TempDir directory_;
};

// The bound that a host can plan with: 1.15 of what the backend holds, and two experts on their
// way.
TEST_P(LoadingMemory, StaysNearThePackedBytes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory is counted too";
  const perch_model_opts opts = model_opts();
  const perch_host::Model model =
      open_directory(shared_runtime(GetParam()), directory_.path(), opts);
  malloc_trim(0);  // what earlier tests freed would be taken again unseen
  PeakWatch watch;
  const perch_host::Layer layer = perch_host::make_layer(model, 0);
  const int64_t peak = watch.stop();
  perch_layer_info info{};
  info.struct_size = sizeof(info);
  info.layout.struct_size = sizeof(info.layout);
  perch_host::check(perch_layer_get_info, layer.get(),
                    static_cast<const perch_call_shape*>(nullptr), &info);
  const auto packed = static_cast<double>(info.packed_bytes);
  EXPECT_GT(static_cast<double>(peak), 0.5 * packed) << "nothing was measured";
  EXPECT_LE(static_cast<double>(peak), 1.15 * packed + 2.0 * static_cast<double>(expert_bytes()))
      << "packed " << info.packed_bytes << ", an expert " << expert_bytes();
}

TEST_P(LoadingMemory, OneRankReadsItsPart) {
  const int64_t all = loaded(model_opts())["bytes_read"];
  EXPECT_EQ(all, kSizes.experts * expert_bytes());
  for (const bool tensors : {true, false}) {
    perch_model_opts opts = model_opts();
    (tensors ? opts.tp_size : opts.ep_size) = 4;
    const int64_t part = loaded(opts)["bytes_read"];
    EXPECT_LE(static_cast<double>(part), 0.30 * static_cast<double>(all)) << tensors;
    EXPECT_GE(static_cast<double>(part), 0.20 * static_cast<double>(all)) << tensors;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LoadingMemory, ::testing::Values("reference", "humming-cpu"),
                         [](const auto& row) {
                           return row.param == std::string("reference") ? "reference"
                                                                        : "humming_cpu";
                         });

}  // namespace
}  // namespace perch::test
