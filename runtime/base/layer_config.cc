#include "base/layer_config.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "numeric/decode.h"

namespace perch {

perch_quant make_quant(uint32_t weight) {
  perch_quant quant{};
  quant.struct_size = sizeof(quant);
  quant.weight = weight;
  quant.scale_kind = PERCH_SCALE_NONE;
  quant.scale_dtype = PERCH_TYPE_NONE;
  quant.scale2_kind = PERCH_SCALE2_NONE;
  const bool integer = weight >= PERCH_TYPE_INT1 && weight <= PERCH_TYPE_INT8;
  quant.zero_kind = integer ? PERCH_ZERO_MIDPOINT : PERCH_ZERO_NONE;
  quant.offset_kind = PERCH_OFFSET_NONE;
  quant.k_order = PERCH_K_NATURAL;
  return quant;
}

perch_act_quant make_act_none() {
  perch_act_quant act{};
  act.struct_size = sizeof(act);
  act.dtype = PERCH_TYPE_NONE;
  act.mode = PERCH_ACT_NONE;
  act.scale_dtype = PERCH_TYPE_NONE;
  return act;
}

bool same_act(const perch_act_quant& a, const perch_act_quant& b) {
  return a.dtype == b.dtype && a.mode == b.mode && a.group == b.group &&
         a.scale_dtype == b.scale_dtype;
}

namespace {
// A caller's struct as one of ours: of these headers' size, which its own may not be, and without
// the extensions, which need not outlive the call. Those that count have been refused (R7).
template <typename T>
T own_copy(const T& given) {
  T copy{};
  std::memcpy(&copy, &given, std::min<std::size_t>(given.struct_size, sizeof(T)));
  copy.struct_size = sizeof(T);
  copy.next = nullptr;
  return copy;
}
perch_act_quant copy_act(const perch_act_quant* act) {
  return act == nullptr ? make_act_none() : own_copy(*act);
}
}  // namespace

LayerConfig::LayerConfig(const perch_layer_config& config) : layer_(own_copy(config)) {
  name_ = config.name == nullptr ? "" : config.name;
  for (uint32_t i = 0; i < config.num_options; ++i) {
    options_.emplace_back(config.options[i].key, config.options[i].value);
  }
  if (config.kind == PERCH_KIND_MOE) {
    moe_ = own_copy(*config.moe);
    first_ = own_copy(*moe_.w13);
    second_ = own_copy(*moe_.w2);
    act_first_ = copy_act(moe_.act13);
    act_second_ = copy_act(moe_.act2);
  } else {
    linear_ = own_copy(*config.linear);
    first_ = own_copy(*linear_.weight);
    act_first_ = copy_act(linear_.act);
  }
  relink();
}

LayerConfig LayerConfig::make_linear(std::string name, int64_t out_features, int64_t in_features,
                                     const perch_quant& weight) {
  LayerConfig config;
  config.layer_.kind = PERCH_KIND_LINEAR;
  config.linear_.struct_size = sizeof(perch_linear_config);
  config.linear_.out_features = out_features;
  config.linear_.in_features = in_features;
  config.first_ = weight;
  config.act_first_ = make_act_none();
  config.set_name(std::move(name));
  return config;
}

LayerConfig LayerConfig::make_moe(std::string name, const perch_quant& w13, const perch_quant& w2) {
  LayerConfig config;
  config.layer_.kind = PERCH_KIND_MOE;
  config.moe_.struct_size = sizeof(perch_moe_config);
  config.moe_.form = PERCH_FORM_STANDARD;
  config.first_ = w13;
  config.second_ = w2;
  config.act_first_ = make_act_none();
  config.act_second_ = make_act_none();
  config.set_name(std::move(name));
  return config;
}

void LayerConfig::copy_from(const LayerConfig& other) {
  name_ = other.name_;
  options_ = other.options_;
  layer_ = other.layer_;
  moe_ = other.moe_;
  linear_ = other.linear_;
  first_ = other.first_;
  second_ = other.second_;
  act_first_ = other.act_first_;
  act_second_ = other.act_second_;
  relink();
}

void LayerConfig::relink() {
  layer_.struct_size = sizeof(layer_);
  if (layer_.kind == 0) {
    layer_.device = {kDLCPU, 0};
    layer_.in_dtype = PERCH_TYPE_BF16;
    layer_.out_dtype = PERCH_TYPE_BF16;
    layer_.max_tokens = 1;
  }
  option_views_.clear();
  for (const auto& [key, value] : options_) option_views_.push_back({key.c_str(), value.c_str()});
  layer_.name = name_.c_str();
  layer_.options = option_views_.empty() ? nullptr : option_views_.data();
  layer_.num_options = static_cast<uint32_t>(option_views_.size());
  moe_.w13 = &first_;
  moe_.w2 = &second_;
  moe_.act13 = &act_first_;
  moe_.act2 = &act_second_;
  linear_.weight = &first_;
  linear_.act = &act_first_;
  layer_.moe = is_moe() ? &moe_ : nullptr;
  layer_.linear = layer_.kind == PERCH_KIND_LINEAR ? &linear_ : nullptr;
}

void LayerConfig::set_name(std::string name) {
  name_ = std::move(name);
  relink();
}

void LayerConfig::set_option(const std::string& key, const std::string& value) {
  const auto same_key = [&](const auto& option) { return option.first == key; };
  const auto found = std::find_if(options_.begin(), options_.end(), same_key);
  if (found != options_.end()) {
    found->second = value;
  } else {
    options_.emplace_back(key, value);
  }
  relink();
}

int64_t LayerConfig::rows(int matrix) const {
  if (!is_moe()) return linear_.out_features;
  return matrix == 0 ? perch_gate_up_width(moe_.activation, moe_.intermediate) : moe_.hidden;
}

int64_t LayerConfig::columns(int matrix) const {
  if (!is_moe()) return linear_.in_features;
  return matrix == 0 ? moe_.hidden : moe_.intermediate;
}

int64_t num_groups(const perch_quant& quant, int64_t k) {
  if (quant.num_groups != 0) return quant.num_groups;
  return quant.group_k == 0 ? 1 : ceil_div(k, quant.group_k);
}

ScaleCells scale_cells(const perch_quant& quant, int64_t n, int64_t k) {
  switch (quant.scale_kind) {
    case PERCH_SCALE_CHANNEL:
      return {n, 1, 1, k};
    case PERCH_SCALE_GROUP:
      return {n, ceil_div(k, quant.group_k), 1, quant.group_k};
    case PERCH_SCALE_BLOCK:
      return {ceil_div(n, quant.group_n), ceil_div(k, quant.group_k), quant.group_n, quant.group_k};
    default:
      return {1, 1, n, k};
  }
}

int type_bits(uint32_t type) { return numeric::code_bits(type); }

const char* type_name(uint32_t type) {
  static constexpr const char* kNames[] = {
      "invalid", "none", "f32",  "f16",  "bf16", "int1", "int2", "int3", "int4", "int5",
      "int6",    "int7", "int8", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "lut4", "e8m0"};
  return type <= PERCH_TYPE_E8M0 ? kNames[type] : "unknown";
}

int64_t TensorSpec::bytes() const {
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  const int width = int32 ? 4 : std::max(1, type_bits(type) / 8);
  return numel * width;
}

namespace {

// The tensors of one matrix, appended to `specs`.
void append_matrix_specs(const std::string& name, const perch_quant& quant,
                         const perch_act_quant& act, std::pair<int64_t, int64_t> size,
                         bool gated_rows, std::vector<TensorSpec>* specs) {
  const auto [n, k] = size;
  const int64_t groups = num_groups(quant, k);
  const auto add = [&](const char* suffix, uint32_t type, std::vector<int64_t> shape) {
    specs->push_back({name + suffix, type, false, std::move(shape)});
  };
  const int bits = type_bits(quant.weight);
  if (bits <= 8) {
    add("", PERCH_TYPE_INT8, {n, ceil_div(k * bits, 8)});
  } else {
    add("", quant.weight, {n, k});
  }
  const uint32_t scale_type =
      type_bits(quant.scale_dtype) == 8 ? PERCH_TYPE_INT8 : quant.scale_dtype;
  if (quant.scale_kind == PERCH_SCALE_TENSOR) add(".scale", scale_type, {1});
  if (quant.scale_kind == PERCH_SCALE_CHANNEL) add(".scale", scale_type, {n});
  if (quant.scale_kind == PERCH_SCALE_GROUP) add(".scale", scale_type, {n, groups});
  if (quant.scale_kind == PERCH_SCALE_BLOCK) {
    add(".scale", scale_type, {ceil_div(n, quant.group_n), ceil_div(k, quant.group_k)});
  }
  if (quant.scale2_kind == PERCH_SCALE2_TENSOR) add(".scale2", PERCH_TYPE_F32, {1});
  if (quant.scale2_kind == PERCH_SCALE2_CHANNEL) add(".scale2", PERCH_TYPE_F32, {n});
  if (quant.zero_kind == PERCH_ZERO_INT) add(".zero", PERCH_TYPE_INT8, {n, groups});
  if (quant.zero_kind == PERCH_ZERO_FLOAT) add(".zero", PERCH_TYPE_F32, {n, groups});
  if (quant.offset_kind == PERCH_OFFSET_GROUP) add(".offset", PERCH_TYPE_F32, {n, groups});
  if (quant.weight == PERCH_TYPE_LUT4) add(".lut", PERCH_TYPE_F32, {16});
  if (quant.k_order == PERCH_K_G_IDX) {
    specs->push_back({name + ".g_idx", PERCH_TYPE_NONE, true, {gated_rows ? 2 : 1, k}});
  }
  if (quant.flags & PERCH_QUANT_HAS_BIAS) add(".bias", PERCH_TYPE_F32, {n});
  if (quant.flags & PERCH_QUANT_HAS_PRE_SCALE) add(".pre_scale", PERCH_TYPE_F32, {k});
  if (act.mode == PERCH_ACT_STATIC || act.mode == PERCH_ACT_STATIC_GROUP) {
    add(".input_scale", PERCH_TYPE_F32, {1});
  }
}

}  // namespace

std::vector<TensorSpec> tensor_specs(const LayerConfig& config) {
  std::vector<TensorSpec> specs;
  if (!config.is_moe()) {
    append_matrix_specs("w", config.first(), config.act_first(),
                        {config.rows(0), config.columns(0)}, false, &specs);
    return specs;
  }
  const bool gated = perch_activation_is_gated(config.moe().activation) != 0;
  append_matrix_specs("w13", config.first(), config.act_first(),
                      {config.rows(0), config.columns(0)}, gated, &specs);
  append_matrix_specs("w2", config.second(), config.act_second(),
                      {config.rows(1), config.columns(1)}, false, &specs);
  return specs;
}

}  // namespace perch
