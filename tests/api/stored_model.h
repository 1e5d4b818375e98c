// A one-layer MoE checkpoint of any format in any layout, written to a folder as packages write it.
#pragma once

#include <fstream>

#include "stored_formats.h"
#include "write_safetensors.h"

namespace perch::test {

struct StoredLayout {
  const char* name;
  const char* model_type;
  const char* version;  // transformers_version
  bool fused;
  bool transposed;
  bool gated;
  const char* prefix;        // of the experts
  const char* parts[3];      // gate (or gate_up), up, down
  bool interleaved = false;  // row 2j of gate_up is gate, 2j + 1 up
  // The activation is the model's own, and its values are no whole numbers.
  bool rounds = false;
};

inline const std::vector<StoredLayout>& all_layouts() {
  static const std::vector<StoredLayout> layouts = {
      {"P",
       "qwen3_moe",
       "5.0.0",
       false,
       false,
       true,
       "model.layers.0.mlp.experts.",
       {"gate_proj", "up_proj", "down_proj"}},
      {"M",
       "mixtral",
       "5.0.0",
       false,
       false,
       true,
       "model.layers.0.block_sparse_moe.experts.",
       {"w1", "w3", "w2"}},
      {"G",
       "nemotron_h",
       "5.0.0",
       false,
       false,
       false,
       "backbone.layers.0.mixer.experts.",
       {"", "up_proj", "down_proj"}},
      {"F",
       "qwen3_5_moe",
       "5.0.0",
       true,
       false,
       true,
       "model.language_model.layers.0.mlp.experts.",
       {"gate_up_proj", "", "down_proj"}},
      {"T",
       "qwen3_vl_moe",
       "4.57.0",
       true,
       true,
       true,
       "model.language_model.layers.0.mlp.experts.",
       {"gate_up_proj", "", "down_proj"}},
      {"S",
       "step3",
       "5.0.0",
       true,
       false,
       true,
       "model.layers.0.moe.",
       {"gate_proj", "up_proj", "down_proj"},
       false,
       true},
      {"TI",
       "gpt_oss",
       "5.0.0",
       true,
       true,
       true,
       "model.layers.0.mlp.experts.",
       {"gate_up_proj", "", "down_proj"},
       true,
       true},
  };
  return layouts;
}

struct StoredSizes {
  int64_t experts, topk, hidden, intermediate;
};

struct StoredExpert {
  std::vector<float> w13;  // [2I or I, H]
  std::vector<float> w2;   // [H, I]
};

struct StoredModel {
  nlohmann::json config;
  nlohmann::json hf_quant_config;  // null: no such file
  std::vector<std::pair<std::string, StoredPart>> tensors;
  std::vector<StoredExpert> experts;  // what it stands for

  void write(const std::string& directory) const {
    std::ofstream(directory + "/config.json") << config.dump();
    if (!hf_quant_config.is_null()) {
      std::ofstream(directory + "/hf_quant_config.json") << hf_quant_config.dump();
    }
    std::vector<FileTensor> rows;
    for (const auto& [name, part] : tensors)
      rows.push_back({name, part.dtype, part.shape, &part.bytes});
    write_safetensors(directory + "/model.safetensors", rows);
  }
};

// Gate and up are one tensor of all experts each, named as modules.
inline bool is_stacked(const StoredLayout& layout) {
  return layout.fused && layout.parts[1][0] != '\0';
}

// Gate rows and then up rows, of a gate_up in which they take turns.
inline std::vector<float> halves(const std::vector<float>& rows, int64_t columns) {
  const auto width = static_cast<std::ptrdiff_t>(columns);
  const auto count = static_cast<std::ptrdiff_t>(rows.size()) / width;
  std::vector<float> result;
  for (std::ptrdiff_t first : {0, 1}) {
    for (std::ptrdiff_t row = first; row < count; row += 2) {
      result.insert(result.end(), rows.begin() + row * width, rows.begin() + (row + 1) * width);
    }
  }
  return result;
}

// [rows, columns] of a part becomes [columns, rows].
inline StoredPart turned(const StoredPart& part) {
  StoredPart result = part;
  const int64_t rows = part.shape[0];
  const int64_t columns = part.shape[1];
  const auto width = static_cast<int64_t>(part.bytes.size()) / std::max<int64_t>(1, rows * columns);
  result.shape = {columns, rows};
  result.bytes.clear();
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto at = part.bytes.begin() + (r * columns + c) * width;
      result.bytes.insert(result.bytes.end(), at, at + width);
    }
  }
  return result;
}

