// Writes safetensors files: `perch synth` and `perch run --output`.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace perch_command {

struct OutputTensor {
  std::string name;
  std::string dtype;  // of the format: "BF16", "I32"
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};

// Writes the header of all tensors first, then takes their data in the same order, so that a file
// larger than memory can be written. Throws Failure on any I/O error; close() says the last word.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<OutputTensor>& tensors);
  void append(const void* data, uint64_t bytes);
  void close();

 private:
  std::string path_;
  std::ofstream file_;
  uint64_t missing_ = 0;  // bytes not yet appended
};

// Failure when `output` is one of the files that are being read.
void refuse_to_overwrite(const std::string& output, const std::vector<std::string>& sources);

}  // namespace perch_command
