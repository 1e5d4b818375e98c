// Edits of a scheme from bytes, for format_forge.h.
#pragma once

#include <string>

#include "../unit/forged_projection.h"
#include "fuzz.h"

namespace perch::fuzz {

class SchemeEdit {
 public:
  // `dim`: a number that fits the projection, or any.
  SchemeEdit(Reader* in, Scheme* scheme, int64_t dim) : in_(in), scheme_(scheme), dim_(dim) {}

  void make() {
    Scheme& scheme = *scheme_;
    constexpr Strategy kStrategies[] = {Strategy::kUnstated, Strategy::kTensor, Strategy::kChannel,
                                        Strategy::kGroup, Strategy::kBlock};
    switch (in_->take<uint8_t>() % 16) {
      case 0:
        scheme = perch_unit::unstated();
        break;
      case 1:
        scheme.quantized = coin();
        break;
      case 2:
        scheme.method = pick(kMethods);
        break;
      case 3:
        scheme.format = pick(kFormats);
        break;
      case 4:
        scheme.version = pick(kVersions);
        break;
      case 5:
        scheme.version = std::string(text_of(in_->take_bytes(in_->take<uint8_t>() % 16)));
        break;
      case 6:
        scheme.bits = dim();
        break;
      case 7:
        scheme.is_float = coin();
        break;
      case 8:
        scheme.symmetric = coin();
        break;
      case 9:
      case 10:
        scheme.strategy = pick(kStrategies);
        scheme.group = scheme.strategy == Strategy::kGroup ? dim() : 0;
        scheme.block_n = scheme.strategy == Strategy::kBlock ? dim() : 0;
        scheme.block_k = scheme.strategy == Strategy::kBlock ? dim() : 0;
        break;
      case 11:
        scheme.group = dim();
        break;
      case 12:
        scheme.act_order = coin();
        break;
      case 13:
        scheme.zeros_less_one = coin();
        break;
      default:
        edit_act();
    }
  }

 private:
  static constexpr const char* kMethods[] = {
      "", "compressed-tensors", "modelopt", "fp8", "gptq", "awq", "mxfp4"};
  static constexpr const char* kFormats[] = {"",     "pack-quantized", "gemm",
                                             "gptq", "gptq_v2",        "gptq_p"};
  static constexpr const char* kVersions[] = {"",       "0.17.1", "0.17.2",
                                              "0.18.0", "1.0",    "0.17.1.a20260612"};

  template <typename T, size_t count>
  T pick(const T (&values)[count]) {
    return values[in_->take<uint8_t>() % count];
  }
  bool coin() { return in_->take<uint8_t>() % 2 != 0; }
  // That number, and small ones after it.
  int64_t dim() { return std::exchange(dim_, in_->take<uint8_t>()); }

  void edit_act() {
    perch_act_quant act = make_act_none();
    switch (in_->take<uint8_t>() % 4) {
      case 0:
        break;
      case 1:
        act = perch_unit::static_act(PERCH_TYPE_E4M3FN);
        break;
      case 2:
        act = perch_unit::static_act(PERCH_TYPE_E2M1);
        break;
      default:
        act.mode = PERCH_ACT_TOKEN;
        act.dtype = PERCH_TYPE_INT8;
        act.scale_dtype = PERCH_TYPE_F32;
    }
    scheme_->act = act;
  }

  Reader* in_;
  Scheme* scheme_;
  int64_t dim_;
};

}  // namespace perch::fuzz
