// A checkpoint under construction: raw tensors by name and a config.json, opened from memory
// (perch_canonicalize) or written to a folder (perch_model_open). And one set of expert weights in
// each of the layouts that checkpoints use.
#pragma once

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api_rig.h"
#include "write_safetensors.h"

namespace perch::test {

// Must outlive the models made from it.
struct Checkpoint {
  std::map<std::string, Tensor> tensors;
  json config;

  perch_host::Model open(perch_runtime* runtime, const perch_model_opts* opts = nullptr) const {
    std::vector<perch_named_tensor> named;
    for (const auto& [name, tensor] : tensors) named.push_back({name.c_str(), tensor.dl(), 0});
    perch_model* model = nullptr;
    const std::string text = config.dump();
    perch_host::check(perch_canonicalize, runtime,
                      static_cast<const perch_named_tensor*>(named.data()),
                      static_cast<uint32_t>(named.size()), text.c_str(), opts, &model);
    return perch_host::Model(model);
  }

  // config.json and model.safetensors.
  void write(const std::string& directory) const {
    std::ofstream(directory + "/config.json") << config.dump();
    std::vector<FileTensor> rows;
    for (const auto& [name, tensor] : tensors) {
      rows.push_back({name, dtype_name(tensor.dtype), tensor.shape, &tensor.bytes});
    }
    write_safetensors(directory + "/model.safetensors", rows);
  }

 private:
  static const char* dtype_name(DLDataType dtype) {
    if (dtype.code == kDLBfloat) return "BF16";
    if (dtype.code == kDLInt) return dtype.bits == 64 ? "I64" : "I32";
    if (dtype.code == kDLUInt) return "U8";
    return dtype.bits == 16 ? "F16" : "F32";
  }
};

inline perch_model_opts model_opts() {
  perch_model_opts opts{};
  opts.struct_size = sizeof(opts);
  return opts;
}

inline perch_host::Model open_directory(perch_runtime* runtime, const std::string& directory,
                                        const perch_model_opts& opts) {
  perch_model* model = nullptr;
  perch_host::check(perch_model_open, runtime, directory.c_str(), &opts, &model);
  return perch_host::Model(model);
}

inline json inspect(const perch_host::Model& model) {
  return json::parse(perch_host::json(perch_model_inspect, model.get()));
}

// Canonical tensors of one expert, copied.
inline TensorMap canonical(const perch_host::Model& model, int32_t expert, uint32_t index = 0) {
  perch_tensors* list = nullptr;
  perch_host::check(perch_model_tensors, model.get(), index, expert, &list);
  const perch_host::Tensors owned(list);
  TensorMap tensors;
  for (uint32_t i = 0; i < perch_tensors_count(list); ++i) {
    const perch_named_tensor* named = perch_tensors_get(list, i);
    const DLTensor& tensor = *named->tensor;
    Tensor copy = empty_tensor(tensor.dtype, {tensor.shape, tensor.shape + tensor.ndim});
    std::memcpy(copy.bytes.data(), tensor.data, copy.bytes.size());
    tensors[named->name] = std::move(copy);
  }
  return tensors;
}

// ---- One set of weights, many layouts
// ------------------------------------------------------------

struct ExpertWeights {
  std::vector<float> gate, up, down;  // [I,H] [I,H] [H,I]; gate empty without one
};

inline std::vector<ExpertWeights> random_weights(const MoeSizes& sizes, uint32_t seed,
                                                 bool integers = false) {
  std::mt19937 rng(seed);
  const auto fill = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      const float whole = static_cast<float>(static_cast<int32_t>(rng() % 9) - 4);
      // Multiples of 2^-8 up to 1/2 are exact in bf16.
      value = integers ? whole : static_cast<float>(static_cast<int32_t>(rng() % 256) - 128) / 256;
    }
    return values;
  };
  std::vector<ExpertWeights> experts;
  for (uint32_t e = 0; e < sizes.experts; ++e) {
    const int64_t count = sizes.hidden * sizes.intermediate;
    ExpertWeights expert;
    expert.gate = fill(count);
    expert.up = fill(count);
    expert.down = fill(count);
    experts.push_back(std::move(expert));
  }
  return experts;
}

enum class Storage { kP, kM, kF, kT, kTI, kGranite, kS };

