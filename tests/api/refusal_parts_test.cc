// What a refusal of a checkpoint names: the file, the tensor (or module, layer or key of the
// configuration), what was found and what is wanted, in this order. One row for each class of
// refusal, in a checkpoint of two shards, so that naming the wrong one is seen.
#include "../abi/shell.h"
#include "api_rig.h"
#include "checkpoint_rig.h"
#include "stored_model.h"

namespace perch::test {
namespace {

constexpr StoredSizes kSizes{4, 2, 64, 128};
const std::string kExperts = "model.layers.0.mlp.experts.";
const std::string kFusedExperts = "model.language_model.layers.0.mlp.experts.";
const char kShard1[] = "/model-00001-of-00002.safetensors: ";
const char kShard2[] = "/model-00002-of-00002.safetensors: ";
const char kConfig[] = ": config.json: ";
const char kFolder[] = ": ";  // what is in none of the files

struct Row {
  const char* name;
  const char* format;  // of all_formats
  const char* layout;  // of all_layouts
  void (*spoil)(StoredModel* model);
  const char* file;  // behind the folder
  std::string subject, found, want;
  uint32_t tp_size = 1;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

StoredPart& part(StoredModel* model, const std::string& name) {
  for (auto& [known, stored] : model->tensors) {
    if (known == name) return stored;
  }
  model->tensors.emplace_back(name, StoredPart{});
  return model->tensors.back().second;
}

void erase(StoredModel* model, const std::string& prefix) {
  std::erase_if(model->tensors, [&](const auto& row) { return row.first.starts_with(prefix); });
}

void keep_rows(StoredPart* part, int64_t rows) {
  part->bytes.resize(part->bytes.size() / static_cast<size_t>(part->shape[0]) *
                     static_cast<size_t>(rows));
  part->shape[0] = rows;
}

// Expert 2 and the fused down_proj in the second shard, everything else in the first.
void write_shards(const StoredModel& model, const std::string& directory) {
  model.write(directory);
  std::filesystem::remove(directory + "/model.safetensors");
  std::vector<FileTensor> rows[2];
  nlohmann::json map;
  const char* const names[] = {&kShard1[1], &kShard2[1]};
  for (const auto& [name, part] : model.tensors) {
    const bool second = name.find("experts.2.") != std::string::npos ||
                        name.find("experts.down_proj") != std::string::npos;
    rows[second].push_back({name, part.dtype, part.shape, &part.bytes});
    const std::string file = names[second];
    map[name] = file.substr(0, file.size() - 2);  // less ": "
  }
  for (const int shard : {0, 1}) {
    const std::string file = names[shard];
    write_safetensors(directory + "/" + file.substr(0, file.size() - 2), rows[shard]);
  }
  write_text(directory + "/model.safetensors.index.json",
             nlohmann::json({{"weight_map", map}}).dump());
}

class RefusalParts : public ::testing::TestWithParam<Row> {};

TEST_P(RefusalParts, FileTensorFoundAndWanted) {
  const Row& row = GetParam();
  const auto named = [](const auto& rows, const std::string& name) {
    return *std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.name == name; });
  };
  StoredModel model =
      store_model(named(all_formats(), row.format), named(all_layouts(), row.layout), kSizes, 7);
  perch_model_opts opts = model_opts();
  opts.tp_size = row.tp_size;
  const auto opened = [&] {
    const TempDir folder;
    write_shards(model, folder.path());
    const std::string text =
        refusal([&] { open_directory(shared_runtime("reference"), folder.path(), opts); });
    return std::pair(text, folder.path());
  };
  if (row.tp_size == 1) {
    EXPECT_EQ(opened().first, "") << "the model was not sound before";
  }
  row.spoil(&model);
  const auto [text, folder] = opened();
  size_t at = 0;
  for (const std::string& wanted : {folder + row.file, row.subject, row.found, row.want}) {
    const size_t next = text.find(wanted, at);
    ASSERT_NE(next, std::string::npos) << "lacks, or has too early: " << wanted << "\n" << text;
    at = next + wanted.size();
  }
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

std::string tensor(const std::string& name) { return "tensor \"" + name + "\": "; }
std::string module(const std::string& name) { return "module \"" + name + "\": "; }

std::vector<Row> of_tensors() {
  return {
      {"shape", "ct int4 g32", "P",
       [](StoredModel* m) { keep_rows(&part(m, kExperts + "2.down_proj.weight_packed"), 32); },
       kShard2, tensor(kExperts + "2.down_proj.weight_packed"), "got [32, 16]", "want [64, 16]"},
      {"shape_in_the_first_shard", "ct int4 g32", "P",
       [](StoredModel* m) { keep_rows(&part(m, kExperts + "1.down_proj.weight_packed"), 32); },
       kShard1, tensor(kExperts + "1.down_proj.weight_packed"), "got [32, 16]", "want [64, 16]"},
      {"size_of_the_model", "bf16", "P",
       [](StoredModel* m) { keep_rows(&part(m, kExperts + "2.down_proj.weight"), 32); }, kShard2,
       tensor(kExperts + "2.down_proj.weight"), "got [32, 128]", "want [64, 128]"},
      {"grid_of_blocks", "fp8 block", "P",
       [](StoredModel* m) { keep_rows(&part(m, kExperts + "2.up_proj.weight_scale_inv"), 3); },
       kShard2, tensor(kExperts + "2.up_proj.weight_scale_inv"), "got [3, 2]", "want [4, 2]"},
      {"dtype", "ct int4 g32", "P",
       [](StoredModel* m) { part(m, kExperts + "2.up_proj.weight_scale").dtype = "I16"; }, kShard2,
       tensor(kExperts + "2.up_proj.weight_scale"), "got I16", "want F32"},
      {"dtype_not_read", "fp8 block", "P",
       [](StoredModel* m) { part(m, kExperts + "2.up_proj.weight").dtype = "F8_E4M3FNUZ"; },
       kShard2, tensor(kExperts + "2.up_proj.weight"), "got F8_E4M3FNUZ", "want F8_E4M3"},
      {"value_of_a_scale", "modelopt nvfp4", "P",
       [](StoredModel* m) {
         part(m, kExperts + "2.down_proj.input_scale") = scalar_part("input_scale", 0.0F);
       },
       kShard2, tensor(kExperts + "2.down_proj.input_scale"), "got 0", "want a positive number"},
      {"value_of_a_group", "gptq int4 v1 act-order", "P",
       [](StoredModel* m) { part(m, kExperts + "2.down_proj.g_idx").bytes[0] = 99; }, kShard2,
       tensor(kExperts + "2.down_proj.g_idx"), "got 99", "want a group, 0 to 3"},
      {"value_of_a_zero_point", "awq gemm", "P",
       [](StoredModel* m) { m->config["quantization_config"]["zero_point"] = false; }, kShard1,
       tensor(kExperts + "0.gate_proj.qzeros"), "got 0x", "want 0x88888888"},
      {"unexpected_tensor", "bf16", "P",
       [](StoredModel* m) { part(m, kExperts + "2.side_proj.weight") = scalar_part("", 1); },
       kShard2, tensor(kExperts + "2.side_proj.weight"), "unexpected", "want gate_proj"},
      {"unexpected_suffix", "bf16", "P",
       [](StoredModel* m) { part(m, kExperts + "2.up_proj.weight_copy") = scalar_part("", 1); },
       kShard2, tensor(kExperts + "2.up_proj.weight_copy"), "got suffix", "want one of weight"},
      {"two_names_of_a_part", "bf16", "P",
       [](StoredModel* m) {
         const StoredPart copy = part(m, kExperts + "2.gate_proj.weight");
         part(m, kExperts + "2.w1.weight") = copy;
       },
       kShard2, tensor(kExperts + "2.w1.weight"), "got ", "want one"},
      {"router", "bf16", "P",
       [](StoredModel* m) {
         part(m, "model.layers.0.mlp.gate.weight") =
             float_part("weight", "BF16", {3, 64}, std::vector<float>(192, 1));
       },
       kShard1, tensor("model.layers.0.mlp.gate.weight"), "got [3, 64]", "want [4, 64]"},
      {"orientation", "bf16", "T",
       [](StoredModel* m) { m->config["transformers_version"] = "5.0.0"; }, kShard1,
       tensor(kFusedExperts + "gate_up_proj"), "got [4, 64, 256], read as", "want [128, 64]"},
      {"fused_experts", "bf16", "F",
       [](StoredModel* m) { keep_rows(&part(m, kFusedExperts + "gate_up_proj"), 3); }, kShard1,
       tensor(kFusedExperts + "gate_up_proj"), "got [3, 256, 64]", "want 4 experts"},
      {"bytes_of_the_file", "bf16", "P",
       [](StoredModel* m) { part(m, kExperts + "2.up_proj.weight").shape[0] = 5; }, kShard2,
       tensor(kExperts + "2.up_proj.weight"), "got 16384 bytes", "want 640 for BF16 [5,64]"},
  };
}

std::vector<Row> of_modules_and_layers() {
  const std::string layer = "layer \"model.layers.0.mlp.experts\": ";
  return {
      {"scale_missing", "ct int4 g32", "P",
       [](StoredModel* m) { erase(m, kExperts + "2.up_proj.weight_scale"); }, kShard2,
       module(kExperts + "2.up_proj"), "weight_scale: missing", "want the scales of weight_packed"},
      {"input_scale_missing", "modelopt nvfp4", "P",
       [](StoredModel* m) { erase(m, kExperts + "2.up_proj.input_scale"); }, kShard2,
       module(kExperts + "2.up_proj"), "input_scale: missing", "want it"},
      {"format_not_read", "bf16", "P",
       [](StoredModel* m) { part(m, kExperts + "2.up_proj.SCB") = scalar_part("SCB", 1); }, kShard2,
       module(kExperts + "2.up_proj"), "got tensors of bitsandbytes 8-bit", "want one of"},
      {"experts_of_two_formats", "bf16", "P",
       [](StoredModel* m) {
         part(m, kExperts + "2.up_proj.weight") =
             float_part("weight", "F32", {128, 64}, std::vector<float>(8192, 1));
       },
       kShard2, module(kExperts + "2.up_proj"), "got f32", "want bf16"},
      {"input_scales_of_gate_and_up", "modelopt nvfp4", "P",
       [](StoredModel* m) {
         part(m, kExperts + "2.up_proj.input_scale") = scalar_part("input_scale", 2);
       },
       kShard2, module(kExperts + "2.up_proj"), "got 2", "want 1"},
      {"part_missing", "bf16", "P", [](StoredModel* m) { erase(m, kExperts + "2.up_proj"); },
       kFolder, layer, "missing expert 2 up_proj (w3)", "want them for every expert"},
      {"experts_counted", "bf16", "P", [](StoredModel* m) { m->config["num_experts"] = 5; },
       kFolder, layer, "got tensors of 4 experts", "want 5 (config.json)"},
      {"fused_and_per_expert", "bf16", "F",
       [](StoredModel* m) {
         part(m, kFusedExperts + "2.up_proj.weight") = scalar_part("weight", 1);
       },
       kFolder, "layer \"model.language_model.layers.0.mlp.experts\": ",
       "got fused and per-expert tensors", "want one of the two"},
      {"tensor_parallel", "bf16", "P", [](StoredModel*) {}, kFolder, layer,
       "got size 128 in groups of 1 for tp 200", "want at least 1 for each rank", 200},
  };
}

std::vector<Row> of_the_configuration() {
  return {
      {"key_of_another_type", "bf16", "P", [](StoredModel* m) { m->config["hidden_size"] = "64"; },
       kConfig, "hidden_size: ", "got \"64\"", "want a positive integer"},
      {"key_missing", "bf16", "P", [](StoredModel* m) { m->config.erase("hidden_size"); }, kConfig,
       "hidden_size: ", "missing", "want the model's hidden size"},
      {"key_out_of_range", "bf16", "P",
       [](StoredModel* m) { m->config["num_experts_per_tok"] = 9; }, kConfig,
       "num_experts_per_tok: ", "got 9", "want 1 to 4"},
      {"activation", "bf16", "P", [](StoredModel* m) { m->config["hidden_act"] = "mish"; }, kConfig,
       "hidden_act: ", "got \"mish\"", "want one of silu"},
      {"model_not_read", "bf16", "P", [](StoredModel* m) { m->config["model_type"] = "dbrx"; },
       kConfig, "model_type: ", "got \"dbrx\"", "want one that Perch reads"},
      {"method_not_read", "ct int4 g32", "P",
       [](StoredModel* m) { m->config["quantization_config"]["quant_method"] = "hqq"; }, kConfig,
       "quantization_config.quant_method: ", "got \"hqq\"", "want one of compressed-tensors"},
      {"method_of_other_tensors", "ct int4 g32", "P",
       [](StoredModel* m) {
         m->config["quantization_config"] = {
             {"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
       },
       kConfig, "quantization_config", "got quant_method gptq", "want compressed-tensors"},
      {"quantized_but_ignored", "ct int4 g32", "P",
       [](StoredModel* m) { m->config["quantization_config"]["ignore"] = {"re:.*experts.*"}; },
       kConfig, "quantization_config.ignore", "got 16 or 32 bits for module",
       "want quantized weights, as tensor"},
      {"own_file_of_the_method", "modelopt nvfp4", "P",
       [](StoredModel* m) { m->hf_quant_config["quantization"]["quant_algo"] = "NVFP9"; },
       ": hf_quant_config.json: ", "quantization.quant_algo: ", "got \"NVFP9\"", "want one of"},
      {"not_json", "bf16", "P", [](StoredModel* m) { m->config = "text"; }, kConfig, "", "got ",
       "want "},
  };
}

std::string row_name(const ::testing::TestParamInfo<Row>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Tensor, RefusalParts, ::testing::ValuesIn(of_tensors()), row_name);
INSTANTIATE_TEST_SUITE_P(Module, RefusalParts, ::testing::ValuesIn(of_modules_and_layers()),
                         row_name);
INSTANTIATE_TEST_SUITE_P(Config, RefusalParts, ::testing::ValuesIn(of_the_configuration()),
                         row_name);

}  // namespace
}  // namespace perch::test
