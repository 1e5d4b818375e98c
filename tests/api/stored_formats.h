// Every format that the runtime reads, as a writer: all_formats().
#pragma once

#include <cmath>

#include "stored_matrix.h"

namespace perch::test {

using nlohmann::json;

inline json compressed(const std::string& format, json weights, json input = nullptr) {
  json group = {{"targets", {"Linear"}}, {"weights", std::move(weights)}};
  if (!input.is_null()) group["input_activations"] = std::move(input);
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"version", "0.18.0"},
          {"config_groups", {{"group_0", std::move(group)}}}};
}

inline json int_weights(int bits, const std::string& strategy, int group = 0,
                        bool symmetric = true) {
  json weights = {
      {"num_bits", bits}, {"type", "int"}, {"symmetric", symmetric}, {"strategy", strategy}};
  if (group > 0) weights["group_size"] = group;
  return weights;
}

inline json float_weights(int bits, const std::string& strategy, int group = 0) {
  json weights = {
      {"num_bits", bits}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}};
  if (group > 0) weights["group_size"] = group;
  return weights;
}

inline std::vector<int> plus(std::vector<int> codes, int offset) {
  for (int& code : codes) code += offset;
  return codes;
}

inline StoredMatrix finish(const SmallMatrix& m, std::vector<StoredPart> parts) {
  return {m.n, m.k, m.values(), std::move(parts)};
}

