// Is what a backend says about a config true? Yes must run, no must refuse, numbers must hold.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/recipe.h"
#include "check/check.h"
#include "check/heap_watch.h"

namespace perch_check {
namespace {

using perch::LayerConfig;

// A config with one thing in it that no backend of this ABI can know (rule R7).
struct Stranger {
  std::string what;
  std::function<void(LayerConfig*)> make;
};

// Promises that no check looks at; said aloud, never passed over.
constexpr perch_caps kUnseen =
    PERCH_CAP_PREQUANTIZED_INPUT | PERCH_CAP_GRAPH_CAPTURE | PERCH_CAP_ASYNC;

constexpr uint64_t kHeapSlack = uint64_t{256} << 10;

// Bytes in use of the C library's heap; 0 where a sanitizer has its own.
uint64_t heap_bytes() {
  if (!HeapWatch::available()) return 0;
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

constexpr uint32_t kUnknown = 99;
constexpr uint32_t kUnknownFlag = 1U << 30;

void add_quant_strangers(const std::string& name, bool second, std::vector<Stranger>* all) {
  const auto quant = [second](LayerConfig* config) -> perch_quant& {
    return second ? config->second() : config->first();
  };
  const auto field = [&](const char* suffix, uint32_t perch_quant::*member) {
    all->push_back({name + "." + suffix + " 99",
                    [=](LayerConfig* config) { quant(config).*member = kUnknown; }});
  };
  field("weight", &perch_quant::weight);
  field("scale_kind", &perch_quant::scale_kind);
  field("scale_dtype", &perch_quant::scale_dtype);
  field("scale2_kind", &perch_quant::scale2_kind);
  field("zero_kind", &perch_quant::zero_kind);
  field("offset_kind", &perch_quant::offset_kind);
  field("k_order", &perch_quant::k_order);
  all->push_back(
      {name + ".flags bit 30", [=](LayerConfig* config) { quant(config).flags |= kUnknownFlag; }});
}

void add_act_strangers(const std::string& name, bool second, std::vector<Stranger>* all) {
  const auto act = [second](LayerConfig* config) -> perch_act_quant& {
    return second ? config->act_second() : config->act_first();
  };
  all->push_back({name + ".dtype 99", [=](LayerConfig* config) { act(config).dtype = kUnknown; }});
  all->push_back({name + ".mode 99", [=](LayerConfig* config) { act(config).mode = kUnknown; }});
}

const perch_ext kStrange{sizeof(perch_ext), 59999, PERCH_EXT_MUST_UNDERSTAND, 0, nullptr};

std::vector<Stranger> strangers(const LayerConfig& config) {
  std::vector<Stranger> all = {
      {"kind 99", [](LayerConfig* c) { c->layer().kind = kUnknown; }},
      {"device type 99", [](LayerConfig* c) { c->layer().device.device_type = 99; }},
      {"in_dtype 99", [](LayerConfig* c) { c->layer().in_dtype = kUnknown; }},
      {"out_dtype 99", [](LayerConfig* c) { c->layer().out_dtype = kUnknown; }},
      {"flags bit 30", [](LayerConfig* c) { c->layer().flags |= kUnknownFlag; }},
      {"option no-such-option", [](LayerConfig* c) { c->set_option("no-such-option", "1"); }},
      {"a must-understand extension of the layer",
       [](LayerConfig* c) { c->layer().next = &kStrange; }},
      {"a must-understand extension of the weight",
       [](LayerConfig* c) { c->first().next = &kStrange; }}};
  if (!config.is_moe()) {
    add_quant_strangers("linear.weight", false, &all);
    add_act_strangers("linear.act", false, &all);
    return all;
  }
  all.push_back({"moe.activation 99", [](LayerConfig* c) { c->moe().activation = kUnknown; }});
  all.push_back({"moe.form 99", [](LayerConfig* c) { c->moe().form = kUnknown; }});
  all.push_back({"moe.flags bit 30", [](LayerConfig* c) { c->moe().flags |= kUnknownFlag; }});
  all.push_back(
      {"a must-understand extension of moe", [](LayerConfig* c) { c->moe().next = &kStrange; }});
  add_quant_strangers("moe.w13", false, &all);
  add_quant_strangers("moe.w2", true, &all);
  add_act_strangers("moe.act13", false, &all);
  add_act_strangers("moe.act2", true, &all);
  return all;
}

// A refusal has words, and prepare holds to it.
void expect_refusal(Instance& instance, const LayerConfig& config, uint32_t variant,
                    const std::string& what) {
  const Answer answer = instance.query(config.abi(), variant);
  if (!answer.reply.ok()) {
    throw Failed{what, answer.reply.print(), "PERCH_OK with verdict NO and its reasons"};
  }
  if (answer.yes()) throw Failed{what, "verdict YES", "verdict NO, with the field's name"};
  if (answer.support.verdict != PERCH_VERDICT_NO) {
    throw Failed{what, fmt::format("verdict {}", answer.support.verdict), "NO (2)"};
  }
  const bool silent =
      answer.reasons.empty() || answer.support.num_reasons == 0 ||
      std::any_of(answer.reasons.begin(), answer.reasons.end(), [](const perch_reason& reason) {
        return reason.code == 0 || reason.field[0] == '\0' || reason.text[0] == '\0';
      });
  if (silent) throw Failed{what, "a refusal without field or text", "a reason for each"};
  perch_error error = PERCH_ERROR_INIT;
  perch_builder* builder = nullptr;
  const perch_stream stream{{kDLCPU, 0}, nullptr, 0, 0};
  const perch_status status = instance.api().prepare_begin(instance.handle(), &config.abi(),
                                                           variant, &stream, &builder, &error);
  if (status != PERCH_OK) return;
  instance.api().prepare_abort(builder);
  throw Failed{what + ": prepare_begin", "PERCH_OK",
               "a refusal as of query_support: " + answer.print_reasons()};
}

void expect_pure(Context& context) {
  const Answer& first = context.answer();
  const Answer second = context.instance().query(context.config().abi(), context.variant());
  const auto same = [&](auto perch_support::*field) {
    return std::memcmp(&(first.support.*field), &(second.support.*field),
                       sizeof(first.support.*field)) == 0;
  };
  if (same(&perch_support::verdict) && same(&perch_support::caps) && same(&perch_support::score) &&
      same(&perch_support::packed_bytes) && same(&perch_support::workspace_bytes) &&
      same(&perch_support::flags) && same(&perch_support::kernel)) {
    return;
  }
  throw Failed{"query_support asked twice", "two answers", "one"};
}

void expect_caps_known(const Context& context) {
  const perch_caps caps = context.answer().support.caps;
  const perch_caps beyond = caps & ~context.api()->info->caps_possible;
  if (beyond == 0) return;
  throw Failed{"promises that perch_backend_info.caps_possible does not list",
               perch::print_caps(beyond), "none"};
}

void expect_bytes(Context& context) {
  // Guarded, so that what comes from the host lies outside of the heap.
  HostOptions host;
  host.guarded = true;
  Instance instance(context.api(), host);
  const uint64_t before_it = heap_bytes();
  PrepareOptions prepare;
  prepare.seed = context.problem().seed;
  const Prepared layer(instance, context.config(), context.variant(), prepare);
  if (!layer.reply().ok()) throw Failed{"prepare", layer.reply().print(), "PERCH_OK"};
  const uint64_t in_heap = std::max(heap_bytes(), before_it) - before_it;
  const perch_support& support = context.answer().support;
  // Of the host it is known to the byte. In the heap other things lie too, and the heap rounds.
  uint64_t held = instance.host().live_bytes();
  const uint64_t room = support.packed_bytes + support.packed_bytes / 4 + kHeapSlack;
  if (held + in_heap > room) held += in_heap;
  if (held > support.packed_bytes) {
    throw Failed{"packed_bytes", fmt::format("{} declared, {} held", support.packed_bytes, held),
                 "no more held than declared"};
  }
  uint64_t before = 0;
  const int64_t most = context.config().abi().max_tokens;
  for (int64_t tokens = 0; tokens <= most; tokens = tokens < 8 ? tokens + 1 : tokens * 2) {
    const perch_workspace_req request = layer.workspace(tokens);
    const uint32_t align = std::max(request.align, 1U);
    if ((align & (align - 1)) != 0 || align > 4096) {
      throw Failed{"workspace alignment", fmt::format("{}", request.align),
                   "a power of two, at most 4096"};
    }
    if (request.bytes < before) {
      throw Failed{fmt::format("workspace of {} tokens", tokens),
                   fmt::format("{} bytes, {} for fewer", request.bytes, before),
                   "never less for more tokens"};
    }
    before = request.bytes;
  }
  const uint64_t all = layer.workspace(most).bytes;
  if (all > support.workspace_bytes) {
    throw Failed{"workspace_bytes",
                 fmt::format("{} declared for max_tokens, workspace() asks for {}",
                             support.workspace_bytes, all),
                 "at least as many declared"};
  }
}

}  // namespace

void check_claims(Context& context) {
  if (!context.answer().yes()) {
    Instance instance(context.api(), {});
    expect_refusal(instance, context.config(), context.variant(), "this case");
    return;
  }
  expect_pure(context);
  expect_caps_known(context);
  if (context.answer().support.kernel[0] == '\0') {
    throw Failed{"kernel", "no name", "the kernel's name"};
  }
  expect_bytes(context);
  context.run(context.layer(), context.own_call(Fill::kReal));
  for (const Stranger& stranger : strangers(context.config())) {
    LayerConfig config = context.config();
    stranger.make(&config);
    expect_refusal(context.instance(), config, context.variant(), stranger.what);
  }
  const perch_caps unseen = context.answer().support.caps & kUnseen;
  if (unseen != 0) {
    throw Untrusted{"promised, and held to by no check yet: " + perch::print_caps(unseen)};
  }
}

}  // namespace perch_check
