// Matrices of any size in each way that formats store them, filled at random: what the tests of
// slices read, and the fuzzer.
#pragma once

#include <cstdint>
#include <vector>

#include "forged_projection.h"

namespace perch_unit {

struct StoredMatrix {
  const char* name;
  RawDtype dtype;
  Scheme scheme;
  // The weight's tensor for N and K, filled at random; a "turned" one is stored transposed.
  void (*build)(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned);
};

// Any numbers, always the same for one count.
template <typename T>
std::vector<T> random_of(int64_t count) {
  std::vector<T> out(static_cast<size_t>(count));
  auto state = static_cast<uint64_t>(count);
  for (T& value : out) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<T>(state >> 33 ^ state >> 11);
  }
  return out;
}

inline void add_weight(ProjectionRig& rig, const char* suffix, RawDtype dtype, int64_t rows,
                       int64_t columns, bool turned) {
  const int64_t bytes = rows * columns * perch::raw_dtype_bits(dtype) / 8;
  if (!turned) {
    rig.add(suffix, dtype, {rows, columns}, random_of<uint8_t>(bytes));
    return;
  }
  rig.add(suffix, dtype, {columns, rows}, random_of<uint8_t>(bytes)).turn(suffix);
}

inline void build_plain(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  add_weight(rig, "weight", dtype, n, k, turned);
  if (dtype == RawDtype::kF32 || dtype == RawDtype::kBF16) return;
  rig.add("weight_scale", RawDtype::kF32, {}, std::vector<float>{1});
  if (dtype == RawDtype::kF4) {
    rig.add("weight_scale", RawDtype::kF8E8M0, {n, k / 16}, random_of<uint8_t>(n * k / 16));
  }
}

inline void build_pairs(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  add_weight(rig, "weight_packed", dtype, n, k / 2, turned);
  rig.add("weight_scale", RawDtype::kU8, {n, k / 16}, random_of<uint8_t>(n * k / 16));
}

inline void build_blocks(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  const int64_t blocks = (k + 31) / 32;
  add_weight(rig, "blocks", dtype, n, blocks * 16, turned);
  rig.add("scales", RawDtype::kU8, {n, blocks}, random_of<uint8_t>(n * blocks));
}

template <int bits, bool dense>
void build_packed(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  const int64_t words = dense ? (k * bits + 31) / 32 : (k + 32 / bits - 1) / (32 / bits);
  add_weight(rig, "weight_packed", dtype, n, words, turned);
  rig.add("weight_scale", RawDtype::kF32, {n}, std::vector<float>(static_cast<size_t>(n), 1));
  rig.add("weight_shape", RawDtype::kI64, {2}, std::vector<int64_t>{n, k});
}

// 3 bits are whole words only for each 32 of K.
template <int bits>
void build_gptq(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool) {
  const int64_t columns = bits == 3 ? (k + 31) / 32 * 32 : k;
  rig.add("qweight", dtype, {columns * bits / 32, n}, random_of<uint32_t>(columns * bits / 32 * n));
  rig.add("scales", RawDtype::kF16, {1, n}, random_of<uint16_t>(n));
}

inline void build_awq(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool) {
  rig.add("qweight", dtype, {k, n / 8}, random_of<uint32_t>(k * n / 8));
  rig.add("scales", RawDtype::kF16, {1, n}, random_of<uint16_t>(n));
}

inline void build_modelopt(ProjectionRig& rig, int64_t n, int64_t k, RawDtype dtype, bool turned) {
  add_weight(rig, "weight", dtype, n / 2, k, turned);
  rig.add("weight_scale", RawDtype::kF32, {n, 1}, std::vector<float>(static_cast<size_t>(n), 1));
}

inline Scheme plain_floats() {
  Scheme scheme;
  scheme.act = perch::make_act_none();
  return scheme;
}

inline Scheme packed(int bits, const char* version) {
  Scheme scheme = quantized("compressed-tensors", bits, false, Strategy::kChannel);
  scheme.version = version;
  return scheme;
}

inline const StoredMatrix kStoredMatrices[] = {
    {"f32", RawDtype::kF32, plain_floats(), build_plain},
    {"bf16", RawDtype::kBF16, plain_floats(), build_plain},
    {"int8", RawDtype::kI8, quantized("modelopt", 8, false, Strategy::kTensor), build_plain},
    {"fp8", RawDtype::kF8E4M3, quantized("fp8", 8, true, Strategy::kTensor), build_plain},
    {"f4", RawDtype::kF4, quantized("modelopt", 4, true, Strategy::kGroup, 16), build_plain},
    {"fp4_pairs", RawDtype::kU8, quantized("modelopt", 4, true, Strategy::kGroup, 16), build_pairs},
    {"mxfp4_blocks", RawDtype::kU8, quantized("mxfp4", 4, true, Strategy::kGroup, 32),
     build_blocks},
    {"packed1", RawDtype::kI32, packed(1, "0.18.0"), build_packed<1, true>},
    {"packed2", RawDtype::kI32, packed(2, "0.18.0"), build_packed<2, true>},
    {"packed3", RawDtype::kI32, packed(3, "0.18.0"), build_packed<3, true>},
    {"packed3_by_word", RawDtype::kI32, packed(3, "0.17.1"), build_packed<3, false>},
    {"packed4", RawDtype::kI32, packed(4, "0.18.0"), build_packed<4, true>},
    {"packed5", RawDtype::kI32, packed(5, "0.18.0"), build_packed<5, true>},
    {"packed5_by_word", RawDtype::kI32, packed(5, "0.17.1"), build_packed<5, false>},
    {"packed6", RawDtype::kI32, packed(6, "0.18.0"), build_packed<6, true>},
    {"packed6_by_word", RawDtype::kI32, packed(6, "0.17.1"), build_packed<6, false>},
    {"packed7", RawDtype::kI32, packed(7, "0.18.0"), build_packed<7, true>},
    {"packed7_by_word", RawDtype::kI32, packed(7, "0.17.1"), build_packed<7, false>},
    {"packed8", RawDtype::kI32, packed(8, "0.18.0"), build_packed<8, true>},
    {"gptq2", RawDtype::kI32, quantized("gptq", 2, false, Strategy::kChannel), build_gptq<2>},
    {"gptq3", RawDtype::kI32, quantized("gptq", 3, false, Strategy::kChannel), build_gptq<3>},
    {"gptq4", RawDtype::kI32, quantized("gptq", 4, false, Strategy::kChannel), build_gptq<4>},
    {"gptq8", RawDtype::kI32, quantized("gptq", 8, false, Strategy::kChannel), build_gptq<8>},
    {"awq", RawDtype::kI32, quantized("awq", 4, false, Strategy::kChannel), build_awq},
    {"modelopt_int4", RawDtype::kU8, quantized("modelopt", 4, false, Strategy::kChannel),
     build_modelopt},
};

}  // namespace perch_unit
