// Which modules outside the experts are quantized linear layers: by the suffixes of their tensors.
#include "canonical/layout.h"

#include <gtest/gtest.h>

namespace perch {
namespace {

RawTensor tensor(const std::string& name, RawDtype dtype, std::vector<int64_t> shape) {
  RawTensor raw;
  raw.name = name;
  raw.dtype = dtype;
  raw.shape = std::move(shape);
  return raw;
}

std::vector<std::string> layers_of(const std::vector<RawTensor>& tensors) {
  const Result<Layout> layout = find_layers(ModelConfig(), tensors, {});
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  std::vector<std::string> names;
  for (const LayerSource& layer : layout->layers) names.push_back(layer.name);
  return names;
}

TEST(Layout, EverySuffixThatMarksAQuantizedModule) {
  for (const char* mark :
       {"weight_packed", "weight_scale", "weight_scale_inv", "scale_inv", "scale", "weight_scale_2",
        "weight_global_scale", "qweight", "blocks", "SCB", "weight.absmax", "trellis"}) {
    const std::vector<RawTensor> tensors = {
        tensor(std::string("layers.0.attn.wq.") + mark, RawDtype::kF32, {4, 4}),
        tensor("layers.0.attn.wq.weight", RawDtype::kF8E4M3, {4, 4})};
    EXPECT_EQ(layers_of(tensors), std::vector<std::string>{"layers.0.attn.wq"}) << mark;
  }
}

TEST(Layout, AScaleWithoutAWeightIsNone) {
  EXPECT_TRUE(layers_of({tensor("layers.0.router.scale", RawDtype::kBF16, {8}),
                         tensor("layers.0.router.proj.weight", RawDtype::kBF16, {4, 8})})
                  .empty());
}

}  // namespace
}  // namespace perch
