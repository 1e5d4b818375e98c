#include "bench/limits/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

namespace perch_bench {
namespace {

constexpr int64_t kLeastBytes = int64_t{16} << 20;
constexpr int64_t kMostBytes = int64_t{256} << 20;
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kAlign = 4096;  // of addresses, offsets and lengths with O_DIRECT

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : number_(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

double disk_read_gbps(const std::string& path) {
  const Descriptor file(path);
  struct stat status {};
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0) return 0;
  const int64_t wanted = std::min<int64_t>(status.st_size, kMostBytes);
  if (wanted < kLeastBytes) return 0;
  const std::unique_ptr<void, void (*)(void*)> piece(std::aligned_alloc(kAlign, kPieceBytes),
                                                     std::free);
  if (piece == nullptr) return 0;
  const auto begin = std::chrono::steady_clock::now();
  int64_t done = 0;
  while (done < wanted) {
    const ssize_t got = ::read(file.number(), piece.get(), kPieceBytes);
    if (got <= 0) return 0;
    done += got;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(done) / seconds.count() / 1e9;
}

}  // namespace perch_bench
