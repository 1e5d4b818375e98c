#include "check/shrink.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>

#include "base/recipe.h"

namespace perch_check {
namespace {

using perch::Case;
using perch::LayerConfig;

// Sizes worth trying below `size`: small ones, those of common tiles, halves, one less.
std::vector<int64_t> below(int64_t size, bool tiles) {
  std::set<int64_t> sizes = {1, 2, 3, 4, size / 2, size - 1};
  if (tiles) sizes.insert({8, 16, 32, 64, 128, 256});
  std::vector<int64_t> result;
  for (const int64_t one : sizes) {
    if (one >= 1 && one < size) result.push_back(one);
  }
  return result;
}

class Smaller {
 public:
  explicit Smaller(const Case& problem) : problem_(problem), own_(perch::print_case(problem)) {}

  std::vector<Case> all() {
    drop_words();
    simplify_recipe();
    shrink_sizes();
    return std::move(cases_);
  }

 private:
  // Keeps the changed case when it is one.
  void add(const std::function<void(Case*)>& change) {
    Case changed = problem_;
    change(&changed);
    auto parsed = perch::parse_case(perch::print_case(changed));
    if (!parsed.ok()) return;
    // The line does not hold them.
    for (const auto& [key, value] : problem_.config.options()) {
      parsed->config.set_option(key, value);
    }
    const std::string line = perch::print_case(*parsed);
    if (line != own_ && seen_.insert(line).second) cases_.push_back(*parsed);
  }

  void drop_words() {
    add([](Case* c) { c->load = "uniform"; });
    add([](Case* c) { c->ids64 = false; });
    add([](Case* c) { c->strided = false; });
    add([](Case* c) { c->seed = 0; });
    add([](Case* c) { c->threads = 0; });
    add([](Case* c) { c->config.layer().require = 0; });
    if (!problem_.config.is_moe()) return;
    add([](Case* c) {
      c->ep_rank = 0;
      c->ep_size = 1;
      c->config.moe().num_experts_global = c->config.moe().num_experts;
    });
    add([](Case* c) { c->config.moe().form = PERCH_FORM_STANDARD; });
    add([](Case* c) { c->config.moe().flags &= ~PERCH_MOE_ROUTER_WEIGHT_ON_INPUT; });
  }

  void simplify_quant(const std::function<perch_quant&(LayerConfig*)>& quant) {
    const auto set = [&](uint32_t perch_quant::*field, uint32_t value) {
      add([&](Case* c) { quant(&c->config).*field = value; });
    };
    set(&perch_quant::flags, 0);
    set(&perch_quant::offset_kind, PERCH_OFFSET_NONE);
    set(&perch_quant::scale2_kind, PERCH_SCALE2_NONE);
    add([&](Case* c) {
      quant(&c->config).k_order = PERCH_K_NATURAL;
      quant(&c->config).num_groups = 0;
    });
    set(&perch_quant::zero_kind, PERCH_ZERO_MIDPOINT);
  }

  void simplify_recipe() {
    simplify_quant([](LayerConfig* config) -> perch_quant& { return config->first(); });
    add([](Case* c) { c->config.act_first() = perch::make_act_none(); });
    add([](Case* c) { c->config.layer().in_dtype = PERCH_TYPE_BF16; });
    add([](Case* c) { c->config.layer().out_dtype = PERCH_TYPE_BF16; });
    if (!problem_.config.is_moe()) return;
    add([](Case* c) { c->config.second() = c->config.first(); });
    simplify_quant([](LayerConfig* config) -> perch_quant& { return config->second(); });
    add([](Case* c) { c->config.act_second() = perch::make_act_none(); });
    add([](Case* c) { c->config.act_second() = c->config.act_first(); });
    for (const uint32_t activation : {PERCH_ACTIVATION_RELU2_NO_MUL, PERCH_ACTIVATION_SILU}) {
      add([&](Case* c) {
        c->config.moe().activation = activation;
        c->config.moe().flags &= ~(PERCH_MOE_HAS_ALPHA | PERCH_MOE_HAS_BETA | PERCH_MOE_HAS_LIMIT);
      });
    }
  }

  void shrink_sizes() {
    for (const int64_t t : below(problem_.t, false)) {
      add([&](Case* c) {
        c->t = t;
        c->config.layer().max_tokens = t;
      });
    }
    if (!problem_.config.is_moe()) {
      const perch_linear_config& linear = problem_.config.linear();
      for (const int64_t k : below(linear.in_features, true)) {
        add([&](Case* c) { c->config.linear().in_features = k; });
      }
      for (const int64_t n : below(linear.out_features, true)) {
        add([&](Case* c) { c->config.linear().out_features = n; });
      }
      return;
    }
    const perch_moe_config& moe = problem_.config.moe();
    for (const int64_t e : below(moe.num_experts, false)) {
      add([&](Case* c) {
        perch_moe_config& changed = c->config.moe();
        const bool local = changed.num_experts_global == changed.num_experts;
        changed.num_experts = static_cast<uint32_t>(e);
        if (local) changed.num_experts_global = changed.num_experts;
        changed.topk = std::min(changed.topk, changed.num_experts_global);
      });
    }
    for (const int64_t top : below(moe.topk, false)) {
      add([&](Case* c) { c->config.moe().topk = static_cast<uint32_t>(top); });
    }
    for (const int64_t h : below(moe.hidden, true)) {
      add([&](Case* c) { c->config.moe().hidden = h; });
    }
    for (const int64_t i : below(moe.intermediate, true)) {
      add([&](Case* c) { c->config.moe().intermediate = i; });
    }
  }

  Case problem_;
  std::string own_;
  std::vector<Case> cases_;
  std::set<std::string> seen_;
};

}  // namespace

std::vector<Case> smaller_cases(const Case& problem) { return Smaller(problem).all(); }

Shrunk shrink(const Job& failing, const CheckResult& result, const JobOptions& options,
              double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
  Shrunk best{failing.problem, result, 0};
  best.problem.kernel.clear();  // the variant stays; its kernel's name may not
  std::set<std::string> tried;
  for (bool better = true; better;) {
    better = false;
    for (const Case& candidate : smaller_cases(best.problem)) {
      if (Clock::now() > end) return best;
      if (!tried.insert(perch::print_case(candidate)).second) continue;
      ++best.tries;
      Job job = failing;
      job.problem = candidate;
      CheckResult outcome;
      run_jobs({job}, options, [&](size_t, std::vector<CheckResult> results) {
        outcome = std::move(results.front());
      });
      if (!is_failure(outcome.status)) continue;
      best.problem = candidate;
      best.result = outcome;
      better = true;
      break;
    }
  }
  return best;
}

}  // namespace perch_check