// ---- compressed-tensors
// ---------------------------------------------------------------------------
inline StoredFormat pack_quantized(int bits, int group, bool zeros, bool dense) {
  StoredFormat format;
  format.name = "ct int" + std::to_string(bits) +
                (group > 0 ? " g" + std::to_string(group) : " c") + (zeros ? " zero" : "") +
                (dense ? "" : " floor");
  format.quantization = compressed(
      "pack-quantized", int_weights(bits, group > 0 ? "group" : "channel", group, !zeros));
  if (!dense) format.quantization["version"] = "0.17.1";
  format.store = [=](int64_t n, int64_t k, std::mt19937* rng) {
    const SmallMatrix m = small_matrix(n, k, 1, group > 0 ? group : k, rng, zeros);
    const int middle = 1 << (bits - 1);
    std::vector<StoredPart> parts = {
        word_part("weight_packed", plus(m.codes, middle), n, k, bits, dense ? 0 : 32 / bits),
        float_part("weight_scale", "BF16", {n, m.cells_k()}, m.scales)};
    if (zeros) {
      const std::vector<int> by_group = turned_codes(plus(m.zeros, middle), n, m.cells_k());
      StoredPart packed = word_part("weight_zero_point", by_group, m.cells_k(), n, bits);
      // Packed along N, with a column for each group.
      const int64_t words = packed.shape[1];
      StoredPart zero{"weight_zero_point", "I32", {words, m.cells_k()}, {}, 0};
      for (int64_t w = 0; w < words; ++w) {
        for (int64_t g = 0; g < m.cells_k(); ++g) {
          const auto at = packed.bytes.begin() + (g * words + w) * 4;
          zero.bytes.insert(zero.bytes.end(), at, at + 4);
        }
      }
      parts.push_back(std::move(zero));
    }
    StoredPart shape{"weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{n, k}), -1};
    parts.push_back(std::move(shape));
    return finish(m, std::move(parts));
  };
  format.fusable = false;
  return format;
}

inline std::vector<uint8_t> int8_bytes(const std::vector<int>& codes) {
  std::vector<uint8_t> bytes;
  for (const int code : codes) bytes.push_back(static_cast<uint8_t>(static_cast<int8_t>(code)));
  return bytes;
}

inline StoredFormat int8_channel(const std::string& name, json quantization, bool own_file,
                                 bool column) {
  StoredFormat format;
  format.name = name;
  format.quantization = std::move(quantization);
  format.in_own_file = own_file;
  format.store = [=](int64_t n, int64_t k, std::mt19937* rng) {
    const SmallMatrix m = small_matrix(n, k, 1, k, rng);
    const std::vector<int64_t> shape =
        column ? std::vector<int64_t>{n, 1} : std::vector<int64_t>{n};
    std::vector<StoredPart> parts = {
        {"weight", "I8", {n, k}, int8_bytes(m.codes), 0},
        float_part("weight_scale", column ? "BF16" : "F32", shape, m.scales)};
    if (!column) parts.push_back(scalar_part("input_scale", 1.0F));
    return finish(m, std::move(parts));
  };
  return format;
}

// FP8 with scales by tensor (0 x 0), channel (1 x 0), group (1 x g) or block. The scale array is
// [cells_n, cells_k], or flat where it has one value or, `flat`, one per row.
struct Fp8Storage {
  std::string scale = "weight_scale";
  std::string scale_dtype = "F32";
  int64_t group_n = 0, group_k = 0;
  bool flat = false;
  float input_scale = 0;  // 0: none
};

inline StoredFormat fp8(const std::string& name, json quantization, bool own_file,
                        const Fp8Storage& storage) {
  StoredFormat format;
  format.name = name;
  format.quantization = std::move(quantization);
  format.in_own_file = own_file;
  format.store = [=](int64_t n, int64_t k, std::mt19937* rng) {
    const SmallMatrix m = small_matrix(n, k, storage.group_n == 0 ? n : storage.group_n,
                                       storage.group_k == 0 ? k : storage.group_k, rng);
    std::vector<uint8_t> codes;
    for (const int code : m.codes) codes.push_back(e4m3_code(static_cast<float>(code)));
    const bool one = m.scales.size() == 1;
    std::vector<int64_t> shape = {static_cast<int64_t>(m.scales.size()) / m.cells_k(), m.cells_k()};
    if (one && storage.group_n == 0) shape = {};
    if (storage.flat) shape = {n};
    std::vector<StoredPart> parts = {
        {"weight", "F8_E4M3", {n, k}, std::move(codes), 0},
        float_part(storage.scale, storage.scale_dtype, shape, m.scales, shape.empty() ? -1 : 0)};
    if (storage.input_scale > 0) parts.push_back(scalar_part("input_scale", storage.input_scale));
    return finish(m, std::move(parts));
  };
  return format;
}

// FP4 in pairs with scales by group. second: the name of the matrix' second scale, 2 as it is
// multiplied; `divides` where the file has its reciprocal.
struct Fp4Storage {
  std::string weight = "weight_packed";
  std::string weight_dtype = "U8";
  std::string scale = "weight_scale";
  std::string scale_dtype = "U8";
  int64_t group = 32;
  std::string second;
  bool divides = false;
  std::string input;  // the name of a static input scale
};

inline StoredFormat fp4(const std::string& name, json quantization, bool own_file,
                        const Fp4Storage& storage) {
  StoredFormat format;
  format.name = name;
  format.quantization = std::move(quantization);
  format.in_own_file = own_file;
  format.store = [=](int64_t n, int64_t k, std::mt19937* rng) {
    SmallMatrix m = small_matrix(n, k, 1, storage.group, rng);
    std::vector<uint8_t> codes;
    for (const int code : m.codes) codes.push_back(e2m1_code(static_cast<float>(code)));
    std::vector<StoredPart> parts = {
        pair_part(storage.weight, storage.weight_dtype, codes, n, k),
        float_part(storage.scale, storage.scale_dtype, {n, m.cells_k()}, m.scales)};
    StoredMatrix result = finish(m, {});
    if (!storage.second.empty()) {
      const float second = (*rng)() % 2 == 0 ? 0.5F : 1.0F;  // gate and up differ now and then
      parts.push_back(
          scalar_part(storage.second, storage.divides ? 1.0F / second : second,
                      storage.divides ? std::vector<int64_t>{1} : std::vector<int64_t>{}));
      for (float& value : result.values) value *= second;
    }
    if (!storage.input.empty()) parts.push_back(scalar_part(storage.input, 1.0F));
    result.parts = std::move(parts);
    return result;
  };
  return format;
}

// ---- GPTQ, AWQ, modelopt int4
// -----------------------------------------------------------------------
inline StoredFormat gptq(int bits, int group, bool v2, bool act_order) {
  StoredFormat format;
  format.name =
      "gptq int" + std::to_string(bits) + (v2 ? " v2" : " v1") + (act_order ? " act-order" : "");
  format.fusable = false;
  format.quantization = {{"quant_method", "gptq"}, {"bits", bits},
                         {"group_size", group},    {"desc_act", act_order},
                         {"sym", false},           {"checkpoint_format", v2 ? "gptq_v2" : "gptq"}};
  format.store = [=](int64_t n, int64_t k, std::mt19937* rng) {
    const SmallMatrix m = small_matrix(n, k, 1, group, rng, true);
    const int middle = 1 << (bits - 1);
    // Under an act-order the columns of the sorted matrix are dealt out over the file.
    std::vector<int64_t> place(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) place[static_cast<size_t>(i)] = act_order ? (i * 5 + 3) % k : i;
    StoredMatrix result{n, k, std::vector<float>(static_cast<size_t>(n * k)), {}};
    const std::vector<float> sorted = m.values();
    std::vector<int> codes(static_cast<size_t>(k * n));  // [k,n]
    std::vector<int32_t> g_idx(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = place[static_cast<size_t>(i)];
      g_idx[static_cast<size_t>(at)] = static_cast<int32_t>(i / group);
      for (int64_t row = 0; row < n; ++row) {
        codes[static_cast<size_t>(at * n + row)] = m.code(row, i) + middle;
        result.values[static_cast<size_t>(row * k + at)] = sorted[static_cast<size_t>(row * k + i)];
      }
    }
    // Words run down the columns: turned, packed along K, and turned back.
    const StoredPart by_row = word_part("", turned_codes(codes, k, n), n, k, bits);
    const int64_t words = by_row.shape[1];
    StoredPart qweight{"qweight", "I32", {words, n}, {}, 1};
    for (int64_t w = 0; w < words; ++w) {
      for (int64_t row = 0; row < n; ++row) {
        const auto at = by_row.bytes.begin() + (row * words + w) * 4;
        qweight.bytes.insert(qweight.bytes.end(), at, at + 4);
      }
    }
    const int64_t groups = m.cells_k();
    std::vector<float> scales(m.scales.size());
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t g = 0; g < groups; ++g) {
        scales[static_cast<size_t>(g * n + row)] = m.scales[static_cast<size_t>(row * groups + g)];
      }
    }
    StoredPart zeros = word_part(
        "qzeros", turned_codes(plus(m.zeros, middle - (v2 ? 0 : 1)), n, groups), groups, n, bits);
    zeros.rows_axis = 1;
    result.parts = {std::move(qweight),
                    std::move(zeros),
                    float_part("scales", "F16", {groups, n}, scales, 1),
                    {"g_idx", "I32", {k}, bytes_of(g_idx), -1}};
    return result;
  };
  return format;
}

