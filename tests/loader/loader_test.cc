// One library at a time, each with one defect, beside one that is right: the defect gives exactly
// one line with path and reason, and the right one still loads (field_reports.md G2, G4, G6).
#include <gtest/gtest.h>
#include <signal.h>

#include <climits>
#include <ostream>

#include "plugin/clean_text.h"
#include "plugin/elf_check.h"
#include "scratch_directory.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace perch {
namespace {

using State = LibraryState;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

struct Defect {
  const char* fixture;
  State state;
  perch_status code;
  int32_t reason_code;
  const char* reason;  // part of it
};
void PrintTo(const Defect& defect, std::ostream* out) { *out << defect.fixture; }

class OneDefect : public ScratchDirectory, public testing::WithParamInterface<Defect> {};

TEST_P(OneDefect, IsOneLineAndTheOthersLoad) {
  const Defect& want = GetParam();
  const std::string bad = add_fixture(want.fixture);
  const std::string good = add_fixture("good", "zz_good");
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Registry registry;
  const Status status = registry.load_all(options());
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");

  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(registry.libraries().size(), 2U);
  const LibraryRecord& record = registry.libraries()[0];
  EXPECT_EQ(record.path, bad);
  EXPECT_STREQ(state_name(record.state), state_name(want.state)) << record.reason;
  EXPECT_EQ(record.code, want.code) << record.reason;
  EXPECT_EQ(record.reason_code, want.reason_code) << record.reason;
  EXPECT_NE(record.reason.find(want.reason), std::string::npos) << record.reason;
  EXPECT_EQ(record.reason.find('\n'), std::string::npos);
  EXPECT_EQ(record.backend, nullptr);

  const auto lines = lines_at_least(PERCH_LOG_WARN);
  ASSERT_EQ(lines.size(), 1U) << lines.back().message;
  EXPECT_EQ(lines[0].message, bad + ": " + record.reason);
  EXPECT_EQ(lines[0].level,
            want.code == PERCH_E_CONTRACT ? PERCH_LOG_BACKEND_MISUSE : PERCH_LOG_WARN);

  ASSERT_NE(registry.find("good"), nullptr);
  EXPECT_EQ(registry.find("good")->path, good);
}

constexpr int32_t kLoad = PERCH_REASON_LOAD;
constexpr int32_t kAbi = PERCH_REASON_ABI;

const Defect kDefects[] = {
    {"no_entry", State::kFailed, PERCH_E_INVALID_ARGUMENT, kLoad,
     "no perch_backend_entry_v1: not a Perch backend"},
    {"entry_v2", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi,
     "(found perch_backend_entry_v2): built for another major version"},
    {"undefined_symbol", State::kFailed, PERCH_E_NOT_FOUND, kLoad,
     "undefined symbol: perch_fixture_not_there"},
    {"missing_dependency", State::kFailed, PERCH_E_NOT_FOUND, kLoad, "libnope.so.9"},
    {"entry_error", State::kFailed, PERCH_E_UNSUPPORTED, kLoad,
     "perch_backend_entry_v1: this build is for another planet"},
    {"entry_null", State::kFailed, PERCH_E_CONTRACT, kAbi, "no table"},
    {"bad_magic", State::kFailed, PERCH_E_CONTRACT, kAbi, "magic is 0x12345678"},
    {"major_2", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi,
     "built for ABI 2.0; this runtime has 1.0"},
    {"size_0", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi, "perch_backend_api is 0 bytes"},
    {"size_4", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi, "perch_backend_api is 4 bytes"},
    {"size_short", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi, "perch_backend_api is 175 bytes"},
    {"size_huge", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi, "4294967295 bytes"},
    {"info_short", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi, "perch_backend_info is 8 bytes"},
    {"sizes_short", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi, "perch_struct_sizes is 4 bytes"},
    {"quant_short", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi, "perch_quant is 0 bytes"},
    {"minor_required", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi,
     "needs host ABI 1.2; this runtime has 1.0"},
    {"must_understand", State::kFailed, PERCH_E_ABI_MISMATCH, kAbi, "host features 0x4"},
    {"null_create", State::kFailed, PERCH_E_CONTRACT, kAbi, "create is NULL"},
    {"null_execute", State::kFailed, PERCH_E_CONTRACT, kAbi, "execute is NULL"},
    {"null_version", State::kFailed, PERCH_E_CONTRACT, kAbi, "version is NULL"},
    {"bad_id", State::kFailed, PERCH_E_CONTRACT, kAbi, "id is 'Bad_Id'"},
    {"long_id", State::kFailed, PERCH_E_CONTRACT, kAbi, "at most 63 bytes"},
    {"create_error", State::kFailed, PERCH_E_DEVICE, kLoad,
     "create: driver 535 is too old; want 550"},
    {"create_silent_error", State::kFailed, PERCH_E_INTERNAL, kLoad, "status 777 and no text"},
    {"create_garbage_error", State::kFailed, PERCH_E_INTERNAL, kLoad, "line 1 line 2 ?? "},
    {"create_nothing", State::kFailed, PERCH_E_CONTRACT, kAbi, "made no backend"},
    {"throws_runtime_error", State::kFailed, PERCH_E_EXCEPTION, kLoad, "no kernel for this CPU"},
    {"throws_int", State::kFailed, PERCH_E_EXCEPTION, kLoad, "not a std::exception"},
    {"throws_bad_alloc", State::kFailed, PERCH_E_OUT_OF_MEMORY, kLoad, "out of memory"},
    // Caught because test and fixture share one C++ runtime: nothing to rely on.
    {"unguarded", State::kFailed, PERCH_E_CONTRACT, kAbi, "nobody catches me"},
};
INSTANTIATE_TEST_SUITE_P(Loader, OneDefect, testing::ValuesIn(kDefects),
                         [](const auto& test) { return std::string(test.param.fixture); });

class Loader : public ScratchDirectory {};

TEST_F(Loader, GoodOneIsListedInFull) {
  const std::string path = add_fixture("good");
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  ASSERT_EQ(registry.libraries().size(), 1U);
  const LibraryRecord& record = registry.libraries()[0];
  EXPECT_EQ(record.state, State::kLoaded);
  EXPECT_EQ(record.reason, "");
  EXPECT_EQ(record.reason_code, 0);
  EXPECT_EQ(record.path, path);
  EXPECT_EQ(record.real_path, path);
  EXPECT_EQ(record.id, "good");
  EXPECT_EQ(record.version, "1.2.3");
  EXPECT_EQ(record.abi, "1.0");
  EXPECT_EQ(record.build_id.size(), 40U) << record.build_id;
  EXPECT_EQ(record.caps_possible, PERCH_CAP_DETERMINISTIC);
  ASSERT_EQ(record.devices.size(), 2U);
  EXPECT_TRUE(record.devices[0].usable);
  EXPECT_EQ(record.devices[0].name, "fake device");
  EXPECT_EQ(record.devices[0].arch, "fake-isa");
  EXPECT_EQ(record.devices[0].memory_bytes, 1U << 20);
  EXPECT_FALSE(record.devices[1].usable);
  EXPECT_EQ(record.devices[1].reason, "there is only one");
  EXPECT_TRUE(lines_at_least(PERCH_LOG_INFO).empty());
}

TEST_F(Loader, OptionalMembersMayBeNull) {
  add_fixture("null_optional");
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  EXPECT_NE(registry.find("null-optional"), nullptr);
}

TEST_F(Loader, NewerMinorLoadsAndItsTailIsIgnored) {
  add_fixture("newer");
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  const LibraryRecord* record = registry.find("newer");
  ASSERT_NE(record, nullptr) << registry.libraries()[0].reason;
  EXPECT_EQ(record->abi, "1.7");
}

TEST_F(Loader, DeviceThatCannotBeReadIsListedAsUnusable) {
  add_fixture("device_error");
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  const LibraryRecord* record = registry.find("device-error");
  ASSERT_NE(record, nullptr);
  ASSERT_EQ(record->devices.size(), 2U);
  EXPECT_FALSE(record->devices[0].usable);
  EXPECT_EQ(record->devices[0].reason, "device_get: the driver does not answer");
}

// Dies where nothing on our side can help: a C++ runtime of its own, or ours in libperch.so.
// Never is it loaded as if nothing had happened. This documents why guard.hpp is not optional.
TEST_F(Loader, UnguardedExceptionEndsTheProcessOrIsAReason) {
  if (!std::filesystem::exists(fixture_path("unguarded_static"))) {
    GTEST_SKIP() << "not built with sanitizers";
  }
  add_fixture("unguarded_static");
  const int status = run_in_child([this] {
    Registry registry;
    return registry.load_all(options()).ok() && registry.find("unguarded-static") == nullptr;
  });
  const bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  EXPECT_TRUE(aborted || status == 0) << status;
}

#if defined(__x86_64__)
void expect_float_state_given_back(const std::string& path, const std::string& id,
                                   const std::string& when, const PluginOptions& options) {
  const unsigned before = _mm_getcsr();
  Registry registry;
  const Status status = registry.load_all(options);
  EXPECT_EQ(_mm_getcsr(), before);
  ASSERT_TRUE(status.ok());
  const LibraryRecord* record = registry.find(id);
  ASSERT_NE(record, nullptr) << registry.libraries()[0].reason;
  EXPECT_EQ(record->path, path);
  ASSERT_EQ(record->complaints.size(), 1U);
  EXPECT_EQ(record->complaints[0].rfind(when + " changed the floating-point state (MXCSR ", 0), 0U)
      << record->complaints[0];
}

TEST_F(Loader, FlushToZeroAtLoadIsPutBack) {
  const std::string path = add_fixture("flushes_at_load");
  expect_float_state_given_back(path, "flushes-at-load", "loading it", options());
  const auto lines = lines_at_least(PERCH_LOG_WARN);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].level, PERCH_LOG_BACKEND_MISUSE);
  EXPECT_EQ(lines[0].message.rfind(path, 0), 0U) << lines[0].message;
}

