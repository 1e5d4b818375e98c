// Lists of named tensors as the host API hands them out, and the types behind them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "canonical/read_expert.h"
#include "checkpoint/checkpoint.h"
#include "perch/runtime.h"

namespace perch {

// Views with stable addresses; the memory they show is owned elsewhere.
struct TensorList {
  struct Entry {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
    DLTensor tensor{};
    perch_named_tensor named{};
  };
  std::vector<std::unique_ptr<Entry>> entries;

  void add(std::string name, DLDataType dtype, std::vector<int64_t> shape, const void* data);
};

void add_raw_tensors(const Checkpoint& checkpoint, TensorList* list);
void add_canonical_tensors(const std::vector<CanonicalTensor>& tensors, TensorList* list);
// nullopt for a type that no checkpoint file has.
std::optional<RawDtype> raw_dtype_of(DLDataType dtype);

}  // namespace perch

struct perch_tensors {
  perch::Checkpoint file;            // of perch_tensors_open
  perch::CanonicalExpert canonical;  // of perch_model_tensors
  perch::TensorList list;            // views on one of the two
};

struct perch_tensor {
  perch_tensor() = default;
  ~perch_tensor() {
    if (release != nullptr) release(context);
  }
  perch_tensor(const perch_tensor&) = delete;
  perch_tensor& operator=(const perch_tensor&) = delete;

  DLTensor tensor{};
  perch_named_tensor named{};
  void* context = nullptr;
  void (*release)(void* context) = nullptr;
};
