#include "check/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace perch_check {
namespace {

constexpr size_t kSpreadRows = 16;     // compared wherever the two differ
constexpr size_t kDifferentRows = 16;  // and those in which they differ most

struct Side {
  Side(const char* letter, Context* which)
      : context(which),
        name(fmt::format("{} {}/{}", letter, which->api()->info->id,
                         which->answer().support.kernel)) {}

  Context* context;
  std::string name;  // "A reference/reference"
  std::unique_ptr<Setup> setup;
  Output output;
  std::vector<double> all;     // [rows, columns] of the call
  std::vector<double> picked;  // those that are compared

  void run(const Context& announcer, const CallData& call, Fill fill) {
    try {
      announcer.begin_stage(name + ": preparing weights");
      PrepareOptions weights;
      weights.fill = fill;
      setup = context->setup({}, weights);
      announcer.begin_stage(fmt::format("{}: executing {} rows", name, call.keys.size()));
      output = context->run(*setup->layer, call);
    } catch (Failed& failed) {
      failed.where = name + ": " + failed.where;
      throw;
    }
    all = output_values(context->config(), output);
  }

  void pick(const std::vector<size_t>& rows, int64_t columns) {
    for (const size_t row : rows) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row) * columns;
      picked.insert(picked.end(), begin, begin + columns);
    }
  }
};

// Two NaNs are alike; one is as far from a number as can be.
double distance(double x, double y) {
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  const double difference = std::fabs(x - y);
  return std::isnan(difference) ? HUGE_VAL : difference;
}

// Both sides on the same rows.
class Pair {
 public:
  Pair(Context& a, Fill fill)
      : context_(a), call_(a.own_call(fill)), a_("A", &a), b_("B", a.other()) {
    a_.run(context_, call_, fill);
    b_.run(context_, call_, fill);
    context_.begin_stage("comparing");
    rows_ = choose_rows();
    PrepareOptions weights;
    weights.fill = fill;
    oracle_ = context_.oracle(call_, fill, rows_, weights);
    a_.pick(rows_, oracle_.columns);
    b_.pick(rows_, oracle_.columns);
  }

  void compare_real();
  void compare_exact();

 private:
  std::vector<size_t> choose_rows() const;
  bool identical() const;
  int64_t row_of_call(int64_t picked) const {
    return static_cast<int64_t>(rows_[static_cast<size_t>(picked)]);
  }
  void record_wrong(bool a_wrong, bool b_wrong);

  Context& context_;
  CallData call_;
  Side a_, b_;
  std::vector<size_t> rows_;
  perch::Oracle oracle_;
};

