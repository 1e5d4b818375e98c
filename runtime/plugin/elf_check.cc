#include "plugin/elf_check.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <system_error>
#include <vector>

namespace perch {
namespace {

using Header = ElfW(Ehdr);
using Segment = ElfW(Phdr);
using Section = ElfW(Shdr);

constexpr unsigned char kClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
constexpr unsigned char kByteOrder =
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
#if defined(__x86_64__)
constexpr unsigned kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr unsigned kMachine = EM_RISCV;
#elif defined(__powerpc64__)
constexpr unsigned kMachine = EM_PPC64;
#else
constexpr unsigned kMachine = EM_NONE;  // any: the dynamic linker then decides
#endif

constexpr uint64_t kNoteBytesMax = uint64_t{64} * 1024;  // a build-id note has some 36

class File {
 public:
  // Nonblocking, so that a FIFO does not hold us up before it is seen to be one.
  explicit File(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }

  bool read_at(uint64_t offset, void* to, size_t size) const {
    size_t done = 0;
    while (done < size) {
      const ssize_t got =
          pread(fd_, static_cast<char*>(to) + done, size - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  }

 private:
  int fd_;
};

std::string machine_name(unsigned machine) {
  switch (machine) {
    case EM_386:
      return "x86 (32 bit)";
    case EM_X86_64:
      return "x86-64";
    case EM_ARM:
      return "Arm (32 bit)";
    case EM_AARCH64:
      return "AArch64";
    case EM_RISCV:
      return "RISC-V";
    case EM_PPC64:
      return "PowerPC64";
    case EM_S390:
      return "s390";
    default:
      return fmt::format("machine {}", machine);
  }
}

Status check_header(const Header& header) {
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return invalid_argument("not an ELF file; want a shared library");
  }
  if (header.e_ident[EI_CLASS] != kClass) {
    return unsupported(fmt::format("built for {} bits; this process has {}",
                                   header.e_ident[EI_CLASS] == ELFCLASS32 ? 32 : 64,
                                   kClass == ELFCLASS32 ? 32 : 64));
  }
  if (header.e_ident[EI_DATA] != kByteOrder) {
    return unsupported("built for the other byte order");
  }
  if (kMachine != EM_NONE && header.e_machine != kMachine) {
    return unsupported(fmt::format("built for {}; this process runs on {}",
                                   machine_name(header.e_machine), machine_name(kMachine)));
  }
  if (header.e_type != ET_DYN) {
    const char* kind = header.e_type == ET_REL    ? "an object file"
                       : header.e_type == ET_EXEC ? "a program"
                       : header.e_type == ET_CORE ? "a core dump"
                                                  : "an ELF file of another type";
    return invalid_argument(fmt::format("{}; want a shared library", kind));
  }
  if (header.e_version != EV_CURRENT || header.e_phentsize != sizeof(Segment)) {
    return invalid_argument("damaged ELF header");
  }
  return {};
}

bool fits(uint64_t offset, uint64_t size, uint64_t file_bytes) {
  return offset <= file_bytes && size <= file_bytes - offset;
}

Status truncated(const char* what, uint64_t offset, uint64_t size, uint64_t file_bytes) {
  return invalid_argument(fmt::format("truncated: {} lies at {} + {} bytes, the file has {}", what,
                                      offset, size, file_bytes));
}

// The build id in one PT_NOTE segment, or "". Notes: name size, description size, type, then both
// texts padded to the segment's alignment.
std::string find_build_id(const std::vector<unsigned char>& notes, uint64_t align) {
  const size_t step = align == 8 ? 8 : 4;
  const auto padded = [step](size_t size) { return (size + step - 1) / step * step; };
  size_t at = 0;
  while (notes.size() - at >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data() + at, sizeof(note));
    at += sizeof(note);
    const size_t name = padded(note.n_namesz);
    const size_t description = padded(note.n_descsz);
    if (name > notes.size() - at || description > notes.size() - at - name) return "";
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes.data() + at, "GNU", 4) == 0) {
      std::string hex;
      for (size_t i = 0; i < note.n_descsz; ++i) {
        hex += fmt::format("{:02x}", notes[at + name + i]);
      }
      return hex;
    }
    at += name + description;
  }
  return "";
}

Result<ElfFacts> read_segments(const File& file, const Header& header, uint64_t file_bytes) {
  const uint64_t table_bytes = uint64_t{header.e_phnum} * sizeof(Segment);
  if (!fits(header.e_phoff, table_bytes, file_bytes)) {
    return truncated("the program header table", header.e_phoff, table_bytes, file_bytes);
  }
  std::vector<Segment> segments(header.e_phnum);
  if (!file.read_at(header.e_phoff, segments.data(), table_bytes)) {
    return Status(PERCH_E_INTERNAL, "cannot be read");
  }
  ElfFacts facts;
  for (const Segment& segment : segments) {
    if (segment.p_type != PT_LOAD && segment.p_type != PT_DYNAMIC && segment.p_type != PT_NOTE) {
      continue;
    }
    if (!fits(segment.p_offset, segment.p_filesz, file_bytes)) {
      return truncated("a segment", segment.p_offset, segment.p_filesz, file_bytes);
    }
    if (segment.p_type == PT_NOTE && facts.build_id.empty() && segment.p_filesz <= kNoteBytesMax) {
      std::vector<unsigned char> notes(segment.p_filesz);
      if (file.read_at(segment.p_offset, notes.data(), notes.size())) {
        facts.build_id = find_build_id(notes, segment.p_align);
      }
    }
  }
  return facts;
}

}  // namespace

Result<ElfFacts> check_elf(const std::string& path) {
  const File file(path);
  struct stat info {};
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0) {
    const int code = errno;
    return Status(code == EACCES ? PERCH_E_PERMISSION : PERCH_E_NOT_FOUND,
                  "cannot be opened: " + std::generic_category().message(code));
  }
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(S_ISDIR(info.st_mode) ? "is a directory; want a shared library"
                                                  : "is not a regular file");
  }
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  if (file_bytes == 0) return invalid_argument("is empty; want a shared library");

  Header header{};
  const size_t head = file_bytes < sizeof(header) ? file_bytes : sizeof(header);
  if (!file.read_at(0, &header, head)) return Status(PERCH_E_INTERNAL, "cannot be read");
  if (head < SELFMAG || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return invalid_argument("not an ELF file; want a shared library");
  }
  if (head < sizeof(header)) return truncated("the ELF header", 0, sizeof(header), file_bytes);
  PERCH_RETURN_IF_ERROR(check_header(header));

  // The section table stands at the end of the file and no loader needs it: when it is cut off, so
  // was the copy, and who knows what else.
  const uint64_t sections_bytes = uint64_t{header.e_shnum} * sizeof(Section);
  if (header.e_shoff != 0 && !fits(header.e_shoff, sections_bytes, file_bytes)) {
    return truncated("the section header table", header.e_shoff, sections_bytes, file_bytes);
  }
  return read_segments(file, header, file_bytes);
}

}  // namespace perch
