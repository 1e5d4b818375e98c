// MappedFile over POSIX open, fstat and mmap. Part of step 2, checkpoint; not a general file
// library: read-only, whole file, one mapping.
#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace perch {
namespace {

Status file_error(int error, std::string_view call, const std::string& path) {
  if (error == ENOENT || error == ENOTDIR) return not_found(path + ": not found");
  const perch_status code = error == EACCES || error == EPERM ? PERCH_E_PERMISSION
                            : error == ENOMEM                 ? PERCH_E_OUT_OF_MEMORY
                                                              : PERCH_E_INVALID_ARGUMENT;
  return {code, path + ": " + std::string(call) + ": " + std::strerror(error)};
}

// Maps the open file `fd`; the mapping outlives the descriptor.
Result<std::span<const std::byte>> map_descriptor(int fd, const std::string& path) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return file_error(errno, "fstat", path);
  if (!S_ISREG(info.st_mode)) return invalid_argument(path + ": not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return std::span<const std::byte>();  // mmap refuses a length of 0
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (memory == MAP_FAILED) return file_error(errno, "mmap", path);
  return std::span<const std::byte>(static_cast<const std::byte*>(memory), size);
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: a FIFO in the place of a file must be refused, not waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return file_error(errno, "open", path);
  const Result<std::span<const std::byte>> bytes = map_descriptor(fd, path);
  ::close(fd);
  if (!bytes.ok()) return bytes.status();
  return std::unique_ptr<MappedFile>(new MappedFile(path, *bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void release_pages(std::span<const std::byte> bytes) {
  // Inwards to page borders: the neighbours on a shared page may still be in use.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + bytes.size()) / page * page;
  if (first >= last) return;
  // A hint: the bytes are right whether or not the kernel takes it.
  (void)madvise(const_cast<std::byte*>(bytes.data()) + (first - begin), last - first,
                MADV_DONTNEED);
}

}  // namespace perch
