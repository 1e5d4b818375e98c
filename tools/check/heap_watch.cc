// The functions at the end take the place of libc's in the whole command, libperch and the backends
// included.
#include "check/heap_watch.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PERCH_COUNTS_ALLOCATIONS 1
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef PERCH_COUNTS_ALLOCATIONS
#endif
#endif
#endif

namespace perch_check {
namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> calls{0};
std::atomic<int64_t> started{0};

[[maybe_unused]] void count() {
  if (counting.load(std::memory_order_relaxed)) calls.fetch_add(1);
}

}  // namespace

bool HeapWatch::available() {
#ifdef PERCH_COUNTS_ALLOCATIONS
  return true;
#else
  return false;
#endif
}

int64_t threads_started() { return HeapWatch::available() ? started.load() : -1; }

void HeapWatch::start() {
  calls = 0;
  counting = true;
}

int64_t HeapWatch::stop() {
  counting = false;
  return calls;
}

// Called by what follows, which stands outside of the namespace.
[[maybe_unused]] static void count_thread() { started.fetch_add(1); }

}  // namespace perch_check

#ifdef PERCH_COUNTS_ALLOCATIONS
using perch_check::count;
using perch_check::count_thread;
#define PERCH_TAKES_PLACE extern "C" __attribute__((visibility("default")))

// NOLINTBEGIN(bugprone-reserved-identifier): libc's names of its own functions
extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* __libc_calloc(size_t count, size_t bytes);
extern "C" void* __libc_realloc(void* memory, size_t bytes);
extern "C" void* __libc_memalign(size_t align, size_t bytes);
// NOLINTEND(bugprone-reserved-identifier)

PERCH_TAKES_PLACE void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
PERCH_TAKES_PLACE void* calloc(size_t number, size_t bytes) {
  count();
  return __libc_calloc(number, bytes);
}
PERCH_TAKES_PLACE void* realloc(void* memory, size_t bytes) {
  count();
  return __libc_realloc(memory, bytes);
}
PERCH_TAKES_PLACE void* memalign(size_t align, size_t bytes) {
  count();
  return __libc_memalign(align, bytes);
}
PERCH_TAKES_PLACE void* aligned_alloc(size_t align, size_t bytes) {
  count();
  return __libc_memalign(align, bytes);
}
PERCH_TAKES_PLACE int posix_memalign(void** memory, size_t align, size_t bytes) {
  count();
  *memory = __libc_memalign(align, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
PERCH_TAKES_PLACE void* mmap(void* address, size_t bytes, int protection, int flags, int file,
                             off_t offset) {
  count();
  const long result = syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
  return reinterpret_cast<void*>(result);  // NOLINT(performance-no-int-to-ptr): as the kernel gives
}
PERCH_TAKES_PLACE int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                     void* (*work)(void*), void* arg) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  count_thread();
  return create(thread, attributes, work, arg);
}
#endif
