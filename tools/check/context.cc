// Context: what the checks share - the case, the candidate, calls of it and comparisons.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "check/check.h"
#include "numeric/decode.h"

namespace perch_check {
namespace {

namespace numeric = perch::numeric;

constexpr size_t kOracleRows = 16;

// The rows that BATCHED needs room for: one more than the keys, which stays unwritten.
perch::Case with_room(perch::Case problem) {
  problem.config.layer().max_tokens = problem.t + 1;
  return problem;
}

// The experts that row i of a call goes to.
std::vector<perch::OracleVisit> visits_of(const perch::LayerConfig& config, const CallData& call,
                                          size_t i) {
  std::vector<perch::OracleVisit> visits;
  if (!config.is_moe()) return visits;
  const perch_moe_config& moe = config.moe();
  if (moe.form != PERCH_FORM_STANDARD) return {{call.expert[i], 1.0F}};
  for (size_t slot = i * moe.topk; slot < (i + 1) * moe.topk; ++slot) {
    const int64_t id = call.ids[slot];
    if (id < 0) continue;
    const int64_t local = call.expert_map.empty() ? id : call.expert_map[static_cast<size_t>(id)];
    if (local >= 0) visits.push_back({local, call.weights[slot]});
  }
  return visits;
}

perch::OracleRow oracle_row(const perch::LayerConfig& config, const CallData& call, size_t i) {
  perch::OracleRow row;
  const uint32_t type = config.abi().in_dtype;
  for (int64_t k = 0; k < call.columns; ++k) {
    row.x.push_back(numeric::load_float(type, call.x.data(), call.place[i] * call.columns + k));
  }
  row.visits = visits_of(config, call, i);
  return row;
}

}  // namespace

const char* skip_name(Skipped::Reason reason) {
  switch (reason) {
    case Skipped::Reason::kNotPromised:
      return "NOT_PROMISED";
    case Skipped::Reason::kNotOffered:
      return "NOT_OFFERED";
    case Skipped::Reason::kNotApplicable:
      return "NOT_APPLICABLE";
    case Skipped::Reason::kNotExact:
      return "NOT_EXACT";
    case Skipped::Reason::kNoHeapWatch:
      return "NO_HEAP_WATCH";
    case Skipped::Reason::kUnsupported:
      return "UNSUPPORTED";
  }
  return "UNKNOWN";
}

Context::Context(const perch::Case& problem, std::string library, uint32_t variant)
    : problem_(with_room(problem)),
      library_(std::move(library)),
      api_(open_table(library_)),
      variant_(variant),
      asking_(std::make_unique<Instance>(api_, HostOptions{})),
      answer_(asking_->query(problem_.config.abi(), variant)) {}

std::unique_ptr<Setup> Context::setup(const HostOptions& host, PrepareOptions prepare) const {
  if (prepare.seed == 0) prepare.seed = problem_.seed;
  auto setup = std::make_unique<Setup>(api_, host);
  setup->layer = std::make_unique<Prepared>(setup->instance, config(), variant_, prepare);
  if (!setup->layer->reply().ok()) {
    throw Failed{"prepare", setup->layer->reply().print(), "PERCH_OK: query_support said yes"};
  }
  return setup;
}

const Prepared& Context::layer() {
  if (setup_ == nullptr) setup_ = setup();
  return *setup_->layer;
}

Instance& Context::instance() {
  layer();
  return setup_->instance;
}

CallData Context::own_call(Fill fill) const {
  std::vector<RowKey> keys(static_cast<size_t>(tokens()));
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<RowKey>(i);
  CallData call = make_call(problem_, keys, fill, problem_.load);
  if (call.ids.empty()) return call;
  const size_t topk = config().moe().topk;
  if (keys.size() >= 3) call.ids[2 * topk + topk - 1] = -1;
  if (keys.size() >= 4) {
    std::fill_n(call.ids.begin() + static_cast<std::ptrdiff_t>(3 * topk), topk, int64_t{-7});
  }
  if (keys.size() >= 5 && topk >= 2) call.ids[4 * topk + 1] = call.ids[4 * topk];
  return call;
}

Output Context::run(const Prepared& layer, const CallData& call, CallOptions options) const {
  options.ids64 = problem_.ids64;
  options.strided = options.strided || (problem_.strided && promises(PERCH_CAP_ROW_STRIDED_ACT));
  Output output = execute(layer, call, options);
  if (!output.reply.ok()) {
    throw Failed{fmt::format("execute of {} rows", call.keys.size()), output.reply.print(),
                 "PERCH_OK: query_support said yes"};
  }
  if (!output.damage.empty()) throw Failed{"memory", output.damage, "untouched"};
  const std::string complaint = layer.instance().host().complaint();
  if (!complaint.empty()) throw Failed{"a host callback", complaint, "the rules of backend.h"};
  return output;
}

perch::Oracle Context::oracle(const CallData& call, Fill fill, const std::vector<size_t>& picked,
                              PrepareOptions weights) const {
  if (weights.seed == 0) weights.seed = problem_.seed;
  std::vector<perch::OracleRow> rows;
  rows.reserve(picked.size());
  for (const size_t i : picked) rows.push_back(oracle_row(config(), call, i));
  std::vector<CaseTensor> held;
  const perch::ReadTensors read = [&](int64_t expert, std::vector<perch::NamedData>* tensors) {
    const bool other = expert == weights.other_expert;
    held = make_expert(config(), expert, other ? weights.other_seed : weights.seed, fill);
    tensors->clear();
    for (const CaseTensor& tensor : held) {
      tensors->push_back({tensor.spec.name, tensor.data.data()});
    }
    return perch::Status();
  };
  auto oracle = perch::evaluate_rows(config(), read, rows);
  if (!oracle.ok()) throw std::runtime_error("oracle: " + oracle.status().message());
  return std::move(oracle.value());
}

perch::Agreement Context::expect_numbers(const CallData& call, const Output& output, Fill fill,
                                         const PrepareOptions& weights) const {
  const std::vector<size_t> picked = spread(call.keys.size(), kOracleRows);
  const perch::Oracle expected = oracle(call, fill, picked, weights);
  const std::vector<double> all = output_values(config(), output);
  std::vector<double> got;
  for (const size_t i : picked) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i) * expected.columns;
    got.insert(got.end(), begin, begin + expected.columns);
  }
  perch::Agreement agreement =
      perch::compare_rows(config(), answer_.support.flags, expected, got, expected.value);
  if (!picked.empty()) {
    agreement.row = static_cast<int64_t>(picked[static_cast<size_t>(agreement.row)]);
  }
  if (agreement.ok) return agreement;
  throw Failed{name_element(call, agreement.row, agreement.column),
               fmt::format("{:.9g} ({:.3g} times what is allowed; the row's share is {:.3g})",
                           agreement.got, agreement.worst_ratio, agreement.worst_row_share),
               fmt::format("{:.9g} +- {:.3g}", agreement.want, agreement.allowed)};
}

