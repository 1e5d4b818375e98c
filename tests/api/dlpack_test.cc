// perch_import_dlpack: the deleter of what was taken over runs exactly once, whatever happens.
#include "api_rig.h"

namespace perch::test {
namespace {

// DLPack 1.x's DLManagedTensorVersioned, which older headers lack.
struct Versioned {
  uint32_t major, minor;
  void* manager_ctx;
  void (*deleter)(Versioned* self);
  uint64_t flags;
  DLTensor tensor;
};

struct Producer {
  explicit Producer(int32_t ndim = 2) {
    DLTensor& tensor = legacy.dl_tensor;
    tensor.data = data;
    tensor.device = {kDLCPU, 0};
    tensor.ndim = ndim;
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape;
    legacy.manager_ctx = this;
    legacy.deleter = [](DLManagedTensor* self) {
      ++static_cast<Producer*>(self->manager_ctx)->deleted;
    };
    versioned.major = 1;
    versioned.minor = 1;
    versioned.manager_ctx = this;
    versioned.deleter = [](Versioned* self) {
      ++static_cast<Producer*>(self->manager_ctx)->deleted;
    };
    versioned.tensor = tensor;
  }
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  float data[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[2] = {2, 3};
  DLManagedTensor legacy{};
  Versioned versioned{};
  int deleted = 0;
};

TEST(ImportDlpack, ReleaseDeletesOnce) {
  Producer producer;
  perch_tensor* tensor = nullptr;
  ASSERT_EQ(perch_import_dlpack(&producer.legacy, &tensor, nullptr), PERCH_OK);
  EXPECT_EQ(producer.deleted, 0);
  const perch_named_tensor* view = perch_tensor_view(tensor);
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->tensor->data, producer.data);
  EXPECT_EQ(view->tensor->shape[1], 3);
  perch_tensor_release(tensor);
  EXPECT_EQ(producer.deleted, 1);
}

TEST(ImportDlpack, FailureDeletesOnce) {
  Producer producer(9);
  perch_tensor* tensor = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(perch_import_dlpack(&producer.legacy, &tensor, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error.message, "ndim: got 9"));
  EXPECT_EQ(tensor, nullptr);
  EXPECT_EQ(producer.deleted, 1);
}

TEST(ImportDlpack, NoDeleterIsFine) {
  Producer producer;
  producer.legacy.deleter = nullptr;
  perch_tensor* tensor = nullptr;
  ASSERT_EQ(perch_import_dlpack(&producer.legacy, &tensor, nullptr), PERCH_OK);
  perch_tensor_release(tensor);
}

TEST(ImportDlpackVersioned, ReleaseDeletesOnceAndFlagsCross) {
  Producer producer;
  producer.versioned.flags = PERCH_TENSOR_READ_ONLY;
  perch_tensor* tensor = nullptr;
  ASSERT_EQ(perch_import_dlpack_versioned(&producer.versioned, &tensor, nullptr), PERCH_OK);
  EXPECT_EQ(perch_tensor_view(tensor)->flags, PERCH_TENSOR_READ_ONLY);
  EXPECT_EQ(producer.deleted, 0);
  perch_tensor_release(tensor);
  EXPECT_EQ(producer.deleted, 1);
}

TEST(ImportDlpackVersioned, ANewerMinorIsFine) {
  Producer producer;
  producer.versioned.minor = 9;
  perch_tensor* tensor = nullptr;
  ASSERT_EQ(perch_import_dlpack_versioned(&producer.versioned, &tensor, nullptr), PERCH_OK);
  perch_tensor_release(tensor);
  EXPECT_EQ(producer.deleted, 1);
}

TEST(ImportDlpackVersioned, AnotherMajorIsReleasedAndRefused) {
  Producer producer;
  producer.versioned.major = 2;
  producer.versioned.minor = 0;
  producer.versioned.tensor.ndim = -77;  // nothing behind the version may be read
  perch_tensor* tensor = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(perch_import_dlpack_versioned(&producer.versioned, &tensor, &error),
            PERCH_E_ABI_MISMATCH);
  EXPECT_STREQ(error.message,
               "perch_import_dlpack_versioned: version: got 2.0; want major 1; the tensor was "
               "released");
  EXPECT_EQ(tensor, nullptr);
  EXPECT_EQ(producer.deleted, 1);
}

TEST(ImportDlpackVersioned, FailureDeletesOnce) {
  Producer producer;
  producer.versioned.tensor.shape = nullptr;
  perch_tensor* tensor = nullptr;
  EXPECT_EQ(perch_import_dlpack_versioned(&producer.versioned, &tensor, nullptr),
            PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(producer.deleted, 1);
}

// Nothing to write the handle to: what was given is still taken over, so that it does not leak.
TEST(ImportDlpack, NullArguments) {
  perch_tensor* tensor = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(perch_import_dlpack(nullptr, &tensor, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error.message, "perch_import_dlpack: managed: got NULL"));
  Producer producer;
  EXPECT_EQ(perch_import_dlpack(&producer.legacy, nullptr, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(producer.deleted, 1);
  EXPECT_EQ(perch_import_dlpack_versioned(&producer.versioned, nullptr, &error),
            PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(producer.deleted, 2);
}

// ---- perch_tensor_check
// --------------------------------------------------------------------------

TEST(TensorCheck, RulesAndWords) {
  const Tensor tensor = f32({2, 3}, {1, 2, 3, 4, 5, 6});
  const int64_t any[2] = {-1, 3};
  const int64_t other[2] = {2, 4};
  perch_error error = PERCH_ERROR_INIT;
  const auto check = [&](const DLTensor* given, uint64_t flags, uint32_t dtype,
                         const int64_t* shape, int32_t ndim) {
    return perch_tensor_check("weight", given, flags, dtype, shape, ndim, &error);
  };
  EXPECT_EQ(check(tensor.dl(), 0, PERCH_TYPE_F32, any, 2), PERCH_OK) << error.message;
  EXPECT_EQ(check(tensor.dl(), 0, 0, nullptr, 2), PERCH_OK) << error.message;
  EXPECT_NE(check(tensor.dl(), 0, PERCH_TYPE_BF16, any, 2), PERCH_OK);
  EXPECT_TRUE(says(error.message, "weight: dtype: got float32; want bfloat16"));
  EXPECT_NE(check(tensor.dl(), 0, PERCH_TYPE_F32, other, 2), PERCH_OK);
  EXPECT_TRUE(says(error.message, "weight: shape: got [2, 3]; want [2, 4]"));
  EXPECT_NE(check(tensor.dl(), PERCH_TENSOR_SUBBYTE_PADDED, 0, any, 2), PERCH_OK);
  EXPECT_TRUE(says(error.message, "DLPack flag 4"));
  EXPECT_NE(check(tensor.dl(), 0, 0, nullptr, 9), PERCH_OK);
  EXPECT_NE(check(nullptr, 0, 0, nullptr, 2), PERCH_OK);
}

}  // namespace
}  // namespace perch::test
