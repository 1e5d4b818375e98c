#include "safetensors_writer.h"

#include <fmt/format.h>

#include <filesystem>

#include "command.h"

namespace perch_command {

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<OutputTensor>& tensors)
    : path_(path), file_(path, std::ios::binary) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (const OutputTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();
  file_.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file_.write(text.data(), static_cast<std::streamsize>(size));
  missing_ = offset;
}

void SafetensorsWriter::append(const void* data, uint64_t bytes) {
  file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  missing_ -= bytes;
}

void SafetensorsWriter::close() {
  file_.close();
  if (file_.fail() || missing_ != 0) {
    throw Failure(kExitBadInput, fmt::format("{}: could not be written", path_));
  }
}

void refuse_to_overwrite(const std::string& output, const std::vector<std::string>& sources) {
  for (const std::string& source : sources) {
    std::error_code ignored;
    if (output.empty() || source.empty() || !std::filesystem::equivalent(output, source, ignored)) {
      continue;
    }
    throw Failure(kExitBadInput,
                  fmt::format("--output: got {}, which is being read; want another file", output));
  }
}

}  // namespace perch_command
