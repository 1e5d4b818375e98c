#include "plugin/host_table.h"

#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/clean_text.h"

namespace perch {

struct HostSlot {
  perch_host_api api{};
  HostServices services;
  LogSink log;
  bool leased = false;
};

namespace {

constexpr size_t kMessageBytesMax = 8192;
constexpr size_t kComponentBytesMax = 64;

HostSlot& slot_of(void* ctx) { return *static_cast<HostSlot*>(ctx); }

void PERCH_CALL host_log(void* ctx, int32_t level, const char* component, const char* message) {
  const HostSlot& slot = slot_of(ctx);
  if (slot.log.write == nullptr) return;
  const std::string who = clean_text(component, kComponentBytesMax);
  const std::string what = clean_text(message, kMessageBytesMax);
  slot.log(level, who.empty() ? "backend" : who.c_str(), what.c_str());
}

void* PERCH_CALL host_alloc(void* ctx, uint64_t bytes, uint64_t align) {
  const HostSlot& slot = slot_of(ctx);
  if (slot.services.alloc != nullptr) return slot.services.alloc(slot.services.ctx, bytes, align);
  if (align == 0 || (align & (align - 1)) != 0) {
    slot.log(PERCH_LOG_BACKEND_MISUSE, "host", "alloc: align is not a power of two");
    return nullptr;
  }
  void* memory = nullptr;
  const uint64_t least = std::max<uint64_t>(align, sizeof(void*));
  return posix_memalign(&memory, least, std::max<uint64_t>(bytes, 1)) == 0 ? memory : nullptr;
}

void PERCH_CALL host_free(void* ctx, void* memory) {
  const HostServices& services = slot_of(ctx).services;
  if (services.free_memory != nullptr) {
    services.free_memory(services.ctx, memory);
  } else {
    free(memory);
  }
}

int32_t PERCH_CALL host_num_threads(void* ctx) {
  const HostServices& services = slot_of(ctx).services;
  return services.num_threads == nullptr ? 1 : services.num_threads(services.ctx);
}

void PERCH_CALL host_parallel_for(void* ctx, int64_t count, perch_task_fn task, void* arg) {
  const HostServices& services = slot_of(ctx).services;
  if (services.parallel_for != nullptr) {
    services.parallel_for(services.ctx, count, task, arg);
    return;
  }
  for (int64_t index = 0; index < count; ++index) task(arg, index, 0);
}

const void* PERCH_CALL host_get_extension(void* /*ctx*/, const char* /*id*/) { return nullptr; }

perch_host_api make_api(HostSlot* slot) {
  perch_host_api api{};
  api.struct_size = sizeof(api);
  api.magic = PERCH_ABI_MAGIC;
  api.abi_major = PERCH_ABI_MAJOR;
  api.abi_minor = PERCH_ABI_MINOR;
  api.ctx = slot;
  api.log = host_log;
  api.alloc = host_alloc;
  api.free_memory = host_free;
  api.num_threads = host_num_threads;
  api.parallel_for = host_parallel_for;
  api.get_extension = host_get_extension;
  return api;
}

// Every slot ever made: never freed, used again by the next runtime.
struct Slots {
  std::mutex mutex;
  std::vector<std::unique_ptr<HostSlot>> all;
};
Slots& slots() {
  static Slots* const forever = new Slots;
  return *forever;
}

}  // namespace

HostTable::HostTable(const HostServices& services, const LogSink& log) {
  const std::lock_guard lock(slots().mutex);
  auto& all = slots().all;
  const auto unused =
      std::find_if(all.begin(), all.end(), [](const auto& slot) { return !slot->leased; });
  if (unused == all.end()) {
    slot_ = all.emplace_back(std::make_unique<HostSlot>()).get();
    slot_->api = make_api(slot_);
  } else {
    slot_ = unused->get();
  }
  slot_->services = services;
  slot_->log = log;
  slot_->leased = true;
}

HostTable::~HostTable() {
  const std::lock_guard lock(slots().mutex);
  slot_->services = {};
  slot_->log = {};
  slot_->leased = false;
}

const perch_host_api* HostTable::api() const { return &slot_->api; }

}  // namespace perch