inline json moe_config_json(const std::string& model_type, const MoeSizes& sizes) {
  return {{"model_type", model_type},
          {"hidden_size", sizes.hidden},
          {"num_experts", sizes.experts},
          {"num_experts_per_tok", sizes.topk},
          {"moe_intermediate_size", sizes.intermediate},
          {"hidden_act", "silu"},
          {"norm_topk_prob", true},
          {"torch_dtype", "float32"}};
}

// m [rows, columns] -> [columns, rows].
inline std::vector<float> turned(const std::vector<float>& m, int64_t rows, int64_t columns) {
  std::vector<float> result;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) result.push_back(m[static_cast<size_t>(r * columns + c)]);
  }
  return result;
}

// Gate and up rows of one expert in the order of the layout, [2I, H].
inline std::vector<float> joined(const ExpertWeights& expert, const MoeSizes& sizes,
                                 bool interleaved) {
  std::vector<float> rows;
  const auto add = [&](const std::vector<float>& from, int64_t row) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(row * sizes.hidden);
    rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(sizes.hidden));
  };
  for (int64_t i = 0; i < 2 * sizes.intermediate; ++i) {
    const bool up = interleaved ? i % 2 == 1 : i >= sizes.intermediate;
    add(up ? expert.up : expert.gate, interleaved ? i / 2 : i % sizes.intermediate);
  }
  return rows;
}

inline void store_fused(Storage storage, const MoeSizes& sizes,
                        const std::vector<ExpertWeights>& experts, uint32_t type, Checkpoint* out) {
  const bool turn = storage == Storage::kT || storage == Storage::kTI;
  const int64_t h = sizes.hidden;
  const int64_t i = sizes.intermediate;
  std::vector<float> first, second;
  for (const ExpertWeights& expert : experts) {
    std::vector<float> rows = joined(expert, sizes, storage == Storage::kTI);
    if (turn) rows = turned(rows, 2 * i, h);
    first.insert(first.end(), rows.begin(), rows.end());
    const std::vector<float> down = turn ? turned(expert.down, h, i) : expert.down;
    second.insert(second.end(), down.begin(), down.end());
  }
  const int64_t e = sizes.experts;
  const bool granite = storage == Storage::kGranite;
  const std::string prefix =
      granite ? "model.layers.0.block_sparse_moe." : "model.layers.0.mlp.experts.";
  out->tensors[prefix + (granite ? "input_linear.weight" : "gate_up_proj")] = floats(
      type, turn ? std::vector<int64_t>{e, h, 2 * i} : std::vector<int64_t>{e, 2 * i, h}, first);
  out->tensors[prefix + (granite ? "output_linear.weight" : "down_proj")] =
      floats(type, turn ? std::vector<int64_t>{e, i, h} : std::vector<int64_t>{e, h, i}, second);
}

// Gate, up and down of all experts, one tensor each.
inline void store_stacked(const MoeSizes& sizes, const std::vector<ExpertWeights>& experts,
                          uint32_t type, Checkpoint* out) {
  std::vector<float> parts[3];
  for (const ExpertWeights& expert : experts) {
    parts[0].insert(parts[0].end(), expert.gate.begin(), expert.gate.end());
    parts[1].insert(parts[1].end(), expert.up.begin(), expert.up.end());
    parts[2].insert(parts[2].end(), expert.down.begin(), expert.down.end());
  }
  const std::vector<int64_t> first = {sizes.experts, sizes.intermediate, sizes.hidden};
  const std::string prefix = "model.layers.0.moe.";
  out->tensors[prefix + "gate_proj.weight"] = floats(type, first, parts[0]);
  out->tensors[prefix + "up_proj.weight"] = floats(type, first, parts[1]);
  out->tensors[prefix + "down_proj.weight"] =
      floats(type, {sizes.experts, sizes.hidden, sizes.intermediate}, parts[2]);
}

