// Where libraries are looked for, whom they may belong to, and what the configuration says about
// them: order, trust, allow and deny, duplicates, must_load, options.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "scratch_directory.h"

namespace perch {
namespace {

class Search : public ScratchDirectory {
 protected:
  std::string add_directory(const std::string& name) {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directory(path);
    chmod(path.c_str(), 0755);
    return path;
  }
  void TearDown() override {
    unsetenv("PERCH_BACKEND_PATH");
    ScratchDirectory::TearDown();
  }
};

TEST_F(Search, OrderIsApiConfigEnvironmentAndBytewiseWithin) {
  const std::string api = add_directory("api");
  const std::string config = add_directory("config");
  const std::string environment = add_directory("environment");
  add_fixture("good", "elsewhere");
  for (const char* name : {"api/libperch_b.so", "api/libperch_B.so", "config/libperch_a.so",
                           "environment/libperch_0.so", "environment/other.so",
                           "environment/libperch_x.so.1", "environment/libperch_.txt"}) {
    add_file(name, read_file(fixture_path("good")));
  }
  add_directory("api/libperch_sub");
  add_file("api/libperch_sub/libperch_c.so", read_file(fixture_path("good")));
  PluginOptions all = options();
  all.api_paths = {api + "/"};
  all.config_paths = {config};
  all.use_environment = true;
  setenv("PERCH_BACKEND_PATH", (environment + "::" + path_ + "/libperch_elsewhere.so").c_str(), 1);
  Registry registry;
  ASSERT_TRUE(registry.load_all(all).ok());
  std::vector<std::string> paths;
  for (const LibraryRecord& record : registry.libraries()) paths.push_back(record.path);
  EXPECT_EQ(paths, (std::vector<std::string>{
                       api + "/libperch_B.so", api + "/libperch_b.so", config + "/libperch_a.so",
                       environment + "/libperch_0.so", path_ + "/libperch_elsewhere.so"}));
  ASSERT_EQ(registry.places().size(), 4U);
  EXPECT_EQ(registry.places()[0].origin, "api");
  EXPECT_EQ(registry.places()[0].num_files, 2);
  EXPECT_EQ(registry.places()[1].origin, "config");
  EXPECT_EQ(registry.places()[2].origin, "environment");
  EXPECT_EQ(registry.places()[3].num_files, 1);
}

TEST_F(Search, SameIdTwiceFirstWins) {
  const std::string first = add_fixture("good", "1");
  const std::string second = add_fixture("duplicate", "2");
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  EXPECT_EQ(registry.find("good")->path, first);
  const LibraryRecord* record = record_of(registry, second);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->state, LibraryState::kShadowed);
  EXPECT_EQ(record->reason, "shadowed by " + first);
  EXPECT_EQ(record->reason_code, PERCH_REASON_POLICY);
}

// An id means one library: a second one does not quietly stand in for the first.
TEST_F(Search, OneThatFailedToCreateStillHoldsItsId) {
  const std::string first = add_fixture("throws_int", "1");
  const std::string second = add_fixture("throws_bad_alloc", "2");
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  EXPECT_EQ(record_of(registry, second)->state, LibraryState::kShadowed);
  EXPECT_EQ(record_of(registry, second)->reason,
            "shadowed by " + first + ", which did not load: " + record_of(registry, first)->reason);
}

TEST_F(Search, SameFileTwiceIsLoadedOnce) {
  const std::string file = add_fixture("good", "z");
  std::filesystem::create_symlink("libperch_z.so", path_ + "/libperch_y.so");
  std::filesystem::create_hard_link(file, path_ + "/libperch_x.so");
  PluginOptions twice = options();
  twice.api_paths = {path_, path_, file};
  Registry registry;
  ASSERT_TRUE(registry.load_all(twice).ok());
  ASSERT_EQ(registry.libraries().size(), 1U);
  EXPECT_EQ(registry.libraries()[0].path, path_ + "/libperch_x.so");
  EXPECT_TRUE(registry.load_file(file).ok());
  EXPECT_EQ(registry.libraries().size(), 1U);
}

TEST_F(Search, PlacesThatGiveNothingAreReported) {
  PluginOptions odd = options();
  odd.api_paths = {"plugins", path_ + "/missing", path_, path_ + "/libperch_missing.so"};
  Registry registry;
  ASSERT_TRUE(registry.load_all(odd).ok());
  EXPECT_TRUE(registry.libraries().empty());
  ASSERT_EQ(registry.places().size(), 4U);
  EXPECT_EQ(registry.places()[0].reason, "is a relative path; want an absolute one");
  EXPECT_EQ(registry.places()[1].code, PERCH_E_NOT_FOUND);
  EXPECT_EQ(registry.places()[2].reason, "");
  EXPECT_EQ(registry.places()[3].code, PERCH_E_NOT_FOUND);
  const auto lines = lines_at_least(PERCH_LOG_WARN);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].message, "plugins (api path): is a relative path; want an absolute one");
}

