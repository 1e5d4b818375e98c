// perch_tensors_*, perch_tensor_check, and the import of DLPack's managed tensors.
#include <fmt/format.h>

#include "api.h"
#include "api_tensors.h"
#include "base/tensor_rules.h"

namespace perch {
namespace {

// DLPack 1.x's DLManagedTensorVersioned, declared here because older headers lack it.
struct ManagedVersioned {
  uint32_t major;
  uint32_t minor;
  void* manager_ctx;
  void (*deleter)(ManagedVersioned* self);
  uint64_t flags;
  DLTensor tensor;
};
static_assert(sizeof(ManagedVersioned) == 80, "layout of DLManagedTensorVersioned");

// The DLPack type of a safetensors dtype; bits 0 where DLPack has none.
DLDataType dtype_of(RawDtype dtype) {
  const auto bits = static_cast<uint8_t>(raw_dtype_bits(dtype));
  switch (dtype) {
    case RawDtype::kBool:
      return {PERCH_DL_BOOL, 8, 1};
    case RawDtype::kU8:
    case RawDtype::kU16:
    case RawDtype::kU32:
    case RawDtype::kU64:
      return {kDLUInt, bits, 1};
    case RawDtype::kI8:
    case RawDtype::kI16:
    case RawDtype::kI32:
    case RawDtype::kI64:
      return {kDLInt, bits, 1};
    case RawDtype::kF16:
    case RawDtype::kF32:
    case RawDtype::kF64:
      return {kDLFloat, bits, 1};
    case RawDtype::kBF16:
      return {kDLBfloat, 16, 1};
    case RawDtype::kF8E4M3:
      return {PERCH_DL_F8_E4M3FN, 8, 1};
    case RawDtype::kF8E5M2:
      return {PERCH_DL_F8_E5M2, 8, 1};
    case RawDtype::kF8E8M0:
      return {PERCH_DL_F8_E8M0FNU, 8, 1};
    case RawDtype::kF4:
      return {PERCH_DL_F4_E2M1FN, 4, 1};
    default:
      return {kDLOpaqueHandle, bits, 1};
  }
}

Status import_tensor(const DLTensor& tensor, uint64_t flags, perch_tensor* out) {
  out->named = {"", &out->tensor, flags};
  out->tensor = tensor;
  if (tensor.ndim < 0 || tensor.ndim > 8 || (tensor.ndim > 0 && tensor.shape == nullptr)) {
    return invalid_argument(
        fmt::format("perch_import_dlpack: ndim: got {} with shape {}; want 0 "
                    "to 8 with a shape",
                    tensor.ndim, tensor.shape == nullptr ? "NULL" : "set"));
  }
  return {};
}

}  // namespace

std::optional<RawDtype> raw_dtype_of(DLDataType dtype) {
  for (size_t i = 0; i < kRawDtypes.size(); ++i) {
    const auto raw = static_cast<RawDtype>(i);
    const DLDataType own = dtype_of(raw);
    if (own.code == dtype.code && own.bits == dtype.bits && dtype.lanes == 1 &&
        own.code != kDLOpaqueHandle) {
      return raw;
    }
  }
  return std::nullopt;
}

void TensorList::add(std::string name, DLDataType dtype, std::vector<int64_t> shape,
                     const void* data) {
  auto entry = std::make_unique<Entry>();
  entry->name = std::move(name);
  entry->shape = std::move(shape);
  entry->strides.assign(entry->shape.size(), 1);
  for (size_t i = entry->shape.size(); i-- > 1;) {
    entry->strides[i - 1] = entry->strides[i] * entry->shape[i];
  }
  entry->tensor.data = const_cast<void*>(data);
  entry->tensor.device = {kDLCPU, 0};
  entry->tensor.ndim = static_cast<int32_t>(entry->shape.size());
  entry->tensor.dtype = dtype;
  entry->tensor.shape = entry->shape.data();
  entry->tensor.strides = entry->strides.data();
  entry->named = {entry->name.c_str(), &entry->tensor, PERCH_TENSOR_READ_ONLY};
  entries.push_back(std::move(entry));
}

void add_raw_tensors(const Checkpoint& checkpoint, TensorList* list) {
  for (const RawTensor& raw : checkpoint.tensors) {
    list->add(raw.name, dtype_of(raw.dtype), raw.shape, raw.data);
  }
}

void add_canonical_tensors(const std::vector<CanonicalTensor>& tensors, TensorList* list) {
  for (const CanonicalTensor& tensor : tensors) {
    list->add(tensor.spec.name, dtype_of(tensor.spec), tensor.spec.shape, tensor.data.data());
  }
}

}  // namespace perch

