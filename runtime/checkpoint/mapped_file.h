// A file mapped read-only: the bytes that every RawTensor of step 2, checkpoint, points into.
//
// Not a copy and not a lock: a file that somebody shortens while it is mapped raises SIGBUS at the
// next touch of a lost page. Checkpoints must be replaced by rename, never rewritten in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace perch {

class MappedFile {
 public:
  // PERCH_E_NOT_FOUND, PERCH_E_PERMISSION or PERCH_E_INVALID_ARGUMENT (not a regular file), with
  // the path in the message. An empty file is fine and has no bytes.
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::span<const std::byte> bytes_;
};

// Gives back the memory of the pages that lie wholly inside `bytes` of a mapped file: called when a
// tensor was packed, so that loading does not hold source and result together. They stay readable,
// as the pages come back from the file. Never for other memory: there it would lose the contents.
void release_pages(std::span<const std::byte> bytes);

}  // namespace perch