TEST_F(Search, BuiltInDirectoryIsBesideTheCode) {
  PluginOptions builtin = options();
  builtin.api_paths.clear();
  builtin.use_builtin = true;
  Registry registry;
  ASSERT_TRUE(registry.load_all(builtin).ok());
  ASSERT_EQ(registry.places().size(), 1U);
  const std::string self = std::filesystem::canonical("/proc/self/exe").parent_path();
  EXPECT_EQ(registry.places()[0].path, self + "/perch/backends");
  EXPECT_TRUE(lines_at_least(PERCH_LOG_INFO).empty());
}

// ---- Trust
// ---------------------------------------------------------------------------------------

TEST_F(Search, WorldWritableFileIsRefusedUnlessTrusted) {
  const std::string path = add_fixture("good");
  chmod(path.c_str(), 0666);
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  ASSERT_EQ(registry.libraries().size(), 1U);
  EXPECT_EQ(registry.libraries()[0].state, LibraryState::kRefused);
  EXPECT_EQ(registry.libraries()[0].code, PERCH_E_PERMISSION);
  EXPECT_NE(registry.libraries()[0].reason.find("writable by everyone (mode 0666)"),
            std::string::npos);
  PluginOptions trusting = options();
  trusting.trust_any = true;
  Registry second;
  ASSERT_TRUE(second.load_all(trusting).ok());
  EXPECT_NE(second.find("good"), nullptr);
}

TEST_F(Search, WorldWritableDirectoryIsRefused) {
  const std::string file = add_fixture("good");
  for (const mode_t mode : {mode_t{0777}, mode_t{01777}}) {
    chmod(path_.c_str(), mode);
    Registry registry;
    ASSERT_TRUE(registry.load_all(options()).ok());
    EXPECT_TRUE(registry.libraries().empty());
    EXPECT_EQ(registry.places()[0].code, PERCH_E_PERMISSION);
  }
}

// In a sticky directory nobody can exchange a file that is ours, so one that was named is fine.
TEST_F(Search, NamedFileInWorldWritableDirectoryNeedsTheStickyBit) {
  const std::string file = add_fixture("good");
  chmod(path_.c_str(), 0777);
  Registry registry;
  const Status refused = registry.load_file(file);
  EXPECT_EQ(refused.code(), PERCH_E_PERMISSION);
  EXPECT_EQ(refused.message().rfind(file + ": its directory " + path_ + " is writable", 0), 0U)
      << refused.message();
  chmod(path_.c_str(), 01777);
  EXPECT_TRUE(registry.load_file(file).ok());
  EXPECT_EQ(registry.libraries().size(), 1U);
}

TEST_F(Search, SymlinkIntoUntrustedDirectoryIsRefused) {
  const std::string open = add_directory("open");
  add_file("open/real.so", read_file(fixture_path("good")));
  chmod(open.c_str(), 0777);
  std::filesystem::create_symlink(open + "/real.so", path_ + "/libperch_link.so");
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  EXPECT_EQ(registry.libraries()[0].state, LibraryState::kRefused);
}

