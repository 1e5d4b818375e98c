#include "checkpoint/raw_tensor.h"

#include "checkpoint/mapped_file.h"

namespace perch {

std::string file_prefix(const RawTensor& tensor) {
  return tensor.file == nullptr ? "" : tensor.file->path() + ": ";
}

std::string tensor_label(const RawTensor& tensor) {
  return file_prefix(tensor) + "tensor " + quoted_name(tensor.name);
}

}  // namespace perch
