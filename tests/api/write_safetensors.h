// A safetensors file of given tensors, written plainly: a header, then the bytes one behind
// another.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace perch::test {

struct FileTensor {
  std::string name;
  std::string dtype;  // "BF16"
  std::vector<int64_t> shape;
  const std::vector<uint8_t>* bytes;
};

inline void write_safetensors(const std::string& path, const std::vector<FileTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  uint64_t offset = 0;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes->size()}}};
    offset += tensor.bytes->size();
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << text;
  for (const FileTensor& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.bytes->data()),
               static_cast<std::streamsize>(tensor.bytes->size()));
  }
}

}  // namespace perch::test