extern "C" {

perch_status perch_tensors_open(const char* path, perch_tensors** tensors, perch_error* error) {
  return perch::guarded_call(error, "perch_tensors_open", [&]() -> perch::Status {
    if (path == nullptr || tensors == nullptr) {
      return perch::null_argument("perch_tensors_open", path == nullptr ? "path" : "tensors");
    }
    auto opened = std::make_unique<perch_tensors>();
    PERCH_ASSIGN_OR_RETURN(opened->file, perch::open_tensor_file(path));
    perch::add_raw_tensors(opened->file, &opened->list);
    *tensors = opened.release();
    return {};
  });
}

uint32_t perch_tensors_count(const perch_tensors* tensors) {
  return tensors == nullptr ? 0 : static_cast<uint32_t>(tensors->list.entries.size());
}

const perch_named_tensor* perch_tensors_get(const perch_tensors* tensors, uint32_t index) {
  if (index >= perch_tensors_count(tensors)) return nullptr;
  return &tensors->list.entries[index]->named;
}

const perch_named_tensor* perch_tensors_find(const perch_tensors* tensors, const char* name) {
  for (uint32_t i = 0; name != nullptr && i < perch_tensors_count(tensors); ++i) {
    if (tensors->list.entries[i]->name == name) return &tensors->list.entries[i]->named;
  }
  return nullptr;
}

void perch_tensors_destroy(perch_tensors* tensors) { delete tensors; }

perch_status perch_tensor_check(const char* argument, const DLTensor* tensor, uint64_t flags,
                                uint32_t dtype, const int64_t* shape, int32_t ndim,
                                perch_error* error) {
  return perch::guarded_call(error, "perch_tensor_check", [&]() -> perch::Status {
    if (ndim < 0 || ndim > 8) {
      return perch::invalid_argument(
          fmt::format("perch_tensor_check: ndim: got {}; want 0 to 8", ndim));
    }
    perch::TensorWant want;
    want.function = "perch_tensor_check";
    want.argument = argument == nullptr ? "tensor" : argument;
    want.elements = dtype == 0 ? perch::kElementAny : perch::element_of(dtype);
    if (dtype == PERCH_TYPE_INT8) want.elements = perch::kElementU8;
    want.shape = shape;
    want.ndim = ndim;
    perch::NormalTensor normal;
    return perch::check_tensor(tensor, flags, want, &normal);
  });
}

perch_status perch_import_dlpack(void* managed, perch_tensor** tensor, perch_error* error) {
  return perch::guarded_call(error, "perch_import_dlpack", [&]() -> perch::Status {
    if (managed == nullptr) return perch::null_argument("perch_import_dlpack", "managed");
    auto* source = static_cast<DLManagedTensor*>(managed);
    // Owned from here on: its destructor calls the deleter, on failure too.
    auto imported = std::make_unique<perch_tensor>();
    imported->context = managed;
    imported->release = [](void* context) {
      auto* owned = static_cast<DLManagedTensor*>(context);
      if (owned->deleter != nullptr) owned->deleter(owned);
    };
    if (tensor == nullptr) return perch::null_argument("perch_import_dlpack", "tensor");
    PERCH_RETURN_IF_ERROR(perch::import_tensor(source->dl_tensor, 0, imported.get()));
    *tensor = imported.release();
    return {};
  });
}

perch_status perch_import_dlpack_versioned(void* managed, perch_tensor** tensor,
                                           perch_error* error) {
  constexpr const char* kFunction = "perch_import_dlpack_versioned";
  return perch::guarded_call(error, kFunction, [&]() -> perch::Status {
    if (managed == nullptr) return perch::null_argument(kFunction, "managed");
    auto* source = static_cast<perch::ManagedVersioned*>(managed);
    auto imported = std::make_unique<perch_tensor>();
    imported->context = managed;
    imported->release = [](void* context) {
      auto* owned = static_cast<perch::ManagedVersioned*>(context);
      if (owned->deleter != nullptr) owned->deleter(owned);
    };
    if (tensor == nullptr) return perch::null_argument(kFunction, "tensor");
    if (source->major != 1) {
      return {PERCH_E_ABI_MISMATCH,
              fmt::format("{}: version: got {}.{}; want major 1; the tensor was released",
                          kFunction, source->major, source->minor)};
    }
    const uint64_t flags = source->flags & (PERCH_TENSOR_READ_ONLY | PERCH_TENSOR_SUBBYTE_PADDED);
    PERCH_RETURN_IF_ERROR(perch::import_tensor(source->tensor, flags, imported.get()));
    *tensor = imported.release();
    return {};
  });
}

const perch_named_tensor* perch_tensor_view(const perch_tensor* tensor) {
  return tensor == nullptr ? nullptr : &tensor->named;
}

void perch_tensor_release(perch_tensor* tensor) { delete tensor; }

}  // extern "C"