TEST_F(Loader, FastMathLinkIsPutBack) {
  const std::string path = add_fixture("fast_math_link");
  expect_float_state_given_back(path, "fast-math-link", "loading it", options());
}

TEST_F(Loader, FlushToZeroInCreateIsPutBack) {
  const std::string path = add_fixture("flushes_in_create");
  expect_float_state_given_back(path, "flushes-in-create", "create", options());
}

// Runs itself again under qemu's Haswell, since the machine may well have AVX-512.
TEST_F(Loader, NewerIsaIsRefusedBeforeItsCodeRuns) {
  if (std::getenv("PERCH_TEST_ON_HASWELL") != nullptr) {
    add_fixture("isa_v4");
    Registry registry;
    ASSERT_TRUE(registry.load_all(options()).ok());
    const LibraryRecord& record = registry.libraries()[0];
    EXPECT_EQ(record.state, State::kFailed);
    EXPECT_NE(record.reason.find("CPU ISA level"), std::string::npos) << record.reason;
    return;
  }
  if (kSanitized) GTEST_SKIP() << "sanitizers do not run under qemu";
  if (std::system("command -v qemu-x86_64 >/dev/null") != 0) {
    GTEST_SKIP() << "no qemu-x86_64 (Debian package qemu-user)";
  }
  const std::string self = std::filesystem::canonical("/proc/self/exe");
  const std::string command = "PERCH_TEST_ON_HASWELL=1 qemu-x86_64 -cpu Haswell " + self +
                              " --gtest_filter=Loader.NewerIsaIsRefusedBeforeItsCodeRuns 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) output += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << output;
}
#endif

