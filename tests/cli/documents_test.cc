// The JSON of every subcommand: the keys of design.md §6, which may be added to and never renamed.
#include "cli_rig.h"

namespace perch::test {
namespace {

void expect_keys(const json& object, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) EXPECT_TRUE(object.contains(key)) << key;
}

json document_of(const std::string& arguments) {
  const CommandResult result = perch_command(arguments + " --json");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "") << "logs do not belong into a quiet run";
  return result.document();
}

TEST(ListJson, HasItsKeys) {
  const json document = document_of("list");
  expect_keys(document, {"libraries"});
  std::set<std::string> ids;
  for (const json& library : document["libraries"]) {
    expect_keys(library,
                {"path", "id", "version", "abi", "state", "reason", "devices", "caps_possible"});
    for (const json& device : library["devices"]) {
      expect_keys(device, {"name", "arch", "usable", "reason"});
    }
    if (library["state"] == "loaded") ids.insert(library["id"].get<std::string>());
  }
  EXPECT_EQ(ids.count("reference"), 1U);
  EXPECT_EQ(ids.count("humming-cpu"), 1U);
}

TEST(ListJson, IsFineAlthoughALibraryFailed) {
  const TempDir folder;
  write_text(folder / "libperch_broken.so", "no library");
  const CommandResult result = perch_command("list --json -q --backend-path " + folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  bool found = false;
  const json document = result.document();
  for (const json& library : document["libraries"]) {
    if (library["id"] != "broken") continue;
    found = true;
    EXPECT_EQ(library["state"], "failed");
    EXPECT_TRUE(says(library["reason"], "ELF"));
    EXPECT_EQ(library["path"], folder / "libperch_broken.so");
  }
  EXPECT_TRUE(found);
}

TEST(InspectJson, HasItsKeys) {
  const json document = document_of("inspect " + fixture("nemotron_h"));
  expect_keys(document, {"model_type", "layers", "warnings"});
  EXPECT_EQ(document["model_type"], "nemotron_h");
  ASSERT_EQ(document["layers"].size(), 2U);
  for (const json& layer : document["layers"]) {
    expect_keys(layer, {"name", "kind", "sizes", "recipe", "activation", "routing", "orientation",
                        "tensors", "bytes"});
    expect_keys(layer["orientation"], {"value", "decided_by"});
    expect_keys(layer["sizes"], {"experts", "topk", "hidden", "intermediate"});
    EXPECT_EQ(layer["activation"], "relu2_no_mul");
    EXPECT_GT(layer["bytes"].get<int64_t>(), 0);
    EXPECT_FALSE(layer["tensors"].empty());
  }
}

// What the host runs beside a MoE layer: keys only where there is such a thing.
TEST(InspectJson, SharedExpertAndLatentProjection) {
  const json plain = document_of("inspect " + fixture("olmoe"))["layers"][0];
  EXPECT_FALSE(plain.contains("shared_expert"));
  EXPECT_FALSE(plain.contains("latent"));
  const std::string gated = "model.layers.0.mlp.shared_expert";
  EXPECT_EQ(document_of("inspect " + fixture("qwen2_moe"))["layers"][0]["shared_expert"],
            (json{{"module", gated}, {"width", 16}, {"gate", gated + "_gate.weight"}}));
  EXPECT_EQ(document_of("inspect " + fixture("granitemoeshared"))["layers"][0]["shared_expert"],
            (json{{"module", "model.layers.0.shared_mlp"}, {"width", 16}, {"gate", nullptr}}));
  const json latent = document_of("inspect " + fixture("nemotron_h_latent"))["layers"][0];
  const std::string mixer = "backbone.layers.0.mixer.";
  EXPECT_EQ(latent["sizes"]["hidden"], 16);
  EXPECT_EQ(latent["shared_expert"]["width"], 56);
  EXPECT_EQ(latent["latent"], (json{{"width", 16},
                                    {"hidden", 32},
                                    {"down", mixer + "fc1_latent_proj.weight"},
                                    {"up", mixer + "fc2_latent_proj.weight"}}));
}

TEST(InspectText, NamesWhatRunsBeside) {
  const CommandResult result = perch_command("inspect " + fixture("nemotron_h_latent"));
  EXPECT_TRUE(says(result.out,
                   "beside backbone.layers.0.mixer.experts: shared expert "
                   "backbone.layers.0.mixer.shared_experts I 56; latent 16 of 32 through "
                   "backbone.layers.0.mixer.fc1_latent_proj.weight and "));
}

// Both orientations of the same model, each decided by metadata.
TEST(InspectJson, OrientationAndWhatDecidedIt) {
  const json v4 = document_of("inspect " + fixture("qwen3_vl_moe_v4"))["layers"][0];
  const json v5 = document_of("inspect " + fixture("qwen3_vl_moe_v5"))["layers"][0];
  EXPECT_EQ(v4["orientation"]["value"], "transposed");
  EXPECT_EQ(v5["orientation"]["value"], "native");
  EXPECT_TRUE(says(v4["orientation"]["decided_by"], "transformers_version \"4"));
  EXPECT_TRUE(says(v5["orientation"]["decided_by"], "transformers_version \"5"));
  EXPECT_EQ(v4["sizes"], v5["sizes"]);
}

const std::vector<std::string> kCandidateKeys = {"backend", "variant", "kernel", "device",
                                                 "verdict", "caps",    "reasons"};

void expect_candidates(const json& layer) {
  std::set<std::string> backends;
  for (const json& candidate : layer["candidates"]) {
    expect_keys(candidate, kCandidateKeys);
    backends.insert(candidate["backend"].get<std::string>());
    const bool yes = candidate["verdict"] == "yes";
    EXPECT_EQ(candidate["reasons"].empty(), yes) << candidate;
    for (const json& reason : candidate["reasons"]) expect_keys(reason, {"code", "field", "text"});
  }
  EXPECT_EQ(backends.count("reference"), 1U);
  EXPECT_EQ(backends.count("humming-cpu"), 1U);
}

TEST(ExplainJson, OfAModelAndOfACase) {
  const std::string cases[] = {fixture("ct_int4"),
                               "'moe t4 e8 top2 h64 i96 w=int4g32:bf16+z a=int8t act=silu'",
                               "'linear t16 n256 k128 w=e4m3b128:f32'"};
  for (const std::string& what : cases) {
    SCOPED_TRACE(what);
    const json document = document_of("explain " + what);
    expect_keys(document, {"layers", "config"});
    for (const json& layer : document["layers"]) {
      expect_keys(layer, {"layer", "kind", "recipe", "chosen", "candidates", "rule"});
      expect_candidates(layer);
    }
  }
}

// The effective config, each value with its origin.
TEST(ExplainJson, ConfigWithOrigins) {
  const json config = document_of("explain " + fixture("mixtral") + " --threads 2 --config " +
                                  PERCH_SOURCE_DIR "/configs/reference.yaml")["config"];
  EXPECT_TRUE(says(config.dump(), "reference.yaml:"));
  EXPECT_TRUE(says(config.dump(), "\"default\""));
}

TEST(RunJson, HasItsKeys) {
  for (const char* name : {"qwen3_moe", "ct_int4_asym"}) {
    const json document = document_of("run " + fixture(name) + " --expect " + expectation(name));
    expect_keys(document, {"ok", "layers"});
    std::set<std::string> kinds;
    for (const json& layer : document["layers"]) {
      expect_keys(layer, {"name", "kind", "recipe", "backend", "variant", "kernel", "device",
                          "caps", "candidates", "bytes", "time_ms", "gbps", "error"});
      expect_keys(layer["bytes"], {"packed", "workspace", "checkpoint"});
      expect_keys(layer["time_ms"], {"median", "min", "runs"});
      expect_keys(layer["error"], {"against", "worst_ratio", "worst_row", "worst_row_l2"});
      EXPECT_GT(layer["bytes"]["packed"].get<int64_t>(), 0);
      EXPECT_GT(layer["bytes"]["checkpoint"].get<int64_t>(), 0);
      EXPECT_GT(layer["time_ms"]["median"].get<double>(), 0.0);
      EXPECT_FALSE(layer["caps"].empty());
      expect_candidates(layer);
      kinds.insert(layer["kind"].get<std::string>());
    }
    EXPECT_EQ(kinds.count("moe"), 1U);
    if (std::string(name) == "ct_int4_asym") {
      EXPECT_EQ(kinds.count("linear"), 1U);
    }
  }
}

TEST(RunJson, WithoutAComparisonErrorIsNull) {
  const json document = document_of("run " + fixture("mixtral") + " --tokens 3");
  for (const json& layer : document["layers"]) {
    EXPECT_TRUE(layer["error"].is_null());
    EXPECT_EQ(layer["tokens"], 3);
  }
}

TEST(RunJson, ZeroTokens) {
  const json document = document_of("run " + fixture("mixtral") + " --tokens 0");
  EXPECT_EQ(document["ok"], true);
}

TEST(RunOutput, IsASafetensorsFileThatCanBeExpected) {
  const TempDir folder;
  const std::string out = folder / "y.safetensors";
  const std::string model = fixture("granite_moe");
  ASSERT_EQ(perch_command("run " + model + " --input " + expectation("granite_moe") +
                          " --dtype f32 --output " + out)
                .code,
            0);
  const TensorFile written(out);
  const TensorFile expect(expectation("granite_moe"));
  EXPECT_EQ(written.names_ending(".output"), expect.names_ending(".output"));
  for (const std::string& name : written.names_ending(".output")) {
    EXPECT_EQ(written.shape(name), expect.shape(name));
    EXPECT_EQ(written.bytes(name), expect.bytes(name));
  }
}

TEST(RouteJson, HasItsKeys) {
  const json document = document_of("route " + fixture("deepseek_v3") + " --tokens 4");
  expect_keys(document, {"ok", "layers"});
  for (const json& layer : document["layers"]) {
    expect_keys(layer, {"name", "ids", "weights"});
    EXPECT_EQ(layer["ids"].size(), 4U);
    EXPECT_EQ(layer["weights"].size(), 4U);
    EXPECT_EQ(layer["ids"][0].size(), layer["weights"][0].size());
  }
}

// ---- For people
// ----------------------------------------------------------------------------------

// In a pipe: no progress line, no escape codes.
TEST(Pipe, HasNoProgress) {
  for (const std::string& command :
       {"run " + fixture("qwen3_moe"), "inspect " + fixture("qwen3_moe"), std::string("list"),
        "route " + fixture("qwen3_moe")}) {
    const CommandResult result = perch_command(command);
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_EQ(result.err, "") << command;
    EXPECT_EQ(result.out.find('\r'), std::string::npos) << command;
    EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << command;
    EXPECT_NE(result.out, "") << command;
  }
}

TEST(Help, OfEverySubcommand) {
  for (const char* command : {"", "list", "inspect", "explain", "run", "route", "synth"}) {
    const CommandResult result = perch_command(std::string(command) + " --help");
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_NE(result.out, "") << command;
  }
}

}  // namespace
}  // namespace perch::test
