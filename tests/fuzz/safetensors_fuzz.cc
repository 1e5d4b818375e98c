// The safetensors reader: once with the bytes as they are, once with their header made consistent.
//
// A header of another length needs another length field and other data; a fuzzer that has to hit
// all three at once seldom gets behind the first. So the second run counts the header itself and
// gives it as much data as the header's last number says.
#include <map>
#include <string>

#include "checkpoint/safetensors.h"
#include "fuzz.h"
#include "mutate.h"

namespace perch::fuzz {
namespace {

constexpr std::string_view kWords[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ":",
                                       ",",
                                       "\"",
                                       "null",
                                       "true",
                                       "0",
                                       "1",
                                       "-1",
                                       "1e2",
                                       "\\u0061",
                                       "\\ud800",
                                       " ",
                                       "dtype",
                                       "shape",
                                       "data_offsets",
                                       "__metadata__",
                                       "BOOL",
                                       "U8",
                                       "I8",
                                       "F8_E4M3",
                                       "F4",
                                       "F6_E2M3",
                                       "BF16",
                                       "F16",
                                       "I16",
                                       "F32",
                                       "I32",
                                       "U32",
                                       "F64",
                                       "I64",
                                       "C64",
                                       "2",
                                       "3",
                                       "4",
                                       "8",
                                       "12",
                                       "18446744073709551615"};

constexpr size_t kLengthBytes = 8;
constexpr size_t kDataBytesMax = 4096;

void check_tensor(const RawTensor& tensor, const std::byte* begin, const std::byte* end) {
  PERCH_FUZZ_CHECK(tensor.bytes >= 0 && tensor.data >= begin);
  PERCH_FUZZ_CHECK(tensor.bytes <= end - tensor.data);
  __extension__ using Wide = __int128;
  Wide bits = raw_dtype_bits(tensor.dtype);
  for (const int64_t dim : tensor.shape) {
    PERCH_FUZZ_CHECK(dim >= 0);
    bits *= dim;
  }
  PERCH_FUZZ_CHECK(bits == Wide{8} * tensor.bytes);
  unsigned sum = 0;
  for (int64_t i = 0; i < tensor.bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
  [[maybe_unused]] const volatile unsigned read = sum;
}

void read_file(std::span<const std::byte> file) {
  std::map<std::string, std::string> metadata;
  const Result<std::vector<RawTensor>> tensors = parse_safetensors(file, "fuzz", &metadata);
  if (!tensors.ok()) {
    PERCH_FUZZ_CHECK(tensors.status().message().rfind("fuzz: ", 0) == 0);
    return;
  }
  accept();
  const std::byte* end = file.data() + file.size();
  const std::byte* next = nullptr;
  for (const RawTensor& tensor : *tensors) {
    check_tensor(tensor, file.data() + kLengthBytes, end);
    PERCH_FUZZ_CHECK(next == nullptr || tensor.data == next);
    next = tensor.data + tensor.bytes;
  }
  PERCH_FUZZ_CHECK(next == nullptr || next == end);
  PERCH_FUZZ_BUG(metadata.count("") != 0 && !tensors->empty());
}

// The last number in `text`, 0 where it has none or one above kDataBytesMax.
size_t last_number(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t last = text.find_last_of(kDigits);
  if (last == std::string_view::npos) return 0;
  const size_t before = text.find_last_not_of(kDigits, last);
  size_t number = 0;
  for (size_t i = before == std::string_view::npos ? 0 : before + 1; i <= last; ++i) {
    number = number * 10 + static_cast<size_t>(text[i] - '0');
    if (number > kDataBytesMax) return 0;
  }
  return number;
}

void fuzz_safetensors(Bytes bytes) {
  read_file(std::as_bytes(bytes));
  if (bytes.size() <= kLengthBytes) return;
  std::string_view header = text_of(bytes.subspan(kLengthBytes));
  header = header.substr(0, header.rfind('}') + 1);  // all of it where there is none
  const std::span<const std::byte> text = std::as_bytes(std::span(header));
  const size_t size = kLengthBytes + text.size() + last_number(header);
  const auto file = std::make_unique<std::byte[]>(size);
  for (size_t i = 0; i < kLengthBytes; ++i) {
    file[i] = static_cast<std::byte>(static_cast<uint64_t>(text.size()) >> (8 * i));
  }
  std::copy(text.begin(), text.end(), file.get() + kLengthBytes);
  read_file({file.get(), size});
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TEXT_TARGET(safetensors, perch::fuzz::fuzz_safetensors, perch::fuzz::kWords);