// ---- Files that are no libraries ----------------------------------------------------------------

TEST_F(Loader, FilesThatAreNoLibraries) {
  const std::string good = read_file(fixture_path("good"));
  std::string wrong_machine = good;
  wrong_machine[18] = '\xB7';  // e_machine: AArch64
  std::string wrong_class = good;
  wrong_class[4] = 1;
  std::string object = good;
  object[16] = 1;  // e_type: ET_REL
  add_file("libperch_a_text.so", "#!/bin/sh\necho not a library, but long enough for a header\n");
  add_file("libperch_b_empty.so", "");
  add_file("libperch_c_head.so", good.substr(0, 40));
  add_file("libperch_d_half.so", good.substr(0, good.size() / 2));
  add_file("libperch_e_almost.so", good.substr(0, good.size() - 1));
  add_file("libperch_f_machine.so", wrong_machine);
  add_file("libperch_g_class.so", wrong_class);
  add_file("libperch_h_object.so", object);
  std::filesystem::create_directory(path_ + "/libperch_i_directory.so");
  std::filesystem::create_symlink("libperch_j_loop.so", path_ + "/libperch_j_loop.so");
  std::filesystem::create_symlink("nowhere", path_ + "/libperch_k_dangling.so");
  ASSERT_EQ(mkfifo((path_ + "/libperch_l_fifo.so").c_str(), 0644), 0);
  add_fixture("good", "zz_good");
  const struct {
    const char* name;
    perch_status code;
    const char* reason;
  } want[] = {{"a_text", PERCH_E_INVALID_ARGUMENT, "not an ELF file; want a shared library"},
              {"b_empty", PERCH_E_INVALID_ARGUMENT, "is empty"},
              {"c_head", PERCH_E_INVALID_ARGUMENT, "truncated: the ELF header"},
              {"d_half", PERCH_E_INVALID_ARGUMENT, "truncated: the section header table"},
              {"e_almost", PERCH_E_INVALID_ARGUMENT, "truncated: the section header table"},
              {"f_machine", PERCH_E_UNSUPPORTED, "built for AArch64; this process runs on"},
              {"g_class", PERCH_E_UNSUPPORTED, "built for 32 bits; this process has 64"},
              {"h_object", PERCH_E_INVALID_ARGUMENT, "an object file; want a shared library"},
              {"i_directory", PERCH_E_INVALID_ARGUMENT, "is a directory"},
              {"j_loop", PERCH_E_INVALID_ARGUMENT, "Too many levels of symbolic links"},
              {"k_dangling", PERCH_E_NOT_FOUND, "No such file or directory"},
              {"l_fifo", PERCH_E_INVALID_ARGUMENT, "is not a regular file"}};
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  ASSERT_EQ(registry.libraries().size(), std::size(want) + 1);
  for (size_t i = 0; i < std::size(want); ++i) {
    const LibraryRecord& record = registry.libraries()[i];
    EXPECT_EQ(record.path, path_ + "/libperch_" + want[i].name + ".so");
    EXPECT_EQ(record.state, State::kFailed);
    EXPECT_EQ(record.code, want[i].code) << record.path << ": " << record.reason;
    EXPECT_NE(record.reason.find(want[i].reason), std::string::npos) << record.reason;
  }
  EXPECT_EQ(lines_at_least(PERCH_LOG_WARN).size(), std::size(want));
  EXPECT_NE(registry.find("good"), nullptr);
}

