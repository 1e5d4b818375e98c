// The rules of a layer's config: structs of any size with any fields, chains and options. What is
// refused is refused by perch_select too; what passes can be counted, and every backend asked.
//
// Input: one byte for the config to start from, then patches of it (see forge()).
#include <perch/runtime.h>

#include <string>

#include "base/config_rules.h"
#include "base/layer_config.h"
#include "fuzz.h"

namespace perch::fuzz {
namespace {

constexpr size_t kSizeMax = 64 * 1024;  // beyond it no struct is read
constexpr size_t kExtensionsMax = 70;   // longer than any chain that is taken

// Structs as they lie in a caller's memory, which has as many bytes as struct_size says, and none
// but that number where it says garbage.
struct Forged {
  perch_layer_config layer{};
  perch_moe_config moe{};
  perch_linear_config linear{};
  perch_quant quants[2] = {};
  perch_act_quant acts[2] = {};
  uint32_t null_pointers = 0;  // by Pointer
  uint8_t tail = 0;            // the bytes of newer fields
  std::vector<perch_ext> chain;
  bool loop = false;
  uint8_t chain_owner = 0;  // by Pointer
  std::vector<std::pair<std::string, std::string>> options;
  std::vector<std::unique_ptr<uint8_t[]>> memory;
};
enum Pointer : uint32_t { kLayer, kMoe, kLinear, kQuant0, kQuant1, kAct0, kAct1, kName, kOptions };

template <typename T>
T* place(Forged& forged, Pointer which, const T& value) {
  if ((forged.null_pointers >> which & 1u) != 0) return nullptr;
  const bool garbage = value.struct_size > kSizeMax;
  const size_t size = std::max<size_t>(sizeof(uint32_t), garbage ? 0 : value.struct_size);
  forged.memory.push_back(std::make_unique<uint8_t[]>(size));
  uint8_t* bytes = forged.memory.back().get();
  std::memset(bytes, forged.tail, size);
  std::memcpy(bytes, &value, std::min(size, sizeof(T)));
  return reinterpret_cast<T*>(bytes);
}

// The chain of extensions, in blocks of their own. The bytes behind a wrong struct_size are not
// there.
const perch_ext* place_chain(Forged& forged, Pointer owner) {
  if (forged.chain.empty() || forged.chain_owner % (kAct1 + 1) != owner) return nullptr;
  std::vector<perch_ext*> placed;
  for (const perch_ext& ext : forged.chain) {
    const bool readable = ext.struct_size >= sizeof(ext) && ext.struct_size <= kSizeMax;
    const size_t size = readable ? sizeof(ext) : sizeof(uint32_t);
    forged.memory.push_back(std::make_unique<uint8_t[]>(size));
    std::memcpy(forged.memory.back().get(), &ext, size);
    placed.push_back(reinterpret_cast<perch_ext*>(forged.memory.back().get()));
    if (!readable) break;
  }
  const bool ends_early =
      placed.back()->struct_size < sizeof(perch_ext) || placed.back()->struct_size > kSizeMax;
  for (size_t i = 0; i + 1 < placed.size(); ++i) placed[i]->next = placed[i + 1];
  if (!ends_early) placed.back()->next = forged.loop ? placed[0] : nullptr;
  return placed[0];
}

LayerConfig start_from(uint8_t choice) {
  const auto quant_of = [](uint32_t weight, uint32_t scale_dtype) {
    perch_quant quant = make_quant(weight);
    quant.scale_kind = PERCH_SCALE_GROUP;
    quant.scale_dtype = scale_dtype;
    quant.group_k = 32;
    return quant;
  };
  const perch_quant bf16 = make_quant(PERCH_TYPE_BF16);
  if (choice % 4 == 0) return LayerConfig::make_linear("", 64, 64, bf16);
  if (choice % 4 == 1) {
    LayerConfig config =
        LayerConfig::make_linear("fc", 48, 96, quant_of(PERCH_TYPE_E2M1, PERCH_TYPE_E8M0));
    config.act_first().dtype = PERCH_TYPE_INT8;
    config.act_first().mode = PERCH_ACT_TOKEN;
    config.act_first().scale_dtype = PERCH_TYPE_F32;
    return config;
  }
  const perch_quant quant = choice % 4 == 2 ? bf16 : quant_of(PERCH_TYPE_INT4, PERCH_TYPE_F16);
  LayerConfig config = LayerConfig::make_moe("moe", quant, quant);
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = 4;
  moe.topk = 2;
  moe.hidden = moe.intermediate = 64;
  moe.activation = PERCH_ACTIVATION_SILU;
  return config;
}

// Overwrites one word: of 4 bytes, or of 8 to reach sizes.
template <typename T>
void patch(T& value, Reader& in) {
  const auto at = in.take<uint8_t>();
  const size_t offset = (at & 63u) % (sizeof(T) / 4) * 4;
  const bool wide = (at & 64u) != 0 && offset + 8 <= sizeof(T);
  const int64_t word = in.take_size();
  std::memcpy(reinterpret_cast<uint8_t*>(&value) + offset, &word, wide ? 8 : 4);
}

void take_extensions(Forged& forged, Reader& in) {
  const int64_t size = in.take_size();
  const perch_ext ext = {size == 0 ? uint32_t{sizeof(perch_ext)} : static_cast<uint32_t>(size),
                         static_cast<uint32_t>(in.take_size()), in.take<uint8_t>(),
                         in.take<uint8_t>(), nullptr};
  const size_t times = in.take<uint8_t>() % kExtensionsMax + 1;
  for (size_t i = 0; i < times && forged.chain.size() < kExtensionsMax; ++i) {
    forged.chain.push_back(ext);
  }
}

void take_patch(Forged& forged, Reader& in) {
  switch (in.take<uint8_t>() % 13) {
    case 0:
      return patch(forged.layer, in);
    case 1:
      return patch(forged.moe, in);
    case 2:
      return patch(forged.linear, in);
    case 3:
      return patch(forged.quants[0], in);
    case 4:
      return patch(forged.quants[1], in);
    case 5:
      return patch(forged.acts[0], in);
    case 6:
      return patch(forged.acts[1], in);
    case 7:
      forged.null_pointers ^= uint32_t{1} << (in.take<uint8_t>() % 32);
      return;
    case 8:
      forged.tail = in.take<uint8_t>();
      return;
    case 9:
      return take_extensions(forged, in);
    case 10:
      forged.loop = true;
      return;
    case 11:
      forged.chain_owner = in.take<uint8_t>();
      return;
    default: {
      std::string key(text_of(in.take_bytes(in.take<uint8_t>() % 16)));
      forged.options.emplace_back(std::move(key), text_of(in.take_bytes(in.take<uint8_t>() % 16)));
    }
  }
}

Forged forge(Bytes bytes) {
  Reader in(bytes);
  const LayerConfig start = start_from(in.take<uint8_t>());
  Forged forged;
  forged.layer = start.abi();
  forged.moe = start.moe();
  forged.linear = start.linear();
  forged.quants[0] = start.first();
  forged.quants[1] = start.second();
  forged.acts[0] = start.act_first();
  forged.acts[1] = start.act_second();
  // Not the kind that was chosen: there only if patched in.
  forged.null_pointers = 1u << (start.is_moe() ? kLinear : kMoe);
  for (int i = 0; i < 64 && !in.empty(); ++i) take_patch(forged, in);
  return forged;
}

// Sets the pointers, which no patch may forge, and gives the whole its memory.
const perch_layer_config* link(Forged& forged, std::vector<perch_kv>* views) {
  for (uint32_t i = 0; i < 2; ++i) {
    forged.quants[i].next = place_chain(forged, static_cast<Pointer>(kQuant0 + i));
    forged.acts[i].next = place_chain(forged, static_cast<Pointer>(kAct0 + i));
  }
  forged.moe.w13 = place(forged, kQuant0, forged.quants[0]);
  forged.moe.w2 = place(forged, kQuant1, forged.quants[1]);
  forged.moe.act13 = place(forged, kAct0, forged.acts[0]);
  forged.moe.act2 = place(forged, kAct1, forged.acts[1]);
  forged.moe.next = place_chain(forged, kMoe);
  forged.linear.weight = forged.moe.w13;
  forged.linear.act = forged.moe.act13;
  forged.linear.next = place_chain(forged, kLinear);
  perch_layer_config& layer = forged.layer;
  layer.moe = place(forged, kMoe, forged.moe);
  layer.linear = place(forged, kLinear, forged.linear);
  layer.next = place_chain(forged, kLayer);
  layer.name = (forged.null_pointers >> kName & 1u) != 0 ? nullptr : "fuzzed";
  for (const auto& [key, value] : forged.options) {
    views->push_back({key.c_str(), value.c_str()});
  }
  const bool no_options = (forged.null_pointers >> kOptions & 1u) != 0 || views->empty();
  layer.options = no_options ? nullptr : views->data();
  // A number that was patched in stays only where no option may be read for it.
  const bool counted = layer.options != nullptr && layer.num_options <= 1024;
  if (counted) layer.num_options = static_cast<uint32_t>(views->size());
  return place(forged, kLayer, forged.layer);
}

perch_runtime* shared_runtime() {
  static perch_runtime* runtime = [] {
    perch_runtime_opts opts{};
    opts.struct_size = sizeof(opts);
    opts.num_threads = 1;
    opts.config_text = "version: 1\n";
    opts.log = [](void*, int32_t, const char*, const char*) {};
    perch_runtime* made = nullptr;
    PERCH_FUZZ_CHECK(perch_runtime_create(&opts, &made, nullptr) == PERCH_OK);
    return made;
  }();
  return runtime;
}

perch_status select(const perch_layer_config* config) {
  std::vector<char> json(1 << 16);
  uint64_t needed = 0;
  return perch_select(shared_runtime(), config, json.data(), json.size(), &needed, nullptr);
}

void fuzz_layer_config(Bytes bytes) {
  Forged forged = forge(bytes);
  std::vector<perch_kv> views;
  const perch_layer_config* config = link(forged, &views);
  if (config == nullptr) {
    PERCH_FUZZ_CHECK(select(nullptr) == PERCH_E_INVALID_ARGUMENT);
    return;
  }
  const std::vector<RuleBreach> breaches = check_layer_config(*config);
  const perch_status selected = select(config);
  if (!breaches.empty()) {
    PERCH_FUZZ_CHECK(selected == breaches.front().code && selected != PERCH_OK);
    PERCH_FUZZ_CHECK(!breach_status(breaches).ok());
    return;
  }
  accept();
  PERCH_FUZZ_CHECK(selected == PERCH_OK || selected == PERCH_E_BUFFER_TOO_SMALL);
  const LayerConfig copy(*config);
  // An owned copy: of our sizes, and nothing of the caller's hangs on it.
  PERCH_FUZZ_CHECK(copy.first().struct_size == sizeof(perch_quant));
  PERCH_FUZZ_CHECK(copy.abi().next == nullptr && copy.first().next == nullptr);
  for (const TensorSpec& spec : tensor_specs(copy)) PERCH_FUZZ_CHECK(spec.bytes() >= 0);
  PERCH_FUZZ_BUG(forged.chain.size() > 5 && !copy.is_moe());
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TARGET(layer_config, perch::fuzz::fuzz_layer_config);
