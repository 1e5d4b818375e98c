#include "check/call_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <perch/perch.hpp>

namespace perch_check {
namespace {

using perch_host::Tensor;

// A call that is right, to be made wrong in one thing.
struct HostCall {
  std::unique_ptr<Tensor> x, y, ids, weights, map, counts, offsets;
  std::vector<std::byte> workspace;
  perch_exec_args args{};
  perch_workspace_req request{};
};

perch_host::Runtime make_runtime(const Context& context) {
  const std::string policy =
      fmt::format("version: 1\nselect:\n  rules:\n    - match: {{}}\n      use: [{}]\n",
                  context.api()->info->id);
  perch_runtime_opts opts{};
  opts.struct_size = sizeof(opts);
  opts.num_threads = 1;
  opts.config_text = policy.c_str();
  opts.backend_path = context.library().c_str();
  opts.log = [](void*, int32_t, const char*, const char*) {};
  return perch_host::make_runtime(&opts);
}

perch_host::Layer make_layer(const Context& context, const perch_host::Runtime& runtime) {
  perch_layer_builder* builder = nullptr;
  perch_host::check(perch_layer_begin, runtime.get(), &context.config().abi(),
                    static_cast<const perch_stream*>(nullptr), &builder);
  const bool moe = context.config().is_moe();
  const int64_t experts = moe ? context.config().moe().num_experts : 1;
  perch_layer* layer = nullptr;
  try {
    for (int64_t e = 0; e < experts; ++e) {
      const LentTensors lent(make_expert(context.config(), e, context.problem().seed, Fill::kReal),
                             Side::kTail);
      const auto named = lent.named();
      perch_host::check(perch_layer_put, builder, moe ? static_cast<int32_t>(e) : -1, named.data(),
                        static_cast<uint32_t>(named.size()));
    }
    perch_host::check(perch_layer_end, builder, &layer);
  } catch (...) {
    perch_layer_abort(builder);
    throw;
  }
  return perch_host::Layer(layer);
}

template <typename T>
std::unique_ptr<Tensor> tensor_of(DLDataType dtype, std::vector<int64_t> shape,
                                  const std::vector<T>& values) {
  auto tensor = std::make_unique<Tensor>(dtype, std::move(shape));
  std::copy(values.begin(), values.end(), tensor->data<T>());
  return tensor;
}

void add_routing(const perch_moe_config& moe, const CallData& data, HostCall* call) {
  if (moe.form == PERCH_FORM_BATCHED) {
    call->counts = tensor_of({kDLInt, 64, 1}, {moe.num_experts}, data.counts);
    call->args.expert_counts = call->counts->get();
  } else if (moe.form == PERCH_FORM_GROUPED) {
    call->offsets = tensor_of({kDLInt, 64, 1}, {int64_t{moe.num_experts} + 1}, data.offsets);
    call->args.expert_offsets = call->offsets->get();
  } else {
    const std::vector<int64_t> shape = {data.num_tokens, moe.topk};
    call->ids = tensor_of({kDLInt, 64, 1}, shape, data.ids);
    call->weights = tensor_of({kDLFloat, 32, 1}, shape, data.weights);
    call->args.topk_ids = call->ids->get();
    call->args.topk_weights = call->weights->get();
  }
  if (data.expert_map.empty()) return;
  call->map = tensor_of({kDLInt, 32, 1}, {moe.num_experts_global}, data.expert_map);
  call->args.expert_map = call->map->get();
}

std::unique_ptr<HostCall> make_host_call(const Context& context, perch_layer* layer) {
  auto call = std::make_unique<HostCall>();
  const perch::LayerConfig& config = context.config();
  const CallData data = context.call({0, 1}, context.problem().load);
  const bool batched = config.is_moe() && config.moe().form == PERCH_FORM_BATCHED;
  std::vector<int64_t> rows = batched
                                  ? std::vector<int64_t>{config.moe().num_experts, data.num_tokens}
                                  : std::vector<int64_t>{data.num_tokens};
  std::vector<int64_t> x_shape = rows, y_shape = rows;
  x_shape.push_back(config.columns(0));
  y_shape.push_back(config.rows(config.is_moe() ? 1 : 0));
  call->x = tensor_of(float_dlpack(config.abi().in_dtype), x_shape, data.x);
  call->y = std::make_unique<Tensor>(float_dlpack(config.abi().out_dtype), y_shape);
  perch_call_shape shape{sizeof(shape), config.is_moe() ? config.moe().form : PERCH_FORM_STANDARD,
                         data.num_tokens};
  call->request.struct_size = sizeof(call->request);
  perch_host::check(perch_layer_workspace, layer, &shape, &call->request);
  const uint64_t align = std::max(call->request.align, 1U);
  call->workspace.resize(call->request.bytes + 2 * align);
  const auto at = reinterpret_cast<uintptr_t>(call->workspace.data());
  call->args.struct_size = sizeof(call->args);
  call->args.x = call->x->get();
  call->args.y = call->y->get();
  call->args.workspace = call->workspace.data() + (align - at % align) % align;
  call->args.workspace_bytes = call->request.bytes;
  if (config.is_moe()) add_routing(config.moe(), data, call.get());
  return call;
}

// One thing that is wrong, and the argument that the refusal must name.
struct WrongCall {
  const char* what;
  const char* argument;
  std::function<bool(HostCall*)> make;  // false: the case has no such thing
};

// Tensors of the wrong calls live until the next.
struct Spare {
  DLTensor tensor{};
  std::vector<int64_t> shape, strides;
  const DLTensor* copy(const DLTensor* from) {
    tensor = *from;
    shape.assign(from->shape, from->shape + from->ndim);
    tensor.shape = shape.data();
    tensor.strides = nullptr;
    return &tensor;
  }
};

std::vector<WrongCall> tensor_faults(Spare* spare) {
  return {
      {"x is NULL", "x",
       [](HostCall* c) {
         c->args.x = nullptr;
         return true;
       }},
      {"y is NULL", "y",
       [](HostCall* c) {
         c->args.y = nullptr;
         return true;
       }},
      {"x.data is NULL", "x",
       [=](HostCall* c) {
         c->args.x = spare->copy(c->args.x);
         spare->tensor.data = nullptr;
         return true;
       }},
      {"x has integers", "x",
       [=](HostCall* c) {
         c->args.x = spare->copy(c->args.x);
         spare->tensor.dtype = {kDLInt, 32, 1};
         return true;
       }},
      {"x has a column more", "x",
       [=](HostCall* c) {
         c->args.x = spare->copy(c->args.x);
         ++spare->shape.back();
         return true;
       }},
      {"y has a dimension less", "y",
       [=](HostCall* c) {
         c->args.y = spare->copy(c->args.y);
         --spare->tensor.ndim;
         return true;
       }},
      {"y has rows that run backwards", "y",
       [=](HostCall* c) {
         c->args.y = spare->copy(c->args.y);
         spare->strides.assign(spare->shape.size(), 1);
         spare->strides[spare->shape.size() - 2] = -spare->shape.back();
         spare->tensor.strides = spare->strides.data();
         return true;
       }},
      {"x lies on another device", "x",
       [=](HostCall* c) {
         c->args.x = spare->copy(c->args.x);
         spare->tensor.device = {kDLCUDA, 0};
         return true;
       }},
  };
}

std::vector<WrongCall> routing_faults(Spare* spare, const Context& context) {
  const int64_t experts = context.config().is_moe() ? context.config().moe().num_experts_global : 0;
  return {
      {"topk_ids is NULL", "topk_ids",
       [](HostCall* c) {
         if (c->ids == nullptr) return false;
         c->args.topk_ids = nullptr;
         return true;
       }},
      {"an id is the number of experts", "topk_ids",
       [=](HostCall* c) {
         if (c->ids == nullptr) return false;
         c->ids->data<int64_t>()[1] = experts;
         return true;
       }},
      {"topk_weights has integers", "topk_weights",
       [=](HostCall* c) {
         if (c->weights == nullptr) return false;
         c->args.topk_weights = spare->copy(c->args.topk_weights);
         spare->tensor.dtype = {kDLInt, 32, 1};
         return true;
       }},
      {"a count is above Tmax", "expert_counts",
       [](HostCall* c) {
         if (c->counts == nullptr) return false;
         c->counts->data<int64_t>()[0] = 1000;
         return true;
       }},
      {"offsets run backwards", "expert_offsets",
       [](HostCall* c) {
         if (c->offsets == nullptr) return false;
         c->offsets->data<int64_t>()[0] = 2;
         c->offsets->data<int64_t>()[1] = 1;
         return true;
       }},
  };
}

std::vector<WrongCall> memory_faults(const Context& context) {
  const bool inplace = context.promises(PERCH_CAP_INPLACE);
  const bool in_workspace = context.promises(PERCH_CAP_Y_MAY_ALIAS_WORKSPACE);
  return {
      {"the workspace is a byte short", "workspace",
       [](HostCall* c) {
         if (c->request.bytes == 0) return false;
         --c->args.workspace_bytes;
         return true;
       }},
      {"the workspace is NULL", "workspace",
       [](HostCall* c) {
         if (c->request.bytes == 0) return false;
         c->args.workspace = nullptr;
         return true;
       }},
      {"the workspace is not aligned", "workspace",
       [](HostCall* c) {
         if (c->request.bytes == 0 || c->request.align < 2) return false;
         c->args.workspace = static_cast<std::byte*>(c->args.workspace) + 1;
         return true;
       }},
      {"y is x", "y",
       [=](HostCall* c) {
         const_cast<DLTensor*>(c->args.x)->data = c->args.y->data;
         return !inplace;
       }},
      {"y lies in the workspace", "y",
       [=](HostCall* c) {
         const DLTensor* y = c->args.y;
         int64_t bytes = y->dtype.bits / 8;
         for (int32_t i = 0; i < y->ndim; ++i) bytes *= y->shape[i];
         if (in_workspace || c->request.bytes == 0 || bytes == 0) return false;
         c->args.workspace = static_cast<std::byte*>(y->data);
         c->args.workspace_bytes = 1U << 30;  // claims y's memory and more
         return reinterpret_cast<uintptr_t>(y->data) % std::max(c->request.align, 1U) == 0;
       }},
      {"struct_size is 4", "struct_size",
       [](HostCall* c) {
         c->args.struct_size = 4;
         return true;
       }},
  };
}

}  // namespace

void check_call_errors(Context& context) {
  if (context.tokens() < 2) return;
  const perch_host::Runtime runtime = make_runtime(context);
  perch_host::Layer layer;
  try {
    layer = make_layer(context, runtime);
  } catch (const perch_host::Error& error) {
    throw Failed{"the same layer through the runtime", error.what(), "PERCH_OK"};
  }
  Spare spare;
  std::vector<WrongCall> all = tensor_faults(&spare);
  for (auto& more : {routing_faults(&spare, context), memory_faults(context)}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const WrongCall& wrong : all) {
    const auto call = make_host_call(context, layer.get());
    auto* y = call->y->data<std::byte>();
    auto bytes = static_cast<size_t>(float_bytes(context.config().abi().out_dtype));
    for (const int64_t dim : call->y->shape()) bytes *= static_cast<size_t>(dim);
    std::fill_n(y, bytes, std::byte{0xFF});
    if (!wrong.make(call.get())) continue;
    perch_error error = PERCH_ERROR_INIT;
    const perch_status status = perch_layer_execute(layer.get(), &call->args, &error);
    if (status == PERCH_OK) throw Failed{wrong.what, "PERCH_OK", "a refusal"};
    if (std::string(error.message).find(wrong.argument) == std::string::npos) {
      throw Failed{wrong.what, error.message, fmt::format("a text that names {}", wrong.argument)};
    }
    if (std::any_of(y, y + bytes, [](std::byte byte) { return byte != std::byte{0xFF}; })) {
      throw Failed{wrong.what, "y was written", "untouched"};
    }
  }
  // After all of them the layer still works.
  const auto call = make_host_call(context, layer.get());
  perch_error error = PERCH_ERROR_INIT;
  if (perch_layer_execute(layer.get(), &call->args, &error) != PERCH_OK) {
    throw Failed{"a right call after the wrong ones", error.message, "PERCH_OK"};
  }
}

}  // namespace perch_check
