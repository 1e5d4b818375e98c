// What the fuzz targets share: how one is named, how it says that a promise is broken, the bug that
// is planted into its second build, and a reader of bytes.
//
// A target is one file <what>_fuzz.cc, built three times. Alone with libFuzzer: broken promises
// abort. Likewise with PERCH_FUZZ_SEEDED: its planted bug aborts too, which a fuzzer that works
// must find. With the others in fuzz_tests (PERCH_FUZZ_CORPUS_TEST), where the planted bug is only
// noted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace perch::fuzz {

using Bytes = std::span<const uint8_t>;

struct Target {
  const char* name;
  void (*run)(Bytes bytes);
  std::span<const std::string_view> words;  // of its language; empty where it reads no text
};

// What happened since the test last set it back.
struct Notes {
  bool accepted = false;  // the input went all the way through
  bool planted = false;   // and reached the planted bug
};

inline std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}
inline Notes& notes() {
  static Notes current;
  return current;
}

[[noreturn]] inline void fail(const char* what, const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, condition);
  std::abort();
}

// Called by a target where its input was taken: seeds of which none is are no seeds.
inline void accept() { notes().accepted = true; }

// A copy in a block of exactly its size, so that the address sanitizer sees a read beyond it.
template <typename T>
std::unique_ptr<T[]> exact_copy(std::span<const T> values) {
  auto copy = std::make_unique<T[]>(values.size());
  std::copy(values.begin(), values.end(), copy.get());
  return copy;
}

// Numbers from bytes; zeros when there are no more.
class Reader {
 public:
  explicit Reader(Bytes bytes) : left_(bytes) {}

  template <typename T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const size_t count = std::min(sizeof(T), left_.size());
    if (count > 0) std::memcpy(&value, left_.data(), count);
    left_ = left_.subspan(count);
    return value;
  }
  // One byte below 240 is that size; others announce any 64 bits.
  int64_t take_size() {
    const auto small = take<uint8_t>();
    return small < 240 ? small : take<int64_t>();
  }
  Bytes take_bytes(size_t count) {
    const Bytes taken = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  bool empty() const { return left_.empty(); }

 private:
  Bytes left_;
};

inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

#if defined(PERCH_FUZZ_SEEDED)
inline void plant(bool reached, const char* condition, const char* file, int line) {
  if (reached) fail("planted bug", condition, file, line);
}
#else
inline void plant(bool reached, const char* /*condition*/, const char* /*file*/, int /*line*/) {
  notes().planted |= reached;
}
#endif

}  // namespace perch::fuzz

// A promise of the code under test.
#define PERCH_FUZZ_CHECK(condition)                                                          \
  do {                                                                                       \
    if (!(condition)) ::perch::fuzz::fail("broken promise", #condition, __FILE__, __LINE__); \
  } while (false)

// The bug of the seeded build: a condition that no seed meets and that mutants of them do.
#define PERCH_FUZZ_BUG(condition) ::perch::fuzz::plant((condition), #condition, __FILE__, __LINE__)

// PERCH_FUZZ_TARGET(tensor_view, fuzz_tensor_view), once per file. One that reads text includes
// mutate.h and says PERCH_FUZZ_TEXT_TARGET(case_line, fuzz_case_line, kWords).
#if defined(PERCH_FUZZ_CORPUS_TEST)
#define PERCH_FUZZ_TEXT_TARGET(name, function, words)          \
  [[maybe_unused]] static const bool perch_fuzz_added_##name = \
      (::perch::fuzz::targets().push_back({#name, function, words}), true)
#define PERCH_FUZZ_TARGET(name, function) PERCH_FUZZ_TEXT_TARGET(name, function, {})
#else
#define PERCH_FUZZ_TARGET(name, function)                                   \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    function({data, size});                                                 \
    return 0;                                                               \
  }                                                                         \
  static_assert(sizeof(#name) > 1)
#define PERCH_FUZZ_TEXT_TARGET(name, function, words)                                    \
  extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t capacity, \
                                            unsigned seed) {                             \
    return ::perch::fuzz::mutate_text({data, capacity}, size, seed, words);              \
  }                                                                                      \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {              \
    ::perch::fuzz::run_text(function, {data, size});                                     \
    return 0;                                                                            \
  }                                                                                      \
  static_assert(sizeof(#name) > 1)
#endif