std::string Context::name_element(const CallData& call, int64_t row, int64_t column) const {
  std::string where = fmt::format("row {}, column {}", row, column);
  const auto visits = visits_of(config(), call, static_cast<size_t>(row));
  for (size_t i = 0; i < visits.size(); ++i) {
    where += fmt::format("{} {}", i == 0 ? ", experts" : "", visits[i].expert);
  }
  return where;
}

void expect_same_row(const Context& context, const std::string& where,
                     std::span<const std::byte> got, std::span<const std::byte> want) {
  if (got.size() == want.size() && std::memcmp(got.data(), want.data(), got.size()) == 0) return;
  const auto at = static_cast<int64_t>(
      std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first - got.begin());
  const uint32_t type = context.config().abi().out_dtype;
  const int64_t column = at / float_bytes(type);
  const auto bytes = static_cast<size_t>(float_bytes(type));
  const auto show = [&](std::span<const std::byte> row) {
    std::string hex;
    for (size_t i = bytes; i-- > 0;) {
      hex += fmt::format("{:02x}",
                         static_cast<unsigned>(row[static_cast<size_t>(column) * bytes + i]));
    }
    return fmt::format("{:.9g} (0x{})", numeric::load_float(type, row.data(), column), hex);
  };
  throw Failed{fmt::format("{}, column {}", where, column), show(got), show(want)};
}

void expect_same_rows(const Context& context, const std::string& where, const Output& got,
                      const Output& want) {
  for (size_t i = 0; i < want.place.size(); ++i) {
    expect_same_row(context, fmt::format("{}: row {}", where, i), got.row(i), want.row(i));
  }
}

std::vector<size_t> spread(size_t count, size_t most) {
  std::vector<size_t> picked;
  const size_t taken = std::min(count, most);
  for (size_t i = 0; i < taken; ++i) {
    picked.push_back(taken == 1 ? 0 : i * (count - 1) / (taken - 1));
  }
  return picked;
}

}  // namespace perch_check
