// LayerConfig: an owned copy of perch_layer_config with everything it points to.
//
// The runtime's one struct for "what is this layer": made in step 3 (canonical/), read by steps
// 4-7. The ABI structs inside are the truth; pointers between them are set anew by every copy, so a
// LayerConfig may be moved about freely. Not a validator: that is base/config_rules.h.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perch/layer.h"

namespace perch {

// A perch_quant with its defaults set: `weight` with no scale, natural order, no extras.
perch_quant make_quant(uint32_t weight);
perch_act_quant make_act_none();
bool same_act(const perch_act_quant& a, const perch_act_quant& b);

class LayerConfig {
 public:
  LayerConfig() { relink(); }
  // Deep copy; absent activation quantization becomes an explicit NONE. `config` must be valid in
  // its pointers (base/config_rules.h checks that first).
  explicit LayerConfig(const perch_layer_config& config);
  LayerConfig(const LayerConfig& other) { copy_from(other); }
  LayerConfig& operator=(const LayerConfig& other) {
    if (this != &other) copy_from(other);
    return *this;
  }

  static LayerConfig make_linear(std::string name, int64_t out_features, int64_t in_features,
                                 const perch_quant& weight);
  // Sizes and activation are set on moe() by the caller.
  static LayerConfig make_moe(std::string name, const perch_quant& w13, const perch_quant& w2);

  // The ABI view. Valid until this object is changed, moved or destroyed.
  const perch_layer_config& abi() const { return layer_; }

  uint32_t kind() const { return layer_.kind; }
  bool is_moe() const { return layer_.kind == PERCH_KIND_MOE; }
  const std::string& name() const { return name_; }
  const std::vector<std::pair<std::string, std::string>>& options() const { return options_; }

  // Plain fields (dtypes, caps, device, max_tokens, flags) may be written through these; pointers
  // must not be.
  perch_layer_config& layer() { return layer_; }
  perch_moe_config& moe() { return moe_; }
  const perch_moe_config& moe() const { return moe_; }
  perch_linear_config& linear() { return linear_; }
  const perch_linear_config& linear() const { return linear_; }
  // w13 of a MoE layer, the weight of a linear one; likewise the input quantization.
  perch_quant& first() { return first_; }
  const perch_quant& first() const { return first_; }
  perch_act_quant& act_first() { return act_first_; }
  const perch_act_quant& act_first() const { return act_first_; }
  // w2, MoE only.
  perch_quant& second() { return second_; }
  const perch_quant& second() const { return second_; }
  perch_act_quant& act_second() { return act_second_; }
  const perch_act_quant& act_second() const { return act_second_; }

  void set_name(std::string name);
  // Sets or replaces one compute option.
  void set_option(const std::string& key, const std::string& value);

  // N and K of matrix 0 (w13 or w) and 1 (w2).
  int64_t rows(int matrix) const;
  int64_t columns(int matrix) const;

 private:
  void copy_from(const LayerConfig& other);
  void relink();

  std::string name_;
  std::vector<std::pair<std::string, std::string>> options_;
  std::vector<perch_kv> option_views_;
  perch_layer_config layer_{};
  perch_moe_config moe_{};
  perch_linear_config linear_{};
  perch_quant first_{}, second_{};
  perch_act_quant act_first_{}, act_second_{};
};

// Number of groups along K of a GROUP-scaled matrix (also of its zeros and offsets).
int64_t num_groups(const perch_quant& quant, int64_t k);

// How the scales of an [N,K] matrix in the natural order lie over it: rows x columns cells, each
// for group_n x group_k elements. One cell for TENSOR and NONE.
struct ScaleCells {
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t group_n = 1;
  int64_t group_k = 1;
};
ScaleCells scale_cells(const perch_quant& quant, int64_t n, int64_t k);

// One tensor that a config calls for, per expert; see backend.h for the list.
struct TensorSpec {
  std::string name;            // "w13.scale"
  uint32_t type;               // PERCH_TYPE_* of an element as it crosses; INT8 stands for uint8
  bool int32 = false;          // g_idx
  std::vector<int64_t> shape;  // of one expert
  int64_t bytes() const;
};

// Every tensor of one expert (or of the linear layer), in the order of backend.h.
std::vector<TensorSpec> tensor_specs(const LayerConfig& config);

// Bits of one code of a PERCH_TYPE_*.
int type_bits(uint32_t type);
const char* type_name(uint32_t type);  // "bf16", "int4", "e4m3"

}  // namespace perch
