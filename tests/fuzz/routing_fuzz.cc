// Routing from a stranger, through the host API into every backend: ids, weights, maps, counts and
// offsets. A call is refused exactly when contract and config say so, and has then written nothing;
// one that runs has written its rows and no others. Every tensor lies in a block of its own size.
//
// Input: form of the call, tokens, what is wrong with it, then the values in the order of forge().
#include <cmath>
#include <perch/perch.hpp>
#include <string>

#include "../backends/random_layer.h"
#include "fuzz.h"

namespace perch::fuzz {
namespace {

constexpr int64_t kHidden = 24;
constexpr int64_t kTokensMax = 7;
constexpr float kWeightMax = 1e6F;  // no sum overflows below it

// ---- The layers --------------------------------------------------------------------------------

enum Form : size_t { kStandard, kParallel, kBatched, kGrouped, kForms };
constexpr const char* kUses[] = {"use: [reference]", "use: [humming-cpu]",
                                 "use: [humming-cpu], require: [batch_invariant]"};

LayerConfig config_of(size_t form) {
  LayerConfig config =
      LayerConfig::make_moe("fuzzed", make_quant(PERCH_TYPE_BF16), make_quant(PERCH_TYPE_BF16));
  config.layer().in_dtype = config.layer().out_dtype = PERCH_TYPE_F32;
  config.layer().max_tokens = 8;
  perch_moe_config& moe = config.moe();
  moe.num_experts = form == kParallel ? 2 : 3;
  moe.num_experts_global = form == kParallel ? 5 : 3;
  moe.topk = form == kParallel ? 3 : 2;
  moe.hidden = kHidden;
  moe.intermediate = 20;
  moe.activation = PERCH_ACTIVATION_SILU;
  moe.form = form == kBatched   ? PERCH_FORM_BATCHED
             : form == kGrouped ? PERCH_FORM_GROUPED
                                : PERCH_FORM_STANDARD;
  return config;
}

perch_runtime* make_runtime(const char* use) {
  const std::string yaml =
      std::string("version: 1\nselect:\n  rules:\n    - {match: {}, ") + use + "}\n";
  perch_runtime_opts opts{};
  opts.struct_size = sizeof(opts);
  opts.num_threads = 1;
  opts.config_text = yaml.c_str();
  opts.log = [](void*, int32_t, const char*, const char*) {};
  return perch_host::make_runtime(&opts).release();
}

perch_layer* make_layer(perch_runtime* runtime, const LayerConfig& config) {
  perch_layer_builder* builder = nullptr;
  perch_host::check(perch_layer_begin, runtime, &config.abi(),
                    static_cast<const perch_stream*>(nullptr), &builder);
  for (uint32_t e = 0; e < config.moe().num_experts; ++e) {
    const test::TensorMap tensors = test::random_tensors(config, e + 1);
    const std::vector<perch_named_tensor> named = test::BackendHarness::name_tensors(tensors);
    perch_host::check(perch_layer_put, builder, static_cast<int32_t>(e), named.data(),
                      static_cast<uint32_t>(named.size()));
  }
  perch_layer* layer = nullptr;
  perch_host::check(perch_layer_end, builder, &layer);
  return layer;
}

// One layer per form and backend, for the life of the process.
const std::vector<perch_layer*>& layers_of(size_t form) {
  // Not destroyed, as its layers are not: so they never look like leaks.
  static const auto* all = [] {
    auto* made = new std::vector<std::vector<perch_layer*>>(kForms);
    for (const char* use : kUses) {
      perch_runtime* runtime = make_runtime(use);
      for (size_t f = 0; f < kForms; ++f) (*made)[f].push_back(make_layer(runtime, config_of(f)));
    }
    return made;
  }();
  return (*all)[form];
}

// ---- A call ------------------------------------------------------------------------------------

// A tensor whose elements and dims lie in blocks of exactly their size.
class Block {
 public:
  Block(DLDataType dtype, const std::vector<int64_t>& shape)
      : shape_(exact_copy(std::span<const int64_t>(shape))) {
    for (const int64_t dim : shape) count_ *= dim;
    bytes_.resize(static_cast<size_t>(count_) * dtype.bits / 8, 0xFF);
    memory_ = exact_copy(Bytes(bytes_));
    tensor_.device = {kDLCPU, 0};
    tensor_.ndim = static_cast<int32_t>(shape.size());
    tensor_.dtype = dtype;
    tensor_.shape = shape_.get();
    tensor_.data = bytes_.empty() ? nullptr : memory_.get();
  }
  template <typename T>
  void set(int64_t index, T value) {
    std::memcpy(memory_.get() + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
  }
  float at(int64_t index) const {
    float value = 0;
    std::memcpy(&value, memory_.get() + static_cast<size_t>(index) * sizeof(value), sizeof(value));
    return value;
  }
  bool untouched(int64_t from, int64_t to) const {
    const uint8_t* first = memory_.get();
    return std::all_of(first + from * 4, first + to * 4, [](uint8_t b) { return b == 0xFF; });
  }
  int64_t count() const { return count_; }
  const DLTensor* dl() const { return &tensor_; }

 private:
  int64_t count_ = 1;
  std::vector<uint8_t> bytes_;
  std::unique_ptr<int64_t[]> shape_;
  std::unique_ptr<uint8_t[]> memory_;
  DLTensor tensor_{};
};

constexpr DLDataType kF32 = {kDLFloat, 32, 1};
DLDataType integer(bool wide) { return {kDLInt, static_cast<uint8_t>(wide ? 64 : 32), 1}; }

enum Fault : uint8_t { kNone, kNullTensor, kLongerTensor, kWrongType, kOtherForm, kShortWorkspace };

// Integers as they cross, as values, and whether their tensor is the one that is spoiled.
struct Integers {
  std::vector<int64_t> values;
  std::vector<int64_t> shape;
  bool wide = false;
};

struct Call {
  size_t form = kStandard;
  int64_t tokens = 0;
  uint8_t fault = kNone;
  uint8_t faulty = 0;  // which routing tensor it is
  Integers first;      // ids, counts or offsets
  Integers map;        // kParallel
  std::vector<float> weights;
};

Integers take_integers(Reader& in, std::vector<int64_t> shape, bool wide) {
  Integers integers;
  integers.wide = wide;
  integers.shape = std::move(shape);
  int64_t count = 1;
  for (const int64_t dim : integers.shape) count *= dim;
  for (int64_t i = 0; i < count; ++i) {
    // Small ones by a byte, so that most are in range; 127 announces any.
    int64_t value = in.take<int8_t>();
    if (value == 127) value = wide ? in.take<int64_t>() : in.take<int32_t>();
    integers.values.push_back(value);
  }
  return integers;
}

Call forge(Bytes bytes) {
  Reader in(bytes);
  Call call;
  const auto choice = in.take<uint8_t>();
  call.form = choice % kForms;
  const bool wide = (choice & 64u) != 0;
  call.tokens = in.take<uint8_t>() % (kTokensMax + 1);
  call.fault = in.take<uint8_t>() % 16;  // most numbers are no fault
  call.faulty = in.take<uint8_t>();
  const LayerConfig config = config_of(call.form);
  const perch_moe_config& moe = config.moe();
  if (call.form == kBatched) {
    call.first = take_integers(in, {moe.num_experts}, wide);
  } else if (call.form == kGrouped) {
    call.first = take_integers(in, {int64_t{moe.num_experts} + 1}, true);
  } else {
    call.first = take_integers(in, {call.tokens, moe.topk}, wide);
    if (call.form == kParallel) call.map = take_integers(in, {moe.num_experts_global}, false);
    for (int64_t i = 0; i < call.tokens * moe.topk; ++i) {
      const auto weight = in.take<uint8_t>();
      call.weights.push_back(weight == 255 ? in.take<float>() : static_cast<float>(weight) / 64);
    }
  }
  return call;
}

// ---- What must come of it ----------------------------------------------------------------------

bool values_are_good(const Call& call) {
  const LayerConfig config = config_of(call.form);
  const perch_moe_config& moe = config.moe();
  const auto within = [](const std::vector<int64_t>& values, int64_t low, int64_t high) {
    return std::all_of(values.begin(), values.end(),
                       [&](int64_t value) { return value >= low && value <= high; });
  };
  if (call.form == kBatched) return within(call.first.values, 0, call.tokens);
  if (call.form == kGrouped) {
    return call.first.values[0] == 0 && within(call.first.values, 0, call.tokens) &&
           std::is_sorted(call.first.values.begin(), call.first.values.end());
  }
  return within(call.first.values, INT64_MIN, int64_t{moe.num_experts_global} - 1) &&
         within(call.map.values, -1, int64_t{moe.num_experts} - 1);
}

bool has_local_expert(const Call& call, int64_t slot) {
  const int64_t id = call.first.values[static_cast<size_t>(slot)];
  return id >= 0 && (call.form != kParallel || call.map.values[static_cast<size_t>(id)] >= 0);
}

void check_row(const Block& y, int64_t row, bool zero) {
  for (int64_t i = row * kHidden; i < (row + 1) * kHidden; ++i) {
    PERCH_FUZZ_CHECK(std::isfinite(y.at(i)));
    PERCH_FUZZ_CHECK(!zero || y.at(i) == 0);
  }
}

void check_output(const Call& call, const Block& y) {
  if (call.form == kBatched) {
    const auto experts = static_cast<int64_t>(call.first.values.size());
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t begin = e * call.tokens;
      const int64_t rows = call.first.values[static_cast<size_t>(e)];
      for (int64_t t = 0; t < rows; ++t) check_row(y, begin + t, false);
      PERCH_FUZZ_CHECK(y.untouched((begin + rows) * kHidden, (begin + call.tokens) * kHidden));
    }
    return;
  }
  if (call.form == kGrouped) {
    for (int64_t row = 0; row < call.first.values.back(); ++row) check_row(y, row, false);
    return;
  }
  const int64_t topk = call.first.shape[1];
  for (int64_t t = 0; t < call.tokens; ++t) {
    bool any = false;
    bool tame = true;
    for (int64_t slot = t * topk; slot < (t + 1) * topk; ++slot) {
      any |= has_local_expert(call, slot);
      // A weight of a slot without an expert is not read.
      const float weight = call.weights[static_cast<size_t>(slot)];
      tame &= !has_local_expert(call, slot) || std::fabs(weight) <= kWeightMax;
    }
    if (tame) check_row(y, t, !any);
  }
}

// ---- Running it --------------------------------------------------------------------------------

Block block_of(const Integers& integers, const Call& call, bool faulty) {
  std::vector<int64_t> shape = integers.shape;
  if (faulty && call.fault == kLongerTensor) ++shape.back();
  const bool wrong = faulty && call.fault == kWrongType;
  Block block(wrong ? DLDataType{kDLUInt, 8, 1} : integer(integers.wide), shape);
  if (wrong || shape != integers.shape) return block;
  for (size_t i = 0; i < integers.values.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (integers.wide) {
      block.set<int64_t>(index, integers.values[i]);
    } else {
      block.set<int32_t>(index, static_cast<int32_t>(integers.values[i]));
    }
  }
  return block;
}

perch_status execute(perch_layer* layer, const Call& call, perch_exec_args args) {
  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = config_of(call.form).moe().form;
  shape.num_tokens = call.tokens;
  perch_workspace_req request{};
  request.struct_size = sizeof(request);
  perch_host::check(perch_layer_workspace, layer, &shape, &request);
  const size_t bytes = request.bytes - (call.fault == kShortWorkspace && request.bytes > 0 ? 1 : 0);
  void* memory = nullptr;
  const size_t align = std::max<size_t>(request.align, sizeof(void*));
  PERCH_FUZZ_CHECK(posix_memalign(&memory, align, std::max<size_t>(bytes, 1)) == 0);
  const std::unique_ptr<void, void (*)(void*)> owned(memory, std::free);
  std::memset(memory, 0xFF, bytes);
  args.workspace = bytes == 0 ? nullptr : memory;
  args.workspace_bytes = bytes;
  const perch_status status = perch_layer_execute(layer, &args, nullptr);
  if (call.fault != kShortWorkspace || request.bytes == 0) return status;
  PERCH_FUZZ_CHECK(status != PERCH_OK);
  return PERCH_E_INVALID_ARGUMENT;
}

void run_on(perch_layer* layer, const Call& call) {
  const bool standard = call.form == kStandard || call.form == kParallel;
  const int faulty = call.faulty % (call.form == kParallel ? 3 : standard ? 2 : 1);
  const Block first = block_of(call.first, call, faulty == 0);
  Block weights(faulty == 1 && call.fault == kWrongType ? integer(false) : kF32,
                standard ? call.first.shape : std::vector<int64_t>{0});
  for (size_t i = 0; i < call.weights.size(); ++i) {
    weights.set<float>(static_cast<int64_t>(i), call.weights[i]);
  }
  const Block map = block_of(call.map, call, faulty == 2);
  std::vector<int64_t> rows = {call.tokens, kHidden};
  if (call.form == kBatched) rows.insert(rows.begin(), call.first.shape[0]);
  Block x(kF32, rows);
  for (int64_t i = 0; i < x.count(); ++i) x.set<float>(i, static_cast<float>(i % 17 - 8) / 8);
  const Block y(kF32, rows);

  perch_exec_args args{};
  args.struct_size = sizeof(args);
  args.x = x.dl();
  args.y = y.dl();
  args.topk_ids = standard ? first.dl() : nullptr;
  args.topk_weights = standard ? weights.dl() : nullptr;
  args.expert_map = call.form == kParallel ? map.dl() : nullptr;
  args.expert_counts = call.form == kBatched ? first.dl() : nullptr;
  args.expert_offsets = call.form == kGrouped ? first.dl() : nullptr;
  const DLTensor** by_number[] = {standard                ? &args.topk_ids
                                  : call.form == kBatched ? &args.expert_counts
                                                          : &args.expert_offsets,
                                  &args.topk_weights, &args.expert_map};
  if (call.fault == kNullTensor) *by_number[faulty] = nullptr;
  if (call.fault == kOtherForm) (standard ? args.expert_counts : args.topk_ids) = first.dl();

  // Longer weights are not made: a block of ids tells the same.
  const bool spoiled = call.fault == kNullTensor || call.fault == kWrongType ||
                       call.fault == kOtherForm || (call.fault == kLongerTensor && faulty != 1);
  const perch_status status = execute(layer, call, args);
  if (status != PERCH_OK) {
    PERCH_FUZZ_CHECK(status == PERCH_E_INVALID_ARGUMENT);
    PERCH_FUZZ_CHECK(spoiled || call.fault == kShortWorkspace || !values_are_good(call));
    PERCH_FUZZ_CHECK(y.untouched(0, y.count()));
    return;
  }
  PERCH_FUZZ_CHECK(!spoiled && values_are_good(call));
  accept();
  check_output(call, y);
}

bool repeats_an_expert(const Call& call) {
  const std::vector<int64_t>& ids = call.first.values;
  for (size_t i = 0; i + 2 < ids.size(); i += 3) {
    if (ids[i] == ids[i + 1] && has_local_expert(call, static_cast<int64_t>(i))) return true;
  }
  return false;
}

void fuzz_routing(Bytes bytes) {
  const Call call = forge(bytes);
  for (perch_layer* layer : layers_of(call.form)) run_on(layer, call);
  PERCH_FUZZ_BUG(call.form == kParallel && call.tokens > 2 && values_are_good(call) &&
                 repeats_an_expert(call));
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TARGET(routing, perch::fuzz::fuzz_routing);