TEST_F(Search, ForeignOwnerIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = add_fixture("good");
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  EXPECT_EQ(registry.libraries()[0].state, LibraryState::kRefused);
  EXPECT_NE(registry.libraries()[0].reason.find("belongs to user 12345"), std::string::npos);
}

TEST_F(Search, UnreadableFileIsRefusedAndTheOthersLoad) {
  const std::string path = add_fixture("good", "a");
  add_fixture("null_optional");
  chmod(path.c_str(), 0);
  const int status = run_in_child([&] {
    // Root may read everything: be somebody else.
    if (geteuid() == 0 && seteuid(65534) != 0) return false;
    Registry registry;
    if (!registry.load_all(options()).ok() || registry.libraries().size() != 2) return false;
    const LibraryRecord& record = registry.libraries()[0];
    return record.state == LibraryState::kRefused && record.code == PERCH_E_PERMISSION &&
           record.reason == "cannot be opened: Permission denied" &&
           registry.find("null-optional") != nullptr;
  });
  EXPECT_EQ(status, 0);
}

// ---- Configuration
// -------------------------------------------------------------------------------

TEST_F(Search, DeniedAndNotAllowedStayInTheTable) {
  const std::string denied = add_fixture("good", "named_so");
  const std::string by_name = add_fixture("create_error", "fake_gpu");
  const std::string outside = add_fixture("null_optional");
  PluginOptions policy = options();
  policy.allow = {"go*", "fake-*"};
  policy.deny = {"fake-g?u", "goo*"};
  Registry registry;
  ASSERT_TRUE(registry.load_all(policy).ok());
  const LibraryRecord* record = record_of(registry, denied);
  EXPECT_EQ(record->state, LibraryState::kDisabled);
  EXPECT_EQ(record->reason, "disabled by backends.deny: goo*");
  EXPECT_EQ(record->reason_code, PERCH_REASON_POLICY);
  EXPECT_EQ(record->id, "good");
  record = record_of(registry, by_name);
  EXPECT_EQ(record->reason, "disabled by backends.deny: fake-g?u (not opened)");
  EXPECT_EQ(record->id, "fake-gpu");
  EXPECT_EQ(record->api, nullptr);
  record = record_of(registry, outside);
  EXPECT_EQ(record->state, LibraryState::kDisabled);
  EXPECT_EQ(record->reason, "disabled: 'null-optional' is not in backends.allow (go*, fake-*)");
  EXPECT_TRUE(lines_at_least(PERCH_LOG_WARN).empty());
}

TEST_F(Search, MustLoadListsTheReasons) {
  const std::string path = add_fixture("create_error");
  add_fixture("good");
  PluginOptions must = options();
  must.must_load = {"good", "create-error", "reference"};
  Registry registry;
  const Status status = registry.load_all(must);
  EXPECT_EQ(status.code(), PERCH_E_NOT_FOUND);
  EXPECT_EQ(status.message(),
            "backends.must_load: 'create-error' did not load: " + path +
                ": create: driver 535 is too old; want 550; 'reference' did not load: no library "
                "of that id in " +
                path_);
  EXPECT_NE(registry.find("good"), nullptr);
}

TEST_F(Search, OptionsReachTheirBackendOrAreReported) {
  add_fixture("good");
  PluginOptions given = options();
  given.backend_options["good"] = {{"speed", "fast"}};
  given.backend_options["absent"] = {{"x", "1"}};
  Registry registry;
  ASSERT_TRUE(registry.load_all(given).ok());
  ASSERT_EQ(registry.warnings().size(), 1U);
  EXPECT_EQ(registry.warnings()[0],
            "backends.options.absent has no effect: no backend of that id loaded");
  const auto lines = lines_at_least(PERCH_LOG_INFO);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].component, "good");
  EXPECT_EQ(lines[0].message, "fast");

  given.backend_options["good"] = {{"sped", "fast"}};
  Registry second;
  ASSERT_TRUE(second.load_all(given).ok());
  EXPECT_EQ(second.libraries()[0].reason, "create: sped");
  EXPECT_EQ(second.libraries()[0].code, PERCH_E_INVALID_ARGUMENT);
}

