// The host API's own types, and the border that every perch_* function stands on.
//
// The api_*.cc files translate: C arguments in, the runtime's structs in the middle, a code and a
// text out. What they call lives in the folders; nothing of the data flow is decided here.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <string>

#include "base/log.h"
#include "base/recipe.h"
#include "base/status.h"
#include "canonical/model.h"
#include "config/config.h"
#include "perch/runtime.h"
#include "plugin/registry.h"
#include "run/execute.h"
#include "run/thread_pool.h"
#include "select/select.h"

struct perch_runtime {
  explicit perch_runtime(int32_t log_level) : log(log_level) {}

  perch::Log log;
  perch::Config config;
  std::unique_ptr<perch::ThreadPool> pool;  // null when the host brought its own
  perch_parallel_for_fn host_parallel_for = nullptr;
  void* host_parallel_for_ctx = nullptr;
  int32_t num_threads = 1;
  std::shared_mutex registry_mutex;  // held exclusively while a library is added
  perch::Registry registry;  // last: its backends use everything above while they are destroyed
};

struct perch_layer {
  perch_layer(perch_runtime* owner, perch::Selection selection, perch::Candidate candidate,
              perch::Prepared prepared)
      : runtime(owner), state(std::move(selection), std::move(candidate), std::move(prepared)) {
    state.validate = owner->config.validate.value;
    recipe = perch::recipe_text(state.config());
  }

  perch_runtime* runtime;
  perch::LayerState state;
  std::string recipe;
  std::optional<perch::LoadReport> load;  // of a layer from a checkpoint
};

struct perch_layer_builder {
  perch_runtime* runtime = nullptr;
  perch::Selection selection;
  std::unique_ptr<perch::Preparation> preparation;
};

struct perch_model {
  perch_runtime* runtime = nullptr;
  perch::CanonicalModel model;
  std::string backend;  // the only one allowed, or ""
  std::string requant;  // the weight format for all layers, or ""
};

namespace perch {

// Writes at most what error->struct_size allows; returns the code.
perch_status write_error(perch_error* error, const Status& status);

// Runs fn() -> Status inside a net: what throws is a status too.
template <typename Fn>
perch_status guarded_call(perch_error* error, const char* function, Fn&& fn) noexcept {
  try {
    const Status status = fn();
    return status.ok() ? PERCH_OK : write_error(error, status);
  } catch (const std::bad_alloc&) {
    return write_error(error, {PERCH_E_OUT_OF_MEMORY, ""});
  } catch (const std::exception& caught) {
    try {
      return write_error(error, internal_error(std::string(function) + ": " + caught.what()));
    } catch (...) {
      return PERCH_E_INTERNAL;
    }
  } catch (...) {
    return PERCH_E_INTERNAL;
  }
}

Status null_argument(const char* function, const char* argument);

// A struct of the caller as this library knows it: fields the caller did not have are 0; a size
// that cannot be, and bytes beyond our size that are not zero, are refused. NULL gives all zero.
template <typename T>
Result<T> read_options(const T* given, const char* function, const char* argument) {
  T known{};
  known.struct_size = sizeof(T);
  if (given == nullptr) return known;
  const uint32_t size = given->struct_size;
  if (size < sizeof(T) || size > 65536) {
    return Status(PERCH_E_ABI_MISMATCH, std::string(function) + ": " + argument +
                                            ".struct_size: got " + std::to_string(size) +
                                            "; want " + std::to_string(sizeof(T)) + " to 65536");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (uint32_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return unsupported(std::string(function) + ": " + argument +
                         ": got a field beyond the headers this library was built with; want 0");
    }
  }
  std::memcpy(&known, given, sizeof(T));
  known.struct_size = sizeof(T);
  return known;
}

// Copies a document out as runtime.h describes it.
Status copy_json(const std::string& text, char* json, uint64_t capacity, uint64_t* needed);

// A stream or, for NULL, the CPU's.
perch_stream stream_or_cpu(const perch_stream* stream, perch_device device);

// The layer of a selection: prepares the best candidate, and the next ones where the rule says so.
// `prepare` is called with each candidate tried.
template <typename Prepare>
Result<perch_layer*> make_layer(perch_runtime* runtime, Selection selection, Prepare&& prepare) {
  Status failure;
  auto& candidates = selection.candidates;
  for (auto candidate = candidates.begin(); candidate != candidates.end(); ++candidate) {
    if (!candidate->fits) break;
    Result<Prepared> prepared = prepare(selection, *candidate);
    if (prepared.ok()) {
      std::rotate(candidates.begin(), candidate, candidate + 1);
      const Candidate chosen = candidates.front();
      return new perch_layer(runtime, std::move(selection), chosen, std::move(prepared.value()));
    }
    failure = prepared.status();
    candidate->fits = false;
    candidate->reasons.push_back({PERCH_REASON_INTERNAL, "prepare", failure.message()});
    if (failure.code() == PERCH_E_UNSUPPORTED) {
      runtime->log.write(
          PERCH_LOG_BACKEND_MISUSE, candidate->backend,
          "said it supports a layer and then refused to prepare it: " + failure.message());
    }
    const bool next =
        selection.try_next_on_prepare_error &&
        (failure.code() == PERCH_E_OUT_OF_MEMORY || failure.code() == PERCH_E_UNSUPPORTED);
    if (!next) break;
    runtime->log.write(PERCH_LOG_WARN, "select", "trying the next candidate: " + failure.message());
  }
  return failure;
}

// select_backend under the registry's lock.
Result<Selection> select_in(perch_runtime* runtime, const SelectRequest& request);

// Selects, and says so where the choice is a fallback. Fails when nothing fits.
Result<Selection> choose(perch_runtime* runtime, const SelectRequest& request);

}  // namespace perch
