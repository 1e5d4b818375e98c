// The tensor rules: a DLTensor with any fields. One that passes must lie where it says, which a
// second computation in 128 bits and a buffer of exactly that extent hold it to.
//
// Input: what is wanted (elements, ndim, flags, align, device, dims), then the tensor (dtype,
// device, ndim, pointer, offset, dims, strides), in the order of forge().
#include <cstdlib>
#include <string>

#include "base/tensor_rules.h"
#include "fuzz.h"

namespace perch::fuzz {
namespace {

__extension__ using Wide = __int128;

constexpr int32_t kNdimMax = 8;
constexpr int64_t kExtentMax = 1 << 12;  // bytes, of what is really read

struct Forged {
  DLTensor tensor{};
  uint64_t flags = 0;
  TensorWant want;
  std::unique_ptr<int64_t[]> wanted, shape, strides;
};

std::unique_ptr<int64_t[]> take_dims(Reader& in, int32_t count) {
  auto dims = std::make_unique<int64_t[]>(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) dims[static_cast<size_t>(i)] = in.take_size();
  return dims;
}

// Bits of `mode`: 1 wanted shape, 2 written, 4 row strided, 8 null shape, 16 strides, 32 another
// device, 64 another ndim.
Forged forge(Reader& in) {
  Forged forged;
  TensorWant& want = forged.want;
  DLTensor& tensor = forged.tensor;
  const auto mode = in.take<uint8_t>();
  want.function = "fuzz";
  want.argument = "tensor";
  want.elements = in.take<uint8_t>();
  want.ndim = in.take<uint8_t>() % (kNdimMax + 1);
  want.align = uint32_t{1} << (in.take<uint8_t>() % 13);
  want.written = (mode & 2) != 0;
  want.row_strided = (mode & 4) != 0;
  forged.flags = in.take<uint8_t>();
  if ((mode & 1) != 0) forged.wanted = take_dims(in, want.ndim);
  for (int32_t i = 0; i < want.ndim && forged.wanted != nullptr; ++i) {
    int64_t& dim = forged.wanted[static_cast<size_t>(i)];
    if (dim == 239) dim = -1;
  }
  want.shape = forged.wanted.get();

  tensor.dtype = {in.take<uint8_t>(), in.take<uint8_t>(), in.take<uint8_t>()};
  int32_t device[2] = {kDLCPU, 0};
  if ((mode & 32) != 0) device[0] = in.take<int32_t>(), device[1] = in.take<int8_t>();
  std::memcpy(&tensor.device, device, sizeof(device));  // any number is no value of that enum
  tensor.ndim = (mode & 64) != 0 ? in.take<int32_t>() : want.ndim;
  tensor.byte_offset = static_cast<uint64_t>(in.take_size());
  tensor.data = reinterpret_cast<void*>(in.take_size());
  const int32_t dims = std::clamp(tensor.ndim, 0, kNdimMax);
  if ((mode & 8) == 0) forged.shape = take_dims(in, dims);
  if ((mode & 16) != 0) forged.strides = take_dims(in, dims);
  tensor.shape = forged.shape.get();
  tensor.strides = forged.strides.get();
  return forged;
}

bool is_empty(const Forged& forged) {
  for (int32_t i = 0; i < forged.want.ndim; ++i) {
    if (forged.tensor.shape[i] == 0) return true;
  }
  return false;
}

// What the checker says of a tensor that passed, against the tensor. Returns its bytes.
Wide check_extent(const Forged& forged, const NormalTensor& out) {
  const DLTensor& tensor = forged.tensor;
  const bool empty = is_empty(forged);
  Wide last = 0;
  Wide regular = 1;
  for (int32_t i = forged.want.ndim - 1; i >= 0; --i) {
    const int64_t dim = tensor.shape[i];
    PERCH_FUZZ_CHECK(dim >= 0 && out.shape[i] == dim);
    PERCH_FUZZ_CHECK(forged.wanted == nullptr || forged.want.shape[i] < 0 ||
                     forged.want.shape[i] == dim);
    // The strides of a tensor without elements, or of one row, mean nothing.
    const bool told = tensor.strides != nullptr && dim > 1 && !empty;
    const Wide stride = told ? tensor.strides[i] : regular;
    PERCH_FUZZ_CHECK(out.strides[i] == stride && stride >= regular);
    last += (dim - 1) * stride;
    regular = stride * std::max<int64_t>(dim, 1);
  }
  PERCH_FUZZ_CHECK(out.tensor.shape == out.shape && out.tensor.strides == out.strides);
  PERCH_FUZZ_CHECK(out.tensor.byte_offset == 0 && out.tensor.dtype.lanes == 1);
  if (empty) return 0;
  const Wide bytes = ((last + 1) * tensor.dtype.bits + 7) / 8;
  const Wide begin = Wide{reinterpret_cast<uintptr_t>(tensor.data)} + tensor.byte_offset;
  PERCH_FUZZ_CHECK(tensor.data != nullptr && out.begin == begin && out.end == begin + bytes);
  PERCH_FUZZ_CHECK(reinterpret_cast<uintptr_t>(out.tensor.data) == out.begin);
  PERCH_FUZZ_CHECK(out.begin % forged.want.align == 0);
  return bytes;
}

// Reads every element through the checker's strides.
unsigned read_elements(const NormalTensor& out, int32_t dim, int64_t element) {
  unsigned sum = 0;
  if (dim < out.tensor.ndim) {
    for (int64_t i = 0; i < out.shape[dim]; ++i) {
      sum += read_elements(out, dim + 1, element + i * out.strides[dim]);
    }
    return sum;
  }
  const int64_t bits = out.tensor.dtype.bits;
  const auto* bytes = static_cast<const uint8_t*>(out.tensor.data) + element * bits / 8;
  for (int64_t i = 0; i < std::max<int64_t>(1, bits / 8); ++i) sum += bytes[i];
  return sum;
}

// The same tensor in memory of exactly `bytes`: accepted again, and every element inside.
void check_memory(Forged& forged, size_t bytes) {
  void* memory = nullptr;
  const size_t align = std::max<size_t>(forged.want.align, sizeof(void*));
  if (posix_memalign(&memory, align, bytes) != 0) return;
  const std::unique_ptr<void, void (*)(void*)> owned(memory, std::free);
  std::memset(memory, 1, bytes);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  if (forged.tensor.byte_offset >= begin) return;  // there is no such pointer
  forged.tensor.data = reinterpret_cast<void*>(begin - forged.tensor.byte_offset);
  NormalTensor out;
  PERCH_FUZZ_CHECK(check_tensor(&forged.tensor, forged.flags, forged.want, &out).ok());
  PERCH_FUZZ_CHECK(out.begin == begin && out.end == begin + bytes);
  PERCH_FUZZ_CHECK(read_elements(out, 0, 0) > 0);
}

void fuzz_tensor_view(Bytes bytes) {
  Reader in(bytes);
  Forged forged = forge(in);
  NormalTensor out;
  const Status status = check_tensor(&forged.tensor, forged.flags, forged.want, &out);
  if (!status.ok()) {
    PERCH_FUZZ_CHECK(status.code() == PERCH_E_INVALID_ARGUMENT);
    PERCH_FUZZ_CHECK(status.message().rfind("fuzz: tensor: ", 0) == 0);
    return;
  }
  accept();
  const Wide extent = check_extent(forged, out);
  if (extent > 0 && extent <= kExtentMax) check_memory(forged, static_cast<size_t>(extent));
  PERCH_FUZZ_BUG(extent > 3000 && forged.wanted != nullptr);
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TARGET(tensor_view, perch::fuzz::fuzz_tensor_view);
