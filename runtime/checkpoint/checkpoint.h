// A checkpoint folder, or one safetensors file -> its named raw tensors, mapped and not copied.
//
// Not a model: no name is understood here and no config is parsed; step 3 (canonical/) does both.
// This is step 2, checkpoint, as the rest of the runtime sees it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/raw_tensor.h"

namespace perch {

// Movable: tensors point into the mappings, which stay where they are. They die with it.
struct Checkpoint {
  // The folder, also of a single file ("." if the path has none); empty for a host's own tensors.
  std::string dir;
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<RawTensor> tensors;  // sorted by name, each name once
  std::string config_json;         // the text of config.json; empty for a single file
  // The text of the quantization configs beside it that exist: hf_quant_config.json,
  // quantize_config.json, quant_config.json, by file name.
  std::map<std::string, std::string> extra_json;
  std::vector<std::string> warnings;  // what was ignored, one line each

  // The tensor of that name, or null.
  const RawTensor* find(std::string_view name) const;
};

// Opens a checkpoint folder; a path to a file is passed to open_tensor_file(). The weights are, in
// this order of preference:
//   1. the shards that model.safetensors.index.json lists. The index decides which shard a tensor
//   is
//      read from; a tensor it does not place there is ignored, with a warning.
//   2. model.safetensors.
//   3. model-*.safetensors, all of them. A tensor in two shards is an error, and so is a gap in
//      model-<i>-of-<n>.safetensors.
// Other *.safetensors files (expected outputs, adapters, another export) never count: a folder may
// hold tensors that are no part of the model, under the same names.
Result<Checkpoint> open_checkpoint(const std::string& dir);

// A refusal of what is in the checkpoint, with the folder in front unless it begins with one of its
// files: "dir: config.json: hidden_size: missing", "dir/model.safetensors: tensor ...".
Status in_folder(const Checkpoint& checkpoint, const Status& status);

// One safetensors file of any name, without configs.
Result<Checkpoint> open_tensor_file(const std::string& path);

}  // namespace perch
