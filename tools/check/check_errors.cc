// What is wrong is refused, by name, and leaves everything as it was: tensors at prepare (the
// backend alone), and calls (through the runtime, which stands before every backend).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/call_errors.h"
#include "check/check.h"

namespace perch_check {
namespace {

// A prepare under way that is aborted at the end.
class Builder {
 public:
  explicit Builder(Context& context, const perch::LayerConfig& config)
      : instance_(context.instance()) {
    perch_error error = PERCH_ERROR_INIT;
    const perch_stream stream{{kDLCPU, 0}, nullptr, 0, 0};
    const perch_status status = instance_.api().prepare_begin(
        instance_.handle(), &config.abi(), context.variant(), &stream, &builder_, &error);
    if (status != PERCH_OK) throw Failed{"prepare_begin", error.message, "PERCH_OK"};
  }
  ~Builder() {
    if (prepared_ != nullptr) {
      instance_.api().prepared_destroy(prepared_);
    } else {
      instance_.api().prepare_abort(builder_);
    }
  }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  Reply put(int32_t expert, const std::vector<CaseTensor>& tensors) {
    LentTensors lent(tensors, Side::kTail);
    perch_error error = PERCH_ERROR_INIT;
    const auto named = lent.named();
    const perch_status status = instance_.api().prepare_put(
        builder_, expert, named.data(), static_cast<uint32_t>(named.size()), &error);
    return {status, status == PERCH_OK ? "" : error.message};
  }
  Reply end() {
    perch_error error = PERCH_ERROR_INIT;
    const perch_status status = instance_.api().prepare_end(builder_, &prepared_, &error);
    return {status, status == PERCH_OK ? "" : error.message};
  }