// Rows evenly spread and, of the others, those with the largest difference.
std::vector<size_t> Pair::choose_rows() const {
  const size_t count = call_.keys.size();
  std::vector<size_t> rows = spread(count, kSpreadRows);
  if (count <= kSpreadRows) return rows;
  const size_t columns = a_.all.size() / count;
  std::vector<double> difference(count, 0.0);
  for (size_t at = 0; at < a_.all.size(); ++at) {
    double& row = difference[at / columns];
    row = std::max(row, distance(a_.all[at], b_.all[at]));
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return difference[x] > difference[y]; });
  for (size_t i = 0; i < std::min(count, kDifferentRows) && difference[order[i]] > 0; ++i) {
    rows.push_back(order[i]);
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

bool Pair::identical() const {
  for (size_t i = 0; i < call_.keys.size(); ++i) {
    const auto a = a_.output.row(i);
    if (std::memcmp(a.data(), b_.output.row(i).data(), a.size()) != 0) return false;
  }
  return true;
}

void Pair::record_wrong(bool a_wrong, bool b_wrong) {
  for (const auto& [name, is_wrong] : {std::pair{"wrong_a", a_wrong}, {"wrong_b", b_wrong}}) {
    double& figure = context_.figures()[name];
    figure = std::max(figure, is_wrong ? 1.0 : 0.0);
  }
}

void Pair::compare_real() {
  const perch::LayerConfig& config = context_.config();
  const uint32_t flags_a = a_.context->answer().support.flags;
  const uint32_t flags_b = b_.context->answer().support.flags;
  const auto ab = perch::compare_rows(config, flags_a | flags_b, oracle_, a_.picked, b_.picked, 2);
  const auto a = perch::compare_rows(config, flags_a, oracle_, a_.picked, oracle_.value);
  const auto b = perch::compare_rows(config, flags_b, oracle_, b_.picked, oracle_.value);
  auto& figures = context_.figures();
  figures["a_b"] = ab.worst_ratio;
  figures["a_oracle"] = a.worst_ratio;
  figures["b_oracle"] = b.worst_ratio;
  figures["identical"] = identical() ? 1 : 0;
  record_wrong(!a.ok, !b.ok);
  if (ab.ok && a.ok && b.ok) {
    const bool zero = std::all_of(oracle_.value.begin(), oracle_.value.end(),
                                  [](double value) { return value == 0; });
    if (zero && oracle_.value.size() > 8) {
      throw Untrusted{fmt::format("all {} elements are 0", oracle_.value.size())};
    }
    return;
  }
  const perch::Agreement& worst = !ab.ok ? ab : !a.ok ? a : b;
  const auto at = static_cast<size_t>(worst.row * oracle_.columns + worst.column);
  throw Failed{context_.name_element(call_, row_of_call(worst.row), worst.column),
               print_side(a_.name, a_.picked[at], a.worst_ratio, a.worst_row_share) + "; " +
                   print_side(b_.name, b_.picked[at], b.worst_ratio, b.worst_row_share),
               fmt::format("{:.9g} by the oracle: {}", oracle_.value[at],
                           print_wrong(a_.name, !a.ok, b_.name, !b.ok))};
}

void Pair::compare_exact() {
  const auto a = perch::compare_exact(context_.config(), oracle_, a_.picked);
  const auto b = perch::compare_exact(context_.config(), oracle_, b_.picked);
  context_.figures()["exact_elements"] = static_cast<double>(a.compared);
  record_wrong(!a.ok, !b.ok);
  if (a.ok && b.ok) return;
  const perch::ExactAgreement& worst = a.ok ? b : a;
  const auto at = static_cast<size_t>(worst.row * oracle_.columns + worst.column);
  throw Failed{
      fmt::format("{} ({} and {} of {} exact elements differ)",
                  context_.name_element(call_, row_of_call(worst.row), worst.column), a.differing,
                  b.differing, a.compared),
      fmt::format("{} gives {:.9g}; {} gives {:.9g}", a_.name, a_.picked[at], b_.name,
                  b_.picked[at]),
      fmt::format("{:.9g} exactly: {}", worst.want, print_wrong(a_.name, !a.ok, b_.name, !b.ok))};
}

}  // namespace

std::string print_side(const std::string& side, double value, double worst_element,
                       double worst_row) {
  std::string text = fmt::format("{} gives {:.9g} (its worst element is {:.3g} of what is allowed",
                                 side, value, worst_element);
  if (worst_row > 1) text += fmt::format(", its worst row {:.3g}", worst_row);
  return text + ")";
}

std::string print_wrong(const std::string& a, bool a_wrong, const std::string& b, bool b_wrong) {
  if (a_wrong && b_wrong) return "both are wrong";
  if (a_wrong) return a + " is wrong";
  if (b_wrong) return b + " is wrong";
  return "each is within its own bound";
}

void check_diff(Context& a) {
  if (a.other() == nullptr) {
    throw Skipped{Skipped::Reason::kNotApplicable, "no other candidate"};
  }
  if (!a.other()->answer().yes()) {
    throw Skipped{Skipped::Reason::kUnsupported, a.other()->answer().print_reasons()};
  }
  Pair(a, Fill::kReal).compare_real();
  Pair(a, Fill::kExact).compare_exact();
}

}  // namespace perch_check
