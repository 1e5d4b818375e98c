// Calls that once crashed or were believed: each has to be refused, and the runtime has to go on.
#include <gtest/gtest.h>

#include <cstring>
#include <perch/perch.hpp>
#include <string>
#include <vector>

namespace {

const std::string kMixtral = std::string(PERCH_FIXTURES_DIR) + "/hf/mixtral";

struct Opened {
  perch_host::Runtime runtime = perch_host::make_runtime();
  perch_host::Model model = perch_host::open_model(runtime, kMixtral);
  perch_host::Layer layer = perch_host::make_layer(model, 0);
};

// perch_model_compare of layer 0 with arguments that have no tensors, as layer `index`.
perch_status compare_nothing(uint32_t index, std::string* message) {
  const Opened opened;
  perch_host::Tensor expected({kDLFloat, 32, 1}, {1, 40});
  perch_comparison comparison{};
  comparison.struct_size = sizeof(comparison);
  perch_exec_args args{};
  args.struct_size = sizeof(args);
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status = perch_model_compare(opened.model.get(), index, opened.layer.get(),
                                                  &args, expected.get(), &comparison, &error);
  *message = error.message;
  return status;
}

TEST(Compare, RefusesArgumentsThatExecuteWouldRefuse) {
  std::string message;
  EXPECT_EQ(compare_nothing(0, &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(message.find("x: pointer: got NULL"), std::string::npos) << message;
}

TEST(Compare, RefusesALayerOfAnotherIndex) {
  std::string message;
  EXPECT_EQ(compare_nothing(1, &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(message.find("layers.1"), std::string::npos) << message;
}

TEST(GetInfo, RefusesACapacityWithoutAnArray) {
  const Opened opened;
  perch_layer_info info{};
  info.struct_size = sizeof(info);
  info.layout.struct_size = sizeof(info.layout);
  info.layout.buffers_capacity = 4;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(perch_layer_get_info(opened.layer.get(), nullptr, &info, &error),
            PERCH_E_INVALID_ARGUMENT);
}

perch_status canonicalize(const perch_named_tensor* tensors, uint32_t count,
                          const std::string& config, std::string* message) {
  const perch_host::Runtime runtime = perch_host::make_runtime();
  perch_model* model = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status =
      perch_canonicalize(runtime.get(), tensors, count, config.c_str(), nullptr, &model, &error);
  *message = error.message;
  perch_model_destroy(model);
  return status;
}

TEST(Canonicalize, RefusesAConfigNestedTooDeep) {
  std::string config;
  for (int i = 0; i < 100000; ++i) config += "{\"a\":";
  config += "1" + std::string(100000, '}');
  std::string message;
  EXPECT_EQ(canonicalize(nullptr, 0, config, &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(message.find("deeper than 127"), std::string::npos) << message;
}

TEST(Canonicalize, RefusesTensorsOfADevice) {
  float value = 0;
  int64_t shape[1] = {1};
  DLTensor tensor{};
  tensor.data = &value;
  const int32_t cuda[2] = {2, 0};
  std::memcpy(&tensor.device, cuda, sizeof(cuda));
  tensor.ndim = 1;
  tensor.dtype = {kDLFloat, 32, 1};
  tensor.shape = shape;
  const perch_named_tensor named = {"model.norm.weight", &tensor, 0};
  std::string message;
  EXPECT_EQ(canonicalize(&named, 1, "{}", &message), PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(message.find("want 1, the CPU"), std::string::npos) << message;
}

// Also where a dimension of 0 makes the tensor empty: its strides are made of the others.
TEST(Canonicalize, RefusesShapesThatOverflow) {
  constexpr int64_t kVast = int64_t{1} << 62;
  float value = 0;
  for (const std::vector<int64_t>& dims :
       {std::vector<int64_t>{kVast, 3}, {0, kVast, 3}, {kVast, 3, 0}, {-1}}) {
    std::vector<int64_t> shape = dims;
    DLTensor tensor{};
    tensor.data = &value;
    tensor.device = {kDLCPU, 0};
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape.data();
    const perch_named_tensor named = {"model.norm.weight", &tensor, 0};
    std::string message;
    EXPECT_EQ(canonicalize(&named, 1, "{}", &message), PERCH_E_INVALID_ARGUMENT);
    EXPECT_NE(message.find("overflows 64 bits"), std::string::npos) << message;
  }
}

TEST(BackendOptions, AWrongOneFailsTheRuntime) {
  perch_runtime_opts opts{};
  opts.struct_size = sizeof(opts);
  opts.config_text = "version: 1\nbackends: {options: {humming-cpu: {foo: bar}}}\n";
  perch_runtime* runtime = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(perch_runtime_create(&opts, &runtime, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("backends.options.humming-cpu"), std::string::npos)
      << error.message;
}

}  // namespace