TEST_F(Loader, AnyTruncationIsRefused) {
  const std::string good = read_file(fixture_path("good"));
  const std::string path = add_file("libperch_cut.so", good);
  EXPECT_TRUE(check_elf(path).ok());
  for (size_t size = good.size() - 1; size > 0; size -= 1 + size / 16) {
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(size)), 0);
    EXPECT_FALSE(check_elf(path).ok()) << size;
  }
}

TEST_F(Loader, AnyDamagedHeaderByteIsSurvived) {
  const std::string good = read_file(fixture_path("good"));
  std::fstream file(add_file("libperch_damaged.so", good),
                    std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&file](size_t at, char value) {
    file.seekp(static_cast<std::streamoff>(at)).put(value).flush();
  };
  constexpr size_t kHeadBytes = 64 + 12 * 56;  // ELF header and program headers
  for (size_t at = 0; at < kHeadBytes; ++at) {
    for (const char value : {'\x00', '\x7F', '\xFF'}) {
      put(at, value);
      (void)check_elf(path_ + "/libperch_damaged.so");
    }
    put(at, good[at]);
  }
  EXPECT_TRUE(check_elf(path_ + "/libperch_damaged.so").ok());
}

TEST(CleanText, IsOneLineOfUtf8) {
  EXPECT_EQ(clean_text(nullptr, 9), "");
  EXPECT_EQ(clean_text("abc", 2), "ab");
  EXPECT_EQ(clean_text("a\tb\r\nc\x7F", 99), "a b  c ");
  EXPECT_EQ(clean_text("\u00FC \u20AC \U0001F426", 99), "\u00FC \u20AC \U0001F426");
  // A lone tail, too long a form, a surrogate, beyond Unicode, and one cut off by the limit.
  EXPECT_EQ(clean_text("\x80 \xC0\xAF \xED\xA0\x80 \xF4\x90\x80\x80", 99), "? ?? ??? ????");
  EXPECT_EQ(clean_text("\u20AC", 2), "??");
}

// Every struct_size around the 1.0 size, on a table in memory.
TEST(CheckBackendApi, StructSizes) {
  EXPECT_EQ(check_backend_api(nullptr).code(), PERCH_E_CONTRACT);
  const perch_struct_sizes sizes = PERCH_STRUCT_SIZES_INIT;
  for (const uint32_t size : {0U, 1U, 7U, 175U, 65537U, UINT32_MAX}) {
    perch_backend_api api{};
    api.magic = PERCH_ABI_MAGIC;
    api.abi_major = PERCH_ABI_MAJOR;
    api.sizes = &sizes;
    api.struct_size = size;
    EXPECT_EQ(check_backend_api(&api).code(), PERCH_E_ABI_MISMATCH) << size;
  }
}

}  // namespace
}  // namespace perch