// One tensor of all experts. What has a K axis turns with the weight; one value per row does not,
// nor do blocks of MXFP4 and their scales.
inline void stack(const StoredLayout& layout, const std::string& name,
                  const std::vector<StoredMatrix>& matrices, StoredModel* model) {
  for (size_t p = 0; p < matrices[0].parts.size(); ++p) {
    StoredPart all;
    for (const StoredMatrix& matrix : matrices) {
      StoredPart part = matrix.parts[p];
      const bool blocks = part.suffix == "blocks" || part.suffix == "scales";
      if (layout.transposed && !blocks && part.shape.size() == 2 && part.shape[1] > 1) {
        part = turned(part);
      }
      if (all.shape.empty()) {
        all = part;
        all.bytes.clear();
        all.shape.insert(all.shape.begin(), static_cast<int64_t>(matrices.size()));
      }
      all.bytes.insert(all.bytes.end(), part.bytes.begin(), part.bytes.end());
    }
    std::string suffix = "_" + all.suffix;
    if (all.suffix == "weight") suffix = "";
    if (all.suffix == "weight_scale_inv") suffix = "_scale_inv";
    if (is_stacked(layout)) suffix = "." + all.suffix;
    model->tensors.emplace_back(layout.prefix + name + suffix, std::move(all));
  }
}

inline nlohmann::json stored_config(const StoredLayout& layout, const StoredSizes& sizes) {
  nlohmann::json text = {{"model_type", layout.model_type},
                         {"hidden_size", sizes.hidden},
                         {"num_hidden_layers", 1},
                         {"num_experts_per_tok", sizes.topk},
                         {"moe_intermediate_size", sizes.intermediate},
                         {"hidden_act", "relu2"},
                         {"torch_dtype", "float32"}};
  const std::string type = layout.model_type;
  if (type == "mixtral") {
    text["num_local_experts"] = sizes.experts;
    text["intermediate_size"] = sizes.intermediate;
    text.erase("moe_intermediate_size");
  } else {
    text[type == "nemotron_h" ? "n_routed_experts" : "num_experts"] = sizes.experts;
  }
  if (type == "nemotron_h") text["mlp_hidden_act"] = "relu2";
  text["transformers_version"] = layout.version;
  return text;
}

inline StoredModel store_model(const StoredFormat& format, const StoredLayout& layout,
                               const StoredSizes& sizes, uint32_t seed) {
  std::mt19937 rng(seed);
  StoredModel model;
  model.config = stored_config(layout, sizes);
  if (format.in_own_file) {
    model.hf_quant_config = {{"producer", {{"name", "modelopt"}, {"version", "0.30.0"}}},
                             {"quantization", format.quantization}};
  } else if (!format.quantization.is_null()) {
    model.config["quantization_config"] = format.quantization;
  }
  std::vector<StoredMatrix> first, second, third;
  for (int64_t e = 0; e < sizes.experts; ++e) {
    StoredExpert expert;
    const auto draw = [&](int64_t n, int64_t k, std::vector<float>* values) {
      StoredMatrix matrix = format.store(n, k, &rng);
      values->insert(values->end(), matrix.values.begin(), matrix.values.end());
      return matrix;
    };
    const auto put = [&](const char* part, int64_t n, int64_t k, std::vector<float>* values) {
      for (StoredPart& stored : draw(n, k, values).parts) {
        model.tensors.emplace_back(
            layout.prefix + std::to_string(e) + "." + part + "." + stored.suffix, stored);
      }
    };
    if (is_stacked(layout)) {
      first.push_back(draw(sizes.intermediate, sizes.hidden, &expert.w13));
      second.push_back(draw(sizes.intermediate, sizes.hidden, &expert.w13));
      third.push_back(draw(sizes.hidden, sizes.intermediate, &expert.w2));
    } else if (layout.fused) {
      first.push_back(draw(2 * sizes.intermediate, sizes.hidden, &expert.w13));
      if (layout.interleaved) expert.w13 = halves(expert.w13, sizes.hidden);
      third.push_back(draw(sizes.hidden, sizes.intermediate, &expert.w2));
    } else {
      if (layout.gated) put(layout.parts[0], sizes.intermediate, sizes.hidden, &expert.w13);
      put(layout.parts[1], sizes.intermediate, sizes.hidden, &expert.w13);
      put(layout.parts[2], sizes.hidden, sizes.intermediate, &expert.w2);
    }
    model.experts.push_back(std::move(expert));
  }
  if (layout.fused) {
    stack(layout, layout.parts[0], first, &model);
    if (is_stacked(layout)) stack(layout, layout.parts[1], second, &model);
    stack(layout, layout.parts[2], third, &model);
  }
  return model;
}

}  // namespace perch::test
