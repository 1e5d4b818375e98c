// Field report H3, and what else a checkpoint can lack: missing, unexpected and partly filled
// tensors are refused by name before any forward, from memory and from a folder alike.
#include "../abi/shell.h"
#include "checkpoint_rig.h"

namespace perch::test {
namespace {

const char kExperts[] = "model.layers.0.mlp.experts.";
const MoeSizes kSizes{4, 2, 16, 8};

Checkpoint float_model() { return store(Storage::kP, kSizes, random_weights(kSizes, 3)); }

Checkpoint int4_model() {
  Checkpoint checkpoint;
  checkpoint.config = moe_config_json("qwen3_moe", kSizes);
  checkpoint.config["quantization_config"] = packed_config(4, "group", 8);
  for (uint32_t e = 0; e < kSizes.experts; ++e) {
    const std::string expert = kExperts + std::to_string(e) + ".";
    const std::vector<int> codes(128, static_cast<int>(e) - 2);
    store_packed(expert + "gate_proj", 4, 8, 16, codes, std::vector<float>(16, 0.5F), &checkpoint);
    store_packed(expert + "up_proj", 4, 8, 16, codes, std::vector<float>(16, 0.25F), &checkpoint);
    store_packed(expert + "down_proj", 4, 16, 8, codes, std::vector<float>(16, 2), &checkpoint);
  }
  return checkpoint;
}

struct BadCheckpoint {
  const char* name;
  Checkpoint (*make)();
  void (*spoil)(Checkpoint& checkpoint);
  std::vector<std::string> messages;  // all of them
};

class BadCheckpointTest : public ::testing::TestWithParam<BadCheckpoint> {};

void expect_all(const std::string& text, const std::vector<std::string>& messages) {
  for (const std::string& message : messages) EXPECT_TRUE(says(text, message));
}

TEST_P(BadCheckpointTest, IsRefusedAndTheRuntimeGoesOn) {
  const BadCheckpoint& row = GetParam();
  const perch_host::Runtime runtime = runtime_of(only("reference"));
  Checkpoint checkpoint = row.make();
  row.spoil(checkpoint);
  expect_all(refusal([&] { checkpoint.open(runtime.get()); }), row.messages);

  const TempDir folder;
  checkpoint.write(folder.path());
  expect_all(refusal([&] { perch_host::open_model(runtime, folder.path()); }), row.messages);

  const Checkpoint good = row.make();
  const perch_host::Model model = good.open(runtime.get());
  EXPECT_NE(perch_host::make_layer(model, 0), nullptr);
}

void move_tensor(Checkpoint& checkpoint, const std::string& from, const std::string& to) {
  checkpoint.tensors[to] = checkpoint.tensors.at(from);
  checkpoint.tensors.erase(from);
}

void resize(Tensor& tensor, const std::vector<int64_t>& shape) {
  std::vector<uint8_t> bytes = tensor.bytes;
  tensor = empty_tensor(tensor.dtype, shape);
  std::copy_n(bytes.begin(), std::min(bytes.size(), tensor.bytes.size()), tensor.bytes.begin());
}

std::string at(const char* part) { return std::string(kExperts) + part; }

const BadCheckpoint kBad[] = {
    {"expert_2_without_w3",
     float_model,
     [](Checkpoint& c) { c.tensors.erase(at("2.up_proj.weight")); },
     {"model.layers.0.mlp.experts", "expert 2 up_proj"}},
    {"two_parts_missing",
     float_model,
     [](Checkpoint& c) {
       c.tensors.erase(at("2.up_proj.weight"));
       c.tensors.erase(at("3.down_proj.weight"));
     },
     {"expert 2 up_proj", "expert 3 down_proj"}},
    {"last_expert_missing",
     float_model,
     [](Checkpoint& c) {
       for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
         c.tensors.erase(at("3.") + part + ".weight");
       }
     },
     {"got tensors of 3 experts; want 4 (config.json)"}},
    {"all_experts_renamed",
     float_model,
     [](Checkpoint& c) {
       c.tensors["model.layers.0.mlp.gate.weight"] =
           floats(PERCH_TYPE_BF16, {4, 16}, std::vector<float>(64, 0.5F));
       const std::map<std::string, Tensor> all = c.tensors;
       for (const auto& [name, tensor] : all) {
         const size_t found = name.find(".experts.");
         if (found == std::string::npos) continue;
         move_tensor(c, name, name.substr(0, found) + ".specialists." + name.substr(found + 9));
       }
     },
     {"model.layers.0.mlp", "no tensors of its 4 experts"}},
    {"one_scale_missing",
     int4_model,
     [](Checkpoint& c) { c.tensors.erase(at("1.down_proj.weight_scale")); },
     {"experts.1.down_proj", "weight_scale: missing"}},
    {"one_shape_missing",
     int4_model,
     [](Checkpoint& c) { c.tensors.erase(at("1.down_proj.weight_shape")); },
     {"experts.1.down_proj", "weight_shape: missing"}},
    {"half_of_w2_rows",
     float_model,
     [](Checkpoint& c) {
       resize(c.tensors.at(at("2.down_proj.weight")), {8, 8});
     },
     {"experts.2.down_proj.weight", "got [8, 8]", "want [16, 8]"}},
    {"half_of_packed_rows",
     int4_model,
     [](Checkpoint& c) {
       resize(c.tensors.at(at("2.down_proj.weight_packed")), {8, 1});
     },
     {"experts.2.down_proj.weight_packed", "got [8, 1]", "want [16, 1]"}},
    {"half_of_scale_groups",
     int4_model,
     [](Checkpoint& c) {
       resize(c.tensors.at(at("2.gate_proj.weight_scale")), {8, 1});
     },
     {"experts.2.gate_proj.weight_scale", "got [8, 1]", "want [8, 2]"}},
    {"expert_of_another_type",
     float_model,
     [](Checkpoint& c) {
       c.tensors[at("2.up_proj.weight")] = f32({8, 16}, std::vector<float>(128, 1));
     },
     {"experts.2.up_proj", "number format: got f32; want bf16"}},
    {"unexpected_part",
     float_model,
     [](Checkpoint& c) { c.tensors[at("1.side_proj.weight")] = f32({1}, {1}); },
     {"tensor \"model.layers.0.mlp.experts.1.side_proj.weight\": unexpected"}},
    {"unexpected_suffix",
     float_model,
     [](Checkpoint& c) { c.tensors[at("1.up_proj.weight_copy")] = f32({1}, {1}); },
     {"experts.1.up_proj.weight_copy\": unexpected: got suffix \"weight_copy\""}},
    {"scale_without_quantization",
     float_model,
     [](Checkpoint& c) { c.tensors[at("1.up_proj.weight_scale")] = f32({1}, {1}); },
     {"experts.1.up_proj.weight_scale"}},
    {"packed_excluded_by_config",
     int4_model,
     [](Checkpoint& c) { c.config["quantization_config"]["ignore"] = {"re:.*experts.*"}; },
     {"quantization_config", "weight_packed"}},
    {"hidden_size",
     float_model,
     [](Checkpoint& c) { c.config["hidden_size"] = 32; },
     {"gate_proj.weight", "got [8, 16]", "want [8, 32]"}},
    {"hidden_size_missing",
     float_model,
     [](Checkpoint& c) { c.config.erase("hidden_size"); },
     {"config.json: hidden_size: missing"}},
    {"hidden_size_text",
     float_model,
     [](Checkpoint& c) { c.config["hidden_size"] = "16"; },
     {"config.json: hidden_size: got \"16\"; want a positive integer"}},
    {"experts_minus_one",
     float_model,
     [](Checkpoint& c) { c.config["num_experts"] = -1; },
     {"config.json: num_experts: got -1"}},
    {"topk_above_experts",
     float_model,
     [](Checkpoint& c) { c.config["num_experts_per_tok"] = 5; },
     {"config.json: num_experts_per_tok: got 5; want 1 to 4"}},
    {"activation",
     float_model,
     [](Checkpoint& c) { c.config["hidden_act"] = "mish"; },
     {"config.json: hidden_act: got \"mish\" for gated experts"}},
};
INSTANTIATE_TEST_SUITE_P(H3, BadCheckpointTest, ::testing::ValuesIn(kBad),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- Extra tensors -----------------------------------------------------------------------------

TEST(ExtraTensors, FooIsAListedWarning) {
  Checkpoint checkpoint = float_model();
  checkpoint.tensors["foo"] = f32({1}, {1});
  const perch_host::Model model = checkpoint.open(shared_runtime("reference"));
  const json document = inspect(model);
  EXPECT_TRUE(says(document["warnings"].dump(), "tensor \\\"foo\\\": unexpected"));
  EXPECT_EQ(document["layers"].size(), 1U);
}

TEST(ExtraTensors, UnderExpertsAreAllowedByTheFlagAndListed) {
  Checkpoint checkpoint = float_model();
  checkpoint.tensors[at("1.side_proj.weight")] = f32({1}, {1});
  checkpoint.tensors[at("1.up_proj.weight_copy")] = f32({1}, {1});
  perch_model_opts opts = model_opts();
  opts.flags = PERCH_MODEL_ALLOW_UNEXPECTED;
  const json document = inspect(checkpoint.open(shared_runtime("reference"), &opts));
  EXPECT_TRUE(says(document["warnings"].dump(), "side_proj"));
  EXPECT_TRUE(says(document["warnings"].dump(), "weight_copy"));
}

TEST(ExtraTensors, ScalesAreNeverAllowed) {
  for (const char* name : {"1.side_proj.weight_scale", "1.up_proj.extra_scale"}) {
    Checkpoint checkpoint = float_model();
    checkpoint.tensors[at(name)] = f32({1}, {1});
    perch_model_opts opts = model_opts();
    opts.flags = PERCH_MODEL_ALLOW_UNEXPECTED;
    EXPECT_TRUE(says(refusal([&] { checkpoint.open(shared_runtime("reference"), &opts); }),
                     std::string(name) + "\": unexpected"));
  }
}

// ---- Files -------------------------------------------------------------------------------------

TEST(ModelFolder, ThatIsNotThere) {
  const perch_host::Runtime runtime = runtime_of(only("reference"));
  const std::string text = refusal([&] { perch_host::open_model(runtime, "/no/such/model"); });
  EXPECT_TRUE(says(text, "/no/such/model"));
}

TEST(ModelFolder, WithAFileCutShort) {
  const TempDir folder;
  float_model().write(folder.path());
  const std::string file = folder / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const perch_host::Runtime runtime = runtime_of(only("reference"));
  EXPECT_TRUE(says(refusal([&] { perch_host::open_model(runtime, folder.path()); }), file));
}

TEST(ModelFolder, WithAConfigThatIsNoJson) {
  const TempDir folder;
  float_model().write(folder.path());
  write_text(folder / "config.json", "{\"model_type\": ");
  const perch_host::Runtime runtime = runtime_of(only("reference"));
  EXPECT_TRUE(
      says(refusal([&] { perch_host::open_model(runtime, folder.path()); }), "config.json"));
}

TEST(ModelFolder, GivesTheBytesThatMemoryGives) {
  const Checkpoint checkpoint = int4_model();
  const TempDir folder;
  checkpoint.write(folder.path());
  const perch_host::Runtime runtime = runtime_of(only("reference"));
  const perch_host::Model a = checkpoint.open(runtime.get());
  const perch_host::Model b = perch_host::open_model(runtime, folder.path());
  for (int32_t e = 0; e < 4; ++e) {
    const TensorMap want = canonical(a, e);
    for (const auto& [name, tensor] : canonical(b, e)) {
      EXPECT_EQ(tensor.bytes, want.at(name).bytes) << name;
    }
  }
}

TEST(Canonicalize, TheSameNameTwice) {
  const Tensor tensor = f32({1}, {1});
  const perch_named_tensor named[2] = {{"a", tensor.dl(), 0}, {"a", tensor.dl(), 0}};
  perch_model* model = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(
      perch_canonicalize(shared_runtime("reference"), named, 2, "{}", nullptr, &model, &error),
      PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error.message, "a: name: got it twice"));
}

TEST(Canonicalize, IndexAndExpertOutOfRange) {
  const Checkpoint checkpoint = float_model();
  const perch_host::Model model = checkpoint.open(shared_runtime("reference"));
  EXPECT_EQ(perch_model_layer_config(model.get(), 1), nullptr);
  EXPECT_EQ(perch_model_route_config(model.get(), 9), nullptr);
  EXPECT_TRUE(
      says(refusal([&] { perch_host::make_layer(model, 1); }), "index: got 1; want less than 1"));
  EXPECT_TRUE(says(refusal([&] { canonical(model, 4); }), "expert: got 4; want 0 to 3"));
}

}  // namespace
}  // namespace perch::test