 private:
  Instance& instance_;
  perch_builder* builder_ = nullptr;
  perch_prepared* prepared_ = nullptr;
};

void expect_refused(const std::string& what, const Reply& reply, const std::string& name) {
  if (reply.ok()) throw Failed{what, "PERCH_OK", "a refusal that names it"};
  const bool right =
      reply.status == PERCH_E_INVALID_ARGUMENT || reply.status == PERCH_E_UNSUPPORTED;
  if (right && reply.message.find(name) != std::string::npos) return;
  throw Failed{what, reply.print(),
               fmt::format("PERCH_E_INVALID_ARGUMENT with \"{}\" in its text", name)};
}

std::vector<CaseTensor> expert_tensors(const Context& context, int64_t expert) {
  return make_expert(context.config(), expert, context.problem().seed, Fill::kReal);
}

void refuse_names(Context& context) {
  const int32_t expert = context.config().is_moe() ? 0 : -1;
  const std::vector<CaseTensor> good = expert_tensors(context, 0);
  for (size_t i = 0; i < good.size(); ++i) {
    Builder builder(context, context.config());
    std::vector<CaseTensor> tensors = good;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    expect_refused("prepare without " + good[i].spec.name, builder.put(expert, tensors),
                   good[i].spec.name);
    tensors = good;
    tensors[i].spec.name += "x";
    expect_refused("prepare with " + tensors[i].spec.name, builder.put(expert, tensors),
                   good[i].spec.name);
    // The refused builder still takes what is right.
    const Reply reply = builder.put(expert, good);
    if (!reply.ok()) throw Failed{"prepare_put after a refusal", reply.print(), "PERCH_OK"};
  }
  Builder builder(context, context.config());
  std::vector<CaseTensor> more = good;
  more.push_back({{"nonsense", PERCH_TYPE_F32, false, {1}}, std::vector<std::byte>(4)});
  expect_refused("prepare with a tensor more", builder.put(expert, more), "nonsense");
}

void refuse_missing_expert(Context& context) {
  const int64_t experts = context.config().is_moe() ? context.config().moe().num_experts : 1;
  const int64_t missing = experts / 2;
  Builder builder(context, context.config());
  for (int64_t e = 0; e < experts; ++e) {
    if (e == missing) continue;
    const Reply reply = builder.put(static_cast<int32_t>(e), expert_tensors(context, e));
    if (!reply.ok()) throw Failed{fmt::format("expert {}", e), reply.print(), "PERCH_OK"};
  }
  const std::string what = fmt::format("prepare_end without expert {} of {}", missing, experts);
  const Reply refused = builder.end();
  if (refused.ok()) throw Failed{what, "PERCH_OK", "a refusal"};
  const auto number = context.config().is_moe() ? static_cast<int32_t>(missing) : -1;
  const Reply put = builder.put(number, expert_tensors(context, missing));
  const Reply end = put.ok() ? builder.end() : put;
  if (!end.ok()) throw Failed{what + ", then with it", end.print(), "PERCH_OK"};
}

// An index out of range; a linear layer has no index.
void refuse_expert_numbers(Context& context) {
  if (!context.config().is_moe()) return;
  const int64_t experts = context.config().moe().num_experts;
  const std::vector<CaseTensor> good = expert_tensors(context, 0);
  for (const int64_t wrong : {experts, int64_t{-7}, int64_t{1} << 30}) {
    Builder builder(context, context.config());
    const Reply reply = builder.put(static_cast<int32_t>(wrong), good);
    if (reply.ok()) {
      throw Failed{fmt::format("prepare_put of expert {} of {}", wrong, experts), "PERCH_OK",
                   "a refusal"};
    }
  }
}

// The byte of a NaN code among 8-bit codes of `type`; 0 where it has none that contract §2 refuses.
uint8_t nan_code(uint32_t type) {
  if (type == PERCH_TYPE_E4M3FN) return 0x7F;
  return type == PERCH_TYPE_E8M0 ? 0xFF : 0;
}

void refuse_nan_codes(Context& context) {
  const int32_t expert = context.config().is_moe() ? 0 : -1;
  const std::vector<CaseTensor> good = expert_tensors(context, 0);
  for (size_t i = 0; i < good.size(); ++i) {
    const std::string& name = good[i].spec.name;
    const bool second = name.rfind("w2", 0) == 0;
    const perch_quant& quant = second ? context.config().second() : context.config().first();
    const size_t dot = name.find('.');
    const bool scale = dot != std::string::npos && name.substr(dot) == ".scale";
    if (!scale && dot != std::string::npos) continue;
    const uint8_t code = nan_code(scale ? quant.scale_dtype : quant.weight);
    if (code == 0) continue;
    std::vector<CaseTensor> tensors = good;
    tensors[i].data.back() = static_cast<std::byte>(code);
    Builder builder(context, context.config());
    expect_refused("prepare with a NaN code in " + name, builder.put(expert, tensors), name);
    perch::LayerConfig allowing = context.config();
    allowing.layer().flags |= PERCH_LAYER_ALLOW_NAN;
    Builder lenient(context, allowing);
    const Reply reply = lenient.put(expert, tensors);
    if (!reply.ok()) throw Failed{"the same under ALLOW_NAN", reply.print(), "PERCH_OK"};
  }
}

void refuse_input_scales(Context& context) {
  const int32_t expert = context.config().is_moe() ? 0 : -1;
  const std::vector<CaseTensor> good = expert_tensors(context, 0);
  for (size_t i = 0; i < good.size(); ++i) {
    if (good[i].spec.name.find(".input_scale") == std::string::npos) continue;
    for (const float bad : {0.0F, -1.0F, std::nanf(""), HUGE_VALF}) {
      std::vector<CaseTensor> tensors = good;
      std::memcpy(tensors[i].data.data(), &bad, sizeof(bad));
      Builder builder(context, context.config());
      expect_refused(fmt::format("prepare with {} = {}", good[i].spec.name, bad),
                     builder.put(expert, tensors), good[i].spec.name);
    }
  }
}

void accept_no_rows(Context& context) {
  const CallData call = context.call({}, context.problem().load);
  const Output output = context.run(context.layer(), call);
  if (context.config().is_moe() && context.config().moe().form == PERCH_FORM_BATCHED) {
    // One row per expert, all beyond the counts.
    const auto hit = std::find_if(output.y.begin(), output.y.end(),
                                  [](std::byte byte) { return byte != std::byte{0xFF}; });
    if (hit != output.y.end()) throw Failed{"y of a call without rows", "written", "untouched"};
  }
  const CallData one = context.call({0}, context.problem().load);
  context.run(context.layer(), one);
}

}  // namespace

void check_errors(Context& context) {
  refuse_names(context);
  refuse_missing_expert(context);
  refuse_expert_numbers(context);
  refuse_nan_codes(context);
  refuse_input_scales(context);
  accept_no_rows(context);
  check_call_errors(context);
}

}  // namespace perch_check