// The weights as a checkpoint of the model type that stores them so.
inline Checkpoint store(Storage storage, const MoeSizes& sizes,
                        const std::vector<ExpertWeights>& experts,
                        uint32_t type = PERCH_TYPE_BF16) {
  static const char* const kTypes[] = {"qwen3_moe", "mixtral",    "qwen3_5_moe", "qwen3_vl_moe",
                                       "gpt_oss",   "granitemoe", "step3"};
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json(kTypes[static_cast<int>(storage)], sizes);
  if (storage == Storage::kT) checkpoint.config["transformers_version"] = "4.57.6";
  if (storage == Storage::kS) {
    store_stacked(sizes, experts, type, &checkpoint);
    return checkpoint;
  }
  if (storage != Storage::kP && storage != Storage::kM) {
    store_fused(storage, sizes, experts, type, &checkpoint);
    return checkpoint;
  }
  const bool mixtral = storage == Storage::kM;
  for (size_t e = 0; e < experts.size(); ++e) {
    const std::string prefix = std::string("model.layers.0.") +
                               (mixtral ? "block_sparse_moe" : "mlp") + ".experts." +
                               std::to_string(e) + ".";
    const std::vector<int64_t> first = {sizes.intermediate, sizes.hidden};
    const std::vector<int64_t> second = {sizes.hidden, sizes.intermediate};
    const auto put = [&](const char* name, const std::vector<int64_t>& shape,
                         const std::vector<float>& values) {
      checkpoint.tensors[prefix + name + ".weight"] = floats(type, shape, values);
    };
    if (!experts[e].gate.empty()) put(mixtral ? "w1" : "gate_proj", first, experts[e].gate);
    put(mixtral ? "w3" : "up_proj", first, experts[e].up);
    put(mixtral ? "w2" : "down_proj", second, experts[e].down);
  }
  return checkpoint;
}

// ---- compressed-tensors pack-quantized
// -----------------------------------------------------------

// weight_packed, weight_scale [N, groups] and weight_shape of one module; codes are q >= -2^(b-1).
inline void store_packed(const std::string& module, int bits, int64_t n, int64_t k,
                         const std::vector<int>& codes, const std::vector<float>& scales,
                         Checkpoint* out) {
  const int64_t words = (k * bits + 31) / 32;
  std::vector<int32_t> packed(static_cast<size_t>(n * words), 0);
  for (int64_t i = 0; i < n * k; ++i) {
    const auto code = static_cast<uint32_t>(codes[static_cast<size_t>(i)] + (1 << (bits - 1)));
    const int64_t bit = i % k * bits;
    auto& word = packed[static_cast<size_t>(i / k * words + bit / 32)];
    word = static_cast<int32_t>(static_cast<uint32_t>(word) | code << (bit % 32));
  }
  out->tensors[module + ".weight_packed"] = i32({n, words}, packed);
  out->tensors[module + ".weight_scale"] =
      f32({n, static_cast<int64_t>(scales.size()) / n}, scales);
  out->tensors[module + ".weight_shape"] = i64({2}, {n, k});
}

inline json packed_config(int bits, const std::string& strategy, int64_t group = 0) {
  json weights = {{"num_bits", bits}, {"type", "int"}, {"symmetric", true}, {"strategy", strategy}};
  if (group > 0) weights["group_size"] = group;
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

// A qwen3_moe layer with codes at random and scales as `draw_scale` gives them.
template <typename DrawScale>
Checkpoint packed_moe(const MoeSizes& sizes, int bits, int64_t group, uint32_t seed,
                      DrawScale&& draw_scale) {
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", sizes);
  checkpoint.config["quantization_config"] = packed_config(bits, "group", group);
  std::mt19937 rng(seed);
  for (uint32_t e = 0; e < sizes.experts; ++e) {
    const std::string expert = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
    const auto put = [&](const char* part, int64_t n, int64_t k) {
      std::vector<int> codes(static_cast<size_t>(n * k));
      for (int& code : codes) {
        code = static_cast<int>(rng() % (1U << bits)) - (1 << (bits - 1));
      }
      std::vector<float> scales(static_cast<size_t>(n * k / group));
      for (float& scale : scales) scale = draw_scale(rng);
      store_packed(expert + part, bits, n, k, codes, scales, &checkpoint);
    };
    put("gate_proj", sizes.intermediate, sizes.hidden);
    put("up_proj", sizes.intermediate, sizes.hidden);
    put("down_proj", sizes.hidden, sizes.intermediate);
  }
  return checkpoint;
}

}  // namespace perch::test
