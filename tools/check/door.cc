#include "check/door.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>

#include "base/status.h"
#include "perch/runtime.h"

namespace perch_check {
namespace {

Reply reply_of(perch_status status, const perch_error& error) {
  return {status, status == PERCH_OK ? "" : std::string(error.message)};
}

DLDataType dtype_of(const perch::TensorSpec& spec) {
  if (spec.int32) return {kDLInt, 32, 1};
  if (perch::type_bits(spec.type) <= 8) return {kDLUInt, 8, 1};
  return float_dlpack(spec.type);
}

size_t element_bytes(DLDataType dtype) { return dtype.bits / 8U; }

}  // namespace

std::string Reply::print() const {
  return message.empty() ? perch_status_name(status)
                         : fmt::format("{}: {}", perch_status_name(status), message);
}

std::string Answer::print_reasons() const {
  std::string all;
  for (const perch_reason& reason : reasons) {
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", reason.field, reason.text);
  }
  return all;
}

const perch_backend_api* open_table(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  auto entry = reinterpret_cast<perch_backend_entry_fn>(dlsym(library, PERCH_BACKEND_ENTRY));
  if (entry == nullptr) throw std::runtime_error(path + ": has no " PERCH_BACKEND_ENTRY);
  static CheckHost host{HostOptions{}};
  const perch_backend_api* api = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status = entry(host.api(), &api, &error);
  if (status != PERCH_OK || api == nullptr) {
    throw std::runtime_error(path + ": entry: " + reply_of(status, error).print());
  }
  return api;
}

Instance::Instance(const perch_backend_api* api, const HostOptions& options)
    : api_(api), host_(options) {
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status = api->create(host_.api(), nullptr, 0, &backend_, &error);
  if (status != PERCH_OK) throw std::runtime_error("create: " + reply_of(status, error).print());
}

Instance::~Instance() { api_->destroy(backend_); }

uint32_t Instance::variants(const perch_layer_config& config) const {
  return api_->variant_count(backend_, &config);
}

Answer Instance::query(const perch_layer_config& config, uint32_t variant) const {
  Answer answer;
  for (uint32_t capacity = 0;;) {
    answer.reasons.assign(capacity, perch_reason{});
    answer.support = {};
    answer.support.struct_size = sizeof(perch_support);
    answer.support.reasons = capacity == 0 ? nullptr : answer.reasons.data();
    answer.support.reasons_capacity = capacity;
    perch_error error = PERCH_ERROR_INIT;
    answer.reply =
        reply_of(api_->query_support(backend_, &config, variant, &answer.support, &error), error);
    if (!answer.reply.ok() || answer.support.num_reasons <= capacity) break;
    capacity = std::min(answer.support.num_reasons, 1000U);
  }
  return answer;
}

LentTensors::LentTensors(const std::vector<CaseTensor>& tensors, Side side) {
  for (const CaseTensor& given : tensors) {
    auto entry = std::make_unique<Entry>();
    const DLDataType dtype = dtype_of(given.spec);
    entry->name = given.spec.name;
    entry->buffer = GuardedBuffer(given.spec.name + " (canonical)", given.data.size(),
                                  element_bytes(dtype), side);
    if (!given.data.empty()) {
      std::copy(given.data.begin(), given.data.end(), entry->buffer.data());
    }
    entry->buffer.make_read_only();
    entry->shape = given.spec.shape;
    entry->strides.assign(entry->shape.size(), 1);
    for (size_t i = entry->shape.size(); i-- > 1;) {
      entry->strides[i - 1] = entry->strides[i] * entry->shape[i];
    }
    entry->tensor.data = entry->buffer.data();
    entry->tensor.device = {kDLCPU, 0};
    entry->tensor.ndim = static_cast<int32_t>(entry->shape.size());
    entry->tensor.dtype = dtype;
    entry->tensor.shape = entry->shape.data();
    entry->tensor.strides = entry->strides.data();
    named_.push_back({entry->name.c_str(), &entry->tensor, PERCH_TENSOR_READ_ONLY});
    entries_.push_back(std::move(entry));
  }
}

void LentTensors::give_back() {
  for (auto& entry : entries_) entry->buffer.make_inaccessible();
}

Prepared::Prepared(Instance& instance, const perch::LayerConfig& config, uint32_t variant,
                   const PrepareOptions& options)
    : instance_(instance), config_(config) {
  perch_error error = PERCH_ERROR_INIT;
  perch_builder* builder = nullptr;
  const perch_stream stream{{kDLCPU, 0}, nullptr, 0, 0};
  const perch_backend_api& api = instance.api();
  zero_copy_ = instance.query(config_.abi(), variant).promises(PERCH_CAP_ZERO_COPY_WEIGHTS);
  reply_ = reply_of(
      api.prepare_begin(instance.handle(), &config_.abi(), variant, &stream, &builder, &error),
      error);
  if (!reply_.ok()) return;
  const int64_t experts = config_.is_moe() ? config_.moe().num_experts : 1;
  for (int64_t i = 0; i < experts && reply_.ok(); ++i) {
    reply_ = put(builder, options.backwards ? experts - 1 - i : i, options);
  }
  if (reply_.ok()) reply_ = reply_of(api.prepare_end(builder, &handle_, &error), error);
  if (!reply_.ok()) api.prepare_abort(builder);
}

Reply Prepared::put(perch_builder* builder, int64_t expert, const PrepareOptions& options) {
  const uint64_t seed = expert == options.other_expert ? options.other_seed : options.seed;
  auto lent =
      std::make_unique<LentTensors>(make_expert(config_, expert, seed, options.fill), options.side);
  perch_error error = PERCH_ERROR_INIT;
  const auto named = lent->named();
  const perch_status status =
      instance_.api().prepare_put(builder, config_.is_moe() ? static_cast<int32_t>(expert) : -1,
                                  named.data(), static_cast<uint32_t>(named.size()), &error);
  if (!zero_copy_) lent->give_back();
  lent_.push_back(std::move(lent));
  return reply_of(status, error);
}

Prepared::~Prepared() {
  if (handle_ != nullptr) instance_.api().prepared_destroy(handle_);
}

perch_workspace_req Prepared::workspace(int64_t num_tokens) const {
  const perch_call_shape shape{
      sizeof(shape), config_.is_moe() ? config_.moe().form : PERCH_FORM_STANDARD, num_tokens};
  perch_workspace_req request{sizeof(request), 1, 0, 0};
  perch_error error = PERCH_ERROR_INIT;
  const perch_status status = instance_.api().workspace(handle_, &shape, &request, &error);
  if (status != PERCH_OK) throw std::runtime_error("workspace: " + reply_of(status, error).print());
  return request;
}

Reply Prepared::update(int32_t expert, const LentTensors& tensors) {
  perch_error error = PERCH_ERROR_INIT;
  const auto named = tensors.named();
  const perch_status status = instance_.api().update(handle_, expert, named.data(),
                                                     static_cast<uint32_t>(named.size()), &error);
  return reply_of(status, error);
}

}  // namespace perch_check