inline StoredFormat awq(int group) {
  StoredFormat format;
  format.name = "awq gemm";
  format.fusable = false;
  format.quantization = {{"quant_method", "awq"},
                         {"bits", 4},
                         {"group_size", group},
                         {"zero_point", true},
                         {"version", "gemm"}};
  format.store = [=](int64_t n, int64_t k, std::mt19937* rng) {
    const SmallMatrix m = small_matrix(n, k, 1, group, rng, true);
    static const int kNibble[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const auto pack = [&](const std::vector<int>& codes, int64_t rows) {  // [rows,n]
      std::vector<uint8_t> bytes(static_cast<size_t>(rows * n / 2), 0);
      for (int64_t i = 0; i < rows * n; ++i) {
        put_bits(&bytes, i / 8 * 32 + kNibble[i % 8] * 4, 4,
                 static_cast<uint32_t>(codes[static_cast<size_t>(i)]));
      }
      return bytes;
    };
    const int64_t groups = m.cells_k();
    std::vector<float> scales;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t row = 0; row < n; ++row) {
        scales.push_back(m.scales[static_cast<size_t>(row * groups + g)]);
      }
    }
    return finish(m,
                  {{"qweight", "I32", {k, n / 8}, pack(turned_codes(plus(m.codes, 8), n, k), k), 1},
                   {"qzeros",
                    "I32",
                    {groups, n / 8},
                    pack(turned_codes(plus(m.zeros, 8), n, groups), groups),
                    1},
                   float_part("scales", "F16", {groups, n}, scales, 1)});
  };
  return format;
}

// Two rows of signed nibbles per byte, and an input that is scaled first.
inline StoredFormat modelopt_int4(int group) {
  StoredFormat format;
  format.name = "modelopt int4 awq";
  format.fusable = false;
  format.in_own_file = true;
  format.quantization = {{"quant_algo", "W4A16_AWQ"},
                         {"group_size", group},
                         {"has_zero_point", false},
                         {"pre_quant_scale", true}};
  format.store = [=](int64_t n, int64_t k, std::mt19937* rng) {
    const SmallMatrix m = small_matrix(n, k, 1, group, rng);
    StoredPart weight{"weight", "U8", {n / 2, k}, {}, 0};
    for (int64_t row = 0; row < n; row += 2) {
      for (int64_t column = 0; column < k; ++column) {
        weight.bytes.push_back(
            static_cast<uint8_t>((m.code(row, column) & 15) | (m.code(row + 1, column) & 15) << 4));
      }
    }
    StoredMatrix result = finish(
        m, {std::move(weight), float_part("weight_scale", "BF16", {n, m.cells_k()}, m.scales)});
    std::vector<float> pre(static_cast<size_t>(k));
    for (int64_t column = 0; column < k; ++column) {
      pre[static_cast<size_t>(column)] = column % 3 == 0 ? 2.0F : 1.0F;
    }
    result.parts.push_back(float_part("pre_quant_scale", "BF16", {k}, pre, -1));
    return result;
  };
  return format;
}