TEST_F(Search, LoadFileTriesAgainWhatHadFailed) {
  const std::string path = add_file("libperch_late.so", "");
  Registry registry;
  ASSERT_TRUE(registry.load_all(options()).ok());
  const Status status = registry.load_file(path);
  EXPECT_EQ(status.message(), path + ": is empty; want a shared library");
  EXPECT_EQ(registry.libraries().size(), 1U);
  add_fixture("good", "late");
  EXPECT_TRUE(registry.load_file(path).ok());
  EXPECT_EQ(registry.libraries().size(), 1U);
  EXPECT_EQ(registry.load_file("libperch_late.so").code(), PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(registry.load_file(path_ + "/libperch_no.so").code(), PERCH_E_NOT_FOUND);
  EXPECT_EQ(registry.load_file(path_).code(), PERCH_E_INVALID_ARGUMENT);
}

TEST_F(Search, TwoRegistriesMayLiveSideBySide) {
  add_fixture("good");
  Registry first;
  ASSERT_TRUE(first.load_all(options()).ok());
  {
    Registry second;
    ASSERT_TRUE(second.load_all(options()).ok());
    EXPECT_NE(second.find("good")->backend, first.find("good")->backend);
    EXPECT_NE(second.host(), first.host());
  }
  EXPECT_NE(first.find("good"), nullptr);
}

TEST_F(Search, ThreadsMayLoadAtOnce) {
  add_fixture("good");
  add_fixture("create_error");
  PluginOptions quiet = options();
  quiet.log = {};
  std::vector<std::thread> threads;
  std::atomic<int> loaded = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Registry registry;
      if (registry.load_all(quiet).ok() && registry.find("good") != nullptr) ++loaded;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loaded, 4);
}

// ---- The host's table
// ----------------------------------------------------------------------------

TEST(HostTable, WithoutServicesItIsSerialAndStillComplete) {
  const HostTable table({}, {});
  const perch_host_api& host = *table.api();
  EXPECT_EQ(host.struct_size, sizeof(perch_host_api));
  EXPECT_EQ(host.magic, PERCH_ABI_MAGIC);
  EXPECT_EQ(host.num_threads(host.ctx), 1);
  EXPECT_EQ(host.get_extension(host.ctx, "anything"), nullptr);
  host.log(host.ctx, PERCH_LOG_ERROR, nullptr, nullptr);
  std::vector<int64_t> seen;
  host.parallel_for(
      host.ctx, 3,
      [](void* arg, int64_t index, int32_t tid) {
        static_cast<std::vector<int64_t>*>(arg)->push_back(index + tid);
      },
      &seen);
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2}));
  for (const uint64_t align : {1U, 8U, 64U, 4096U}) {
    void* memory = host.alloc(host.ctx, 100, align);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % align, 0U);
    host.free_memory(host.ctx, memory);
  }
  EXPECT_EQ(host.alloc(host.ctx, 100, 48), nullptr);
  host.free_memory(host.ctx, nullptr);
}

TEST(HostTable, AnswersAfterItsRuntimeIsGoneAndIsUsedAgain) {
  const perch_host_api* first = nullptr;
  {
    HostServices services;
    services.num_threads = [](void*) -> int32_t { return 8; };
    const HostTable table(services, {});
    first = table.api();
    EXPECT_EQ(first->num_threads(first->ctx), 8);
  }
  EXPECT_EQ(first->num_threads(first->ctx), 1);
  const HostTable next({}, {});
  EXPECT_EQ(next.api(), first);
}

}  // namespace
}  // namespace perch
