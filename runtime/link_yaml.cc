// What lets libyaml-cpp.a be linked into libperch.so.
//
// The archive's code addresses the data of libstdc++ and libc relative to itself, which a shared
// library can do only for data of its own. libstdc++ is therefore linked statically (libperch.so
// then needs libc alone, and no host's C++ runtime can clash with it), and the one libc datum that
// is left is defined here. 0 means "there may be several threads", which is always true enough: it
// keeps reference counts atomic.
// NOLINTNEXTLINE(bugprone-reserved-identifier): libc's name
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;  // NOLINT(bugprone-reserved-identifier)