// gpt-oss: blocks of 32 codes with a scale each, of all experts together.
inline StoredFormat mxfp4_blocks() {
  StoredFormat format;
  format.name = "mxfp4 blocks";
  format.quantization = {{"quant_method", "mxfp4"}};
  format.store = [](int64_t n, int64_t k, std::mt19937* rng) {
    const SmallMatrix m = small_matrix(n, k, 1, 32, rng);
    std::vector<uint8_t> codes;
    for (const int code : m.codes) codes.push_back(e2m1_code(static_cast<float>(code)));
    StoredPart blocks = pair_part("blocks", "U8", codes, n, k);
    blocks.shape = {n, k / 32, 16};
    return finish(m, {std::move(blocks), float_part("scales", "U8", {n, m.cells_k()}, m.scales)});
  };
  return format;
}

inline StoredFormat plain_bf16() {
  StoredFormat format;
  format.name = "bf16";
  format.store = [](int64_t n, int64_t k, std::mt19937* rng) {
    const SmallMatrix m = small_matrix(n, k, n, k, rng);
    return finish(m, {float_part("weight", "BF16", {n, k}, m.values())});
  };
  return format;
}

inline std::vector<StoredFormat> all_formats() {
  const json token = {{"num_bits", 8}, {"type", "int"}, {"dynamic", true}, {"strategy", "token"}};
  const json fp8_token = {
      {"num_bits", 8}, {"type", "float"}, {"dynamic", true}, {"strategy", "token"}};
  json blocks = float_weights(8, "block");
  blocks["block_structure"] = {32, 32};
  std::vector<StoredFormat> formats = {plain_bf16()};
  for (int bits = 2; bits <= 8; ++bits) formats.push_back(pack_quantized(bits, 32, false, true));
  for (const int bits : {3, 5, 6, 7}) formats.push_back(pack_quantized(bits, 32, false, false));
  formats.push_back(pack_quantized(4, 16, true, true));
  formats.push_back(pack_quantized(4, 0, false, true));
  const auto add = [&](StoredFormat format) { formats.push_back(std::move(format)); };
  add(int8_channel("ct int8 W8A8", compressed("int-quantized", int_weights(8, "channel"), token),
                   false, true));
  add(int8_channel("modelopt int8", {{"quant_algo", "W8A8_SQ_PER_CHANNEL"}}, true, false));
  add(fp8("ct fp8 dynamic", compressed("float-quantized", float_weights(8, "channel"), fp8_token),
          false, {"weight_scale", "BF16", 1, 0, false, 0}));
  add(fp8("ct fp8 block", compressed("float-quantized", blocks), false,
          {"weight_scale", "F32", 32, 32, false, 0}));
  add(fp8("ct mxfp8", compressed("mxfp8-quantized", float_weights(8, "group", 32)), false,
          {"weight_scale", "U8", 1, 32, false, 0}));
  add(fp8("modelopt fp8", {{"quant_algo", "FP8"}}, true, {"weight_scale", "F32", 0, 0, false, 1}));
  add(fp8("modelopt fp8 channel", {{"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}}, true,
          {"weight_scale", "F32", 1, 0, true, 0}));
  add(fp8("modelopt mxfp8", {{"quant_algo", "MXFP8"}}, true,
          {"weight_scale", "U8", 1, 32, false, 0}));
  const json fp8_config = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  json fp8_blocks = fp8_config;
  fp8_blocks["weight_block_size"] = {32, 32};
  add(fp8("fp8 block", fp8_blocks, false, {"weight_scale_inv", "F32", 32, 32, false, 0}));
  add(fp8("fp8 tensor", fp8_config, false, {"weight_scale", "F32", 0, 0, false, 0}));
  add(fp4("ct nvfp4a16", compressed("nvfp4-pack-quantized", float_weights(4, "tensor_group", 16)),
          false,
          {"weight_packed", "U8", "weight_scale", "F8_E4M3", 16, "weight_global_scale", true, ""}));
  add(fp4("ct mxfp4a16", compressed("mxfp4-pack-quantized", float_weights(4, "group", 32)), false,
          {}));
  add(fp4("modelopt nvfp4", {{"quant_algo", "NVFP4"}, {"group_size", 16}}, true,
          {"weight", "U8", "weight_scale", "F8_E4M3", 16, "weight_scale_2", false, "input_scale"}));
  add(fp4("modelopt w4a16 nvfp4", {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}}, true,
          {"weight", "U8", "weight_scale", "F8_E4M3", 16, "weight_scale_2", false, ""}));
  add(fp4("modelopt mxfp4", {{"quant_algo", "MXFP4"}, {"group_size", 32}}, true,
          {"weight", "U8", "weight_scale", "U8", 32, "", false, ""}));
  for (const int bits : {2, 3, 4, 8}) add(gptq(bits, 32, false, false));
  add(gptq(4, 32, true, false));
  add(gptq(4, 32, false, true));
  add(awq(32));
  add(modelopt_int4(32));
  add(mxfp4_blocks());
  return formats;
}

}  // namespace perch::test
