// One small sound projection of each format, with the scheme that a configuration would give it:
// what the tests of refusals and of hostile files start from, and the fuzzer.
#pragma once

#include <vector>

#include "forged_projection.h"

namespace perch_unit {

inline ProjectionRig pack_rig() {
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kI32, {8, 2}, Words(16));
  rig.add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{8, 16});
  rig.add("weight_scale", RawDtype::kF16, {8, 2}, f16(std::vector<float>(16, 1)));
  return rig;
}
inline Scheme pack_scheme() {
  return quantized("compressed-tensors", 4, false, Strategy::kGroup, 8);
}

inline ProjectionRig gptq_rig() {
  ProjectionRig rig;
  rig.add("qweight", RawDtype::kI32, {2, 8}, Words(16));
  rig.add("qzeros", RawDtype::kI32, {2, 1}, Words(2, 0x88888888));
  rig.add("scales", RawDtype::kF16, {2, 8}, f16(std::vector<float>(16, 1)));
  return rig;
}
inline Scheme gptq_scheme() { return quantized("gptq", 4, false, Strategy::kGroup, 8); }

inline ProjectionRig awq_rig() {
  ProjectionRig rig;
  rig.add("qweight", RawDtype::kI32, {16, 1}, Words(16));
  rig.add("qzeros", RawDtype::kI32, {2, 1}, Words(2, 0x88888888));
  rig.add("scales", RawDtype::kF16, {2, 8}, f16(std::vector<float>(16, 1)));
  return rig;
}
inline Scheme awq_scheme() { return quantized("awq", 4, false, Strategy::kGroup, 8); }

inline ProjectionRig nvfp4_rig() {
  ProjectionRig rig;
  rig.add("weight_packed", RawDtype::kU8, {2, 8}, std::vector<uint8_t>(16));
  rig.add("weight_scale", RawDtype::kF8E4M3, {2, 1}, std::vector<uint8_t>(2, 0x38));
  rig.add("weight_global_scale", RawDtype::kF32, {1}, std::vector<float>{1});
  rig.add("input_global_scale", RawDtype::kF32, {1}, std::vector<float>{1});
  return rig;
}
inline Scheme nvfp4_scheme() {
  Scheme scheme = quantized("compressed-tensors", 4, true, Strategy::kGroup, 16);
  scheme.act = static_act(PERCH_TYPE_E2M1);
  return scheme;
}

inline ProjectionRig fp8_rig() {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kF8E4M3, {4, 4}, std::vector<uint8_t>(16));
  rig.add("weight_scale", RawDtype::kF32, {1}, std::vector<float>{1});
  rig.add("input_scale", RawDtype::kF32, {1}, std::vector<float>{1});
  return rig;
}
inline Scheme fp8_scheme() {
  Scheme scheme = quantized("fp8", 8, true, Strategy::kTensor);
  scheme.act = static_act(PERCH_TYPE_E4M3FN);
  return scheme;
}

inline ProjectionRig int8_rig() {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kI8, {4, 4}, std::vector<uint8_t>(16));
  rig.add("weight_scale", RawDtype::kF32, {4, 2}, std::vector<float>(8, 1));
  rig.add("weight_zero_point", RawDtype::kI8, {4, 2}, std::vector<uint8_t>(8));
  return rig;
}
inline Scheme int8_scheme() {
  Scheme scheme = quantized("compressed-tensors", 8, false, Strategy::kGroup, 2);
  scheme.symmetric = false;
  return scheme;
}

inline ProjectionRig int4_rig() {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kU8, {2, 4}, std::vector<uint8_t>(8));
  rig.add("weight_scale", RawDtype::kF32, {4, 2}, std::vector<float>(8, 1));
  rig.add("pre_quant_scale", RawDtype::kF32, {4}, std::vector<float>(4, 1));
  return rig;
}
inline Scheme int4_scheme() { return quantized("modelopt", 4, false, Strategy::kGroup, 2); }

inline ProjectionRig blocks_rig() {
  ProjectionRig rig;
  rig.add("blocks", RawDtype::kU8, {2, 1, 16}, std::vector<uint8_t>(32));
  rig.add("scales", RawDtype::kU8, {2, 1}, std::vector<uint8_t>(2, 127));
  return rig;
}
inline Scheme blocks_scheme() { return quantized("mxfp4", 4, true, Strategy::kGroup, 32); }

inline ProjectionRig float_rig() {
  ProjectionRig rig;
  rig.add("weight", RawDtype::kF16, {2, 4}, std::vector<uint16_t>(8));
  rig.add("bias", RawDtype::kF32, {2}, std::vector<float>(2));
  return rig;
}

struct SoundProjection {
  ProjectionRig (*rig)();
  Scheme (*scheme)();
};
inline constexpr SoundProjection kSoundProjections[] = {
    {pack_rig, pack_scheme},   {gptq_rig, gptq_scheme},     {awq_rig, awq_scheme},
    {nvfp4_rig, nvfp4_scheme}, {fp8_rig, fp8_scheme},       {int8_rig, int8_scheme},
    {int4_rig, int4_scheme},   {blocks_rig, blocks_scheme}, {float_rig, unstated}};

}  // namespace perch_unit
