// perch_layer_execute against calls that break a rule: each is refused before the backend sees it,
// in the words of abi.md E3, and writes nothing.
#include <functional>

#include "api_rig.h"

namespace perch::test {
namespace {

constexpr int64_t kRows = 3;

LayerConfig bench_layer() {
  return moe_layer({4, 2, 8, 4}, PERCH_ACTIVATION_SILU, PERCH_TYPE_BF16, PERCH_TYPE_BF16);
}

// A good call whose tensors may be spoiled.
struct Spoiled {
  Spoiled(perch_layer* layer, const LayerConfig& config, const Call& call)
      : exec(layer, config, call) {
    copy(&x, &exec.args.x, 0);
    copy(&y, &exec.args.y, 1);
    copy(&ids, &exec.args.topk_ids, 2);
    copy(&weights, &exec.args.topk_weights, 3);
  }
  Spoiled(const Spoiled&) = delete;
  Spoiled& operator=(const Spoiled&) = delete;

  Exec exec;
  DLTensor x{}, y{}, ids{}, weights{};
  int64_t shapes[4][3] = {};
  int64_t strides[4][3] = {};
  perch_ext ext{};

 private:
  void copy(DLTensor* to, const DLTensor** slot, int index) {
    *to = **slot;
    std::copy(to->shape, to->shape + to->ndim, shapes[index]);
    std::copy(to->strides, to->strides + to->ndim, strides[index]);
    to->shape = shapes[index];
    to->strides = strides[index];
    *slot = to;
  }
};

struct BadCall {
  const char* name;
  void (*spoil)(Spoiled& s);
  const char* message;
};

class BadCallTest : public ::testing::TestWithParam<BadCall> {};

void expect_refused(const char* backend, const BadCall& row) {
  SCOPED_TRACE(backend);
  const LayerConfig config = bench_layer();
  const perch_host::Layer layer =
      build_layer(shared_runtime(backend), config, random_experts(config, 3));
  const Call call = random_call(config, kRows, 4);
  Spoiled spoiled(layer.get(), config, call);
  row.spoil(spoiled);
  EXPECT_TRUE(says(refusal([&] { spoiled.exec.run(); }), row.message));
  for (const uint8_t byte : spoiled.exec.y.bytes) ASSERT_EQ(byte, 0xFF) << "y was written";
  // The layer still answers.
  Exec good(layer.get(), config, call);
  EXPECT_EQ(refusal([&] { good.run(); }), "");
}

TEST_P(BadCallTest, IsRefusedAndWritesNothing) {
  expect_refused("reference", GetParam());
  expect_refused("humming-cpu", GetParam());
}

const BadCall kTensorRules[] = {
    {"x_null", [](Spoiled& s) { s.exec.args.x = nullptr; },
     "perch_layer_execute: x: pointer: got NULL; want a tensor (layer 'moe')"},
    {"x_float16",
     [](Spoiled& s) {
       s.x.dtype = {kDLFloat, 16, 1};
     },
     "perch_layer_execute: x: dtype: got float16; want bfloat16 (layer 'moe')"},
    {"x_lanes", [](Spoiled& s) { s.x.dtype.lanes = 2; },
     "x: dtype: got bfloat16(code 4, bits 16, lanes 2); want bfloat16"},
    {"x_unknown_dtype",
     [](Spoiled& s) {
       s.x.dtype = {17, 8, 1};
     },
     "x: dtype: got dtype(code 17, bits 8, lanes 1); want bfloat16"},
    {"x_rank", [](Spoiled& s) { s.x.ndim = 3; }, "x: ndim: got 3; want 2"},
    {"x_no_shape", [](Spoiled& s) { s.x.shape = nullptr; }, "x: shape: got NULL; want 2"},
    {"x_hidden", [](Spoiled& s) { s.shapes[0][1] = 7; }, "x: shape: got [3, 7]; want [any, 8]"},
    {"x_negative", [](Spoiled& s) { s.shapes[0][0] = -3; }, "x: shape: got [-3, 8]; want [any, 8]"},
    {"x_columns_first",
     [](Spoiled& s) {
       s.strides[0][0] = 1;
       s.strides[0][1] = kRows;
     },
     "x: strides: got [1, 3] for shape [3, 8]; want row-major"},
    {"x_broadcast", [](Spoiled& s) { s.strides[0][0] = 0; },
     "x: strides: got [0, 1] for shape [3, 8]; want row-major"},
    {"x_negative_stride", [](Spoiled& s) { s.strides[0][0] = -8; },
     "x: strides: got [-8, 1] for shape [3, 8]; want row-major"},
    {"x_misaligned", [](Spoiled& s) { s.x.byte_offset = 1; },
     "x: data+byte_offset: got address % 2 = 1; want 2-byte alignment"},
    {"x_on_cuda", [](Spoiled& s) { s.x.device.device_type = static_cast<DLDeviceType>(2); },
     "x: device: got device type 2 id 0; want type 1 id 0"},
    {"x_on_cpu_1", [](Spoiled& s) { s.x.device.device_id = 1; },
     "x: device: got device type 1 id 1; want type 1 id 0"},
    {"x_overflows", [](Spoiled& s) { s.shapes[0][0] = int64_t{1} << 61; },
     "overflow 64 bits (layer 'moe')"},
    {"x_wraps", [](Spoiled& s) { s.x.byte_offset = UINT64_MAX - 1; }, "overflow 64 bits"},
    {"y_rows", [](Spoiled& s) { s.shapes[1][0] = 2; }, "y: shape: got [2, 8]; want [3, 8]"},
    {"y_float32",
     [](Spoiled& s) {
       s.y.dtype = {kDLFloat, 32, 1};
     },
     "y: dtype: got float32; want bfloat16"},
    {"ids_null", [](Spoiled& s) { s.exec.args.topk_ids = nullptr; },
     "topk_ids: pointer: got NULL; want a tensor"},
    {"ids_float",
     [](Spoiled& s) {
       s.ids.dtype = {kDLFloat, 32, 1};
     },
     "topk_ids: dtype: got float32; want int32 or int64"},
    {"ids_unsigned",
     [](Spoiled& s) {
       s.ids.dtype = {kDLUInt, 32, 1};
     },
     "topk_ids: dtype: got uint32; want int32 or int64"},
    {"ids_topk", [](Spoiled& s) { s.shapes[2][1] = 1; },
     "topk_ids: shape: got [3, 1]; want [3, 2]"},
    {"weights_bfloat16",
     [](Spoiled& s) {
       s.weights.dtype = {kDLBfloat, 16, 1};
     },
     "topk_weights: dtype: got bfloat16; want float32"},
    {"weights_rows", [](Spoiled& s) { s.shapes[3][0] = 1; },
     "topk_weights: shape: got [1, 2]; want [3, 2]"},
};
INSTANTIATE_TEST_SUITE_P(Tensors, BadCallTest, ::testing::ValuesIn(kTensorRules),
                         [](const auto& row) { return std::string(row.param.name); });

const BadCall kCallRules[] = {
    {"args_size", [](Spoiled& s) { s.exec.args.struct_size = 8; },
     "PERCH_E_ABI_MISMATCH: perch_layer_execute: args: struct_size: got 8; want"},
    {"args_flags", [](Spoiled& s) { s.exec.args.flags = 1; }, "args: flags: got 1; want 0"},
    {"must_understand",
     [](Spoiled& s) {
       s.ext.struct_size = sizeof(s.ext);
       s.ext.type = 77;
       s.ext.flags = PERCH_EXT_MUST_UNDERSTAND;
       s.exec.args.next = &s.ext;
     },
     "PERCH_E_UNSUPPORTED: perch_layer_execute: args: extension 77"},
    {"extension_loop",
     [](Spoiled& s) {
       s.ext.struct_size = sizeof(s.ext);
       s.ext.type = 78;
       s.ext.next = &s.ext;
       s.exec.args.next = &s.ext;
     },
     "args: extensions: got more than 64"},
    {"x_scale", [](Spoiled& s) { s.exec.args.x_scale = &s.weights; },
     "PERCH_E_UNSUPPORTED: perch_layer_execute: x_scale: got a tensor; want NULL, as the chosen"},
    {"counts_in_standard", [](Spoiled& s) { s.exec.args.expert_counts = &s.ids; },
     "expert_counts: got a tensor; want NULL for the standard form"},
    {"offsets_in_standard", [](Spoiled& s) { s.exec.args.expert_offsets = &s.ids; },
     "expert_offsets: got a tensor; want NULL for the standard form"},
    {"y_over_x_by_half",
     [](Spoiled& s) {
       s.y.data = s.x.data;
       s.y.byte_offset = 2;
       s.shapes[0][0] = s.shapes[1][0] = s.shapes[2][0] = s.shapes[3][0] = 2;
     },
     "y: overlap: shares memory with x; want memory of its own"},
    {"y_over_ids", [](Spoiled& s) { s.ids.data = s.y.data; },
     "topk_ids"},  // its values, or the overlap
    {"y_over_weights", [](Spoiled& s) { s.weights.data = s.y.data; },
     "y: overlap: shares memory with topk_weights"},
};
INSTANTIATE_TEST_SUITE_P(Calls, BadCallTest, ::testing::ValuesIn(kCallRules),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- What depends on the backend's promises and sizes -------------------------------------------

class CallRuleTest : public ::testing::TestWithParam<const char*> {
 protected:
  perch_runtime* runtime() const { return shared_runtime(GetParam()); }
};

perch_caps caps_of(perch_layer* layer) {
  perch_layer_info info{};
  info.struct_size = sizeof(info);
  info.layout.struct_size = sizeof(perch_layout);
  perch_host::check(perch_layer_get_info, layer, static_cast<const perch_call_shape*>(nullptr),
                    &info);
  return info.caps;
}

TEST_P(CallRuleTest, YExactlyXNeedsInplace) {
  const LayerConfig config = bench_layer();
  const perch_host::Layer layer = build_layer(runtime(), config, random_experts(config, 3));
  const Call call = random_call(config, kRows, 4);
  Exec exec(layer.get(), config, call);
  const DLTensor* fresh = exec.args.y;
  exec.args.y = exec.args.x;
  const std::string text = refusal([&] { exec.run(); });
  if ((caps_of(layer.get()) & PERCH_CAP_INPLACE) == 0) {
    EXPECT_TRUE(says(text,
                     "y: overlap: shares memory with x; want memory of its own, or a backend "
                     "that promises inplace"));
    return;
  }
  EXPECT_EQ(text, "");
  Exec again(layer.get(), config, random_call(config, kRows, 4));
  again.run();
  const size_t bytes = static_cast<size_t>(fresh->shape[0]) * 16;
  EXPECT_EQ(std::memcmp(exec.args.x->data, again.args.y->data, bytes), 0);
}

TEST_P(CallRuleTest, WorkspaceOneByteShortIsRefused) {
  const LayerConfig config = bench_layer();
  const perch_host::Layer layer = build_layer(runtime(), config, random_experts(config, 3));
  const Call call = random_call(config, 64, 4);
  Exec exec(layer.get(), config, call);
  const uint64_t bytes = exec.args.workspace_bytes;
  if (bytes == 0) {
    // Nothing wanted: NULL with size 0 is right.
    exec.args.workspace = nullptr;
    EXPECT_EQ(refusal([&] { exec.run(); }), "");
    return;
  }
  exec.args.workspace_bytes = bytes - 1;
  EXPECT_TRUE(says(refusal([&] { exec.run(); }),
                   "PERCH_E_BUFFER_TOO_SMALL: perch_layer_execute: workspace: size: got " +
                       std::to_string(bytes - 1) + " bytes; want " + std::to_string(bytes) +
                       " for 64 tokens"));
  exec.args.workspace_bytes = bytes;
  void* const memory = exec.args.workspace;
  exec.args.workspace = nullptr;
  EXPECT_TRUE(says(refusal([&] { exec.run(); }), "workspace: got NULL; want"));
  exec.args.workspace = exec.y.bytes.data();
  EXPECT_NE(refusal([&] { exec.run(); }), "") << "y inside the workspace";
  for (const uint8_t byte : exec.y.bytes) ASSERT_EQ(byte, 0xFF) << "y was written";
  exec.args.workspace = memory;
  EXPECT_EQ(refusal([&] { exec.run(); }), "");
}

TEST_P(CallRuleTest, WorkspaceNeverShrinksWithMoreTokens) {
  const LayerConfig config = bench_layer();
  const perch_host::Layer layer = build_layer(runtime(), config, random_experts(config, 3));
  uint64_t previous = 0;
  for (int64_t tokens = 0; tokens <= config.abi().max_tokens; ++tokens) {
    perch_call_shape shape{};
    shape.struct_size = sizeof(shape);
    shape.form = PERCH_FORM_STANDARD;
    shape.num_tokens = tokens;
    perch_workspace_req request{};
    request.struct_size = sizeof(request);
    perch_host::check(perch_layer_workspace, layer.get(), &shape, &request);
    ASSERT_GE(request.bytes, previous) << tokens;
    previous = request.bytes;
  }
}

TEST_P(CallRuleTest, MoreThanMaxTokensIsRefused) {
  LayerConfig config = bench_layer();
  config.layer().max_tokens = 4;
  const perch_host::Layer layer = build_layer(runtime(), config, random_experts(config, 3));
  EXPECT_TRUE(says(refusal([&] { run(layer.get(), config, random_call(config, 5, 1)); }),
                   "num_tokens: got 5; want 0 to 4 (max_tokens of layer 'moe')"));
}

// Long rows of x and y: refused without the promise, and the same bytes with it.
TEST_P(CallRuleTest, RowsFurtherApart) {
  const LayerConfig config = bench_layer();
  const perch_host::Layer layer = build_layer(runtime(), config, random_experts(config, 3));
  const Call call = random_call(config, kRows, 4);
  const Tensor want = run(layer.get(), config, call);

  Tensor x = empty_tensor(call.x.dtype, {kRows, 11});
  Tensor y = empty_tensor(call.x.dtype, {kRows, 13});
  for (size_t row = 0; row < kRows; ++row) {
    std::memcpy(&x.bytes[row * 22], &call.x.bytes[row * 16], 16);
  }
  x.shape[1] = y.shape[1] = 8;
  Exec exec(layer.get(), config, call);
  exec.args.x = x.dl();
  exec.args.y = y.dl();
  const std::string text = refusal([&] { exec.run(); });
  if ((caps_of(layer.get()) & PERCH_CAP_ROW_STRIDED_ACT) == 0) {
    EXPECT_TRUE(says(text, "x: strides: got [11, 1] for shape [3, 8]; want row-major"));
    return;
  }
  EXPECT_EQ(text, "");
  for (size_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(std::memcmp(&y.bytes[row * 26], &want.bytes[row * 16], 16), 0) << row;
    for (size_t pad = 16; pad < 26; ++pad) EXPECT_EQ(y.bytes[row * 26 + pad], 0xFF);
  }
}

// Strides NULL, byte_offset, and any stride on a dimension of size 1 are all legal.
TEST_P(CallRuleTest, LegalViews) {
  const LayerConfig config = bench_layer();
  const perch_host::Layer layer = build_layer(runtime(), config, random_experts(config, 3));
  Call call = random_call(config, 1, 4);
  const Tensor want = run(layer.get(), config, call);
  Spoiled view(layer.get(), config, call);
  view.x.data = static_cast<uint8_t*>(view.x.data) - 64;
  view.x.byte_offset = 64;
  view.strides[0][0] = 1;
  view.ids.strides = nullptr;
  view.y.strides = nullptr;
  view.exec.run();
  EXPECT_EQ(view.exec.y.bytes, want.bytes);
}

INSTANTIATE_TEST_SUITE_P(Backends, CallRuleTest, ::testing::Values("reference", "humming-cpu"),
                         [](const auto& row) { return std::string(row.param).substr(0, 7); });

}  // namespace
}  // namespace perch::test
