// What the runtime's checks cost per call, alone and as a share of a real layer's time.
//
// BM_Checks calls a backend whose execute does nothing, with the tensors of a Qwen3-30B-A3B layer
// (E 128, topk 8, H 2048, I 768): all that is left is the runtime. BM_Layer runs that layer, int4
// in groups of 128, through the host API, BM_LayerDirect the same prepared weights through the
// backend's table. The promise: at most 2 us, and at most 1 % at T = 1.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <perch/perch.hpp>
#include <vector>

#include "api.h"
#include "base/layer_config.h"

namespace {

constexpr int64_t kExperts = 128, kTopk = 8, kHidden = 2048, kIntermediate = 768;

perch::LayerConfig qwen3_config(int64_t max_tokens) {
  perch_quant quant = perch::make_quant(PERCH_TYPE_INT4);
  quant.scale_kind = PERCH_SCALE_GROUP;
  quant.scale_dtype = PERCH_TYPE_BF16;
  quant.group_k = 128;
  perch::LayerConfig config = perch::LayerConfig::make_moe("qwen3", quant, quant);
  perch_moe_config& moe = config.moe();
  moe.num_experts = moe.num_experts_global = kExperts;
  moe.topk = kTopk;
  moe.hidden = kHidden;
  moe.intermediate = kIntermediate;
  moe.activation = PERCH_ACTIVATION_SILU;
  config.layer().max_tokens = max_tokens;
  return config;
}

// One call's tensors; ids differ from call to call so that weights come from memory.
struct Call {
  explicit Call(int64_t tokens)
      : x({kDLBfloat, 16, 1}, {tokens, kHidden}),
        y({kDLBfloat, 16, 1}, {tokens, kHidden}),
        ids({kDLInt, 32, 1}, {tokens, kTopk}),
        weights({kDLFloat, 32, 1}, {tokens, kTopk}) {
    for (int64_t i = 0; i < tokens * kTopk; ++i) weights.data<float>()[i] = 0.125F;
    for (int64_t i = 0; i < tokens * kHidden; ++i) x.data<uint16_t>()[i] = 0x3F80;
    args.struct_size = sizeof(args);
    args.x = x.get();
    args.y = y.get();
    args.topk_ids = ids.get();
    args.topk_weights = weights.get();
    next();
  }
  void next() {
    for (int64_t i = 0; i < ids.shape()[0] * kTopk; ++i) {
      ids.data<int32_t>()[i] = static_cast<int32_t>((step * kTopk + i * 17) % kExperts);
    }
    ++step;
  }

  perch_host::Tensor x, y, ids, weights;
  perch_exec_args args{};
  int64_t step = 0;
};

perch_status no_workspace(perch_prepared*, const perch_call_shape*, perch_workspace_req* request,
                          perch_error*) {
  request->bytes = 0;
  request->align = 1;
  return PERCH_OK;
}
perch_status no_execute(perch_prepared*, const perch_exec_args*, perch_error*) { return PERCH_OK; }
void no_destroy(perch_prepared*) {}

void BM_Checks(benchmark::State& state) {
  perch_backend_api api{};
  api.struct_size = sizeof(api);
  api.workspace = no_workspace;
  api.execute = no_execute;
  api.prepared_destroy = no_destroy;
  perch::Selection selection;
  selection.config = qwen3_config(state.range(0));
  perch::Candidate candidate;
  candidate.api = &api;
  candidate.caps = PERCH_CAP_CONCURRENT_EXECUTE;
  int handle = 0;
  perch::LayerState layer(selection, candidate,
                          perch::Prepared(&api, reinterpret_cast<perch_prepared*>(&handle)));
  Call call(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(perch::execute_layer(layer, call.args).ok());
  }
}
BENCHMARK(BM_Checks)->Arg(1)->Arg(64);

// The layer, prepared once for both ways of calling it. Weights are a pattern: time does not depend
// on their values.
struct PreparedLayer {
  PreparedLayer() : runtime(perch_host::make_runtime()) {
    const perch::LayerConfig config = qwen3_config(16);
    perch_layer_builder* builder = nullptr;
    perch_host::check(perch_layer_begin, runtime.get(), &config.abi(),
                      static_cast<const perch_stream*>(nullptr), &builder);
    perch::ExpertTensors tensors;
    const std::vector<perch::TensorSpec> specs = perch::tensor_specs(config);
    std::vector<std::vector<std::byte>> data;
    for (const perch::TensorSpec& spec : specs) {
      data.emplace_back(static_cast<size_t>(spec.bytes()), std::byte{0x3C});
      tensors.add(spec, data.back().data());
    }
    for (int32_t e = 0; e < kExperts; ++e) {
      perch_host::check(perch_layer_put, builder, e, tensors.data(), tensors.size());
    }
    perch_layer* made = nullptr;
    perch_host::check(perch_layer_end, builder, &made);
    layer.reset(made);
  }
  perch_host::Runtime runtime;
  perch_host::Layer layer;
};

void run_layer(benchmark::State& state, bool direct) {
  static PreparedLayer prepared;
  perch::LayerState& layer = prepared.layer->state;
  Call call(1);
  perch_call_shape shape{};
  shape.struct_size = sizeof(shape);
  shape.form = PERCH_FORM_STANDARD;
  shape.num_tokens = 1;
  const perch_workspace_req request = *perch::query_workspace(layer, shape);
  std::vector<std::byte> workspace(request.bytes + 4096);
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  call.args.workspace = workspace.data() + (4096 - address % 4096) % 4096;
  call.args.workspace_bytes = request.bytes;
  // A backend is promised strides; the runtime's copies have them.
  std::vector<std::vector<int64_t>> strides = {{kHidden, 1}, {kHidden, 1}, {kTopk, 1}, {kTopk, 1}};
  DLTensor views[4] = {*call.args.x, *call.args.y, *call.args.topk_ids, *call.args.topk_weights};
  for (size_t i = 0; i < 4; ++i) views[i].strides = strides[i].data();
  perch_exec_args direct_args = call.args;
  direct_args.x = &views[0];
  direct_args.y = &views[1];
  direct_args.topk_ids = &views[2];
  direct_args.topk_weights = &views[3];
  perch_error error = PERCH_ERROR_INIT;
  for (auto _ : state) {
    call.next();
    const perch_status status =
        direct ? layer.prepared.api().execute(layer.prepared.handle(), &direct_args, &error)
               : perch_layer_execute(prepared.layer.get(), &call.args, &error);
    if (status != PERCH_OK) state.SkipWithError(error.message);
  }
}
void BM_LayerDirect(benchmark::State& state) { run_layer(state, true); }
void BM_Layer(benchmark::State& state) { run_layer(state, false); }
BENCHMARK(BM_LayerDirect)->UseRealTime();
BENCHMARK(BM_Layer)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
