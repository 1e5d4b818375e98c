// The handshake: the table of a backend with any fields, in memory that ends where it says it does.
//
// Input: patches of the table that a good backend gives (see forge()); none is that table.
#include <string>

#include "fuzz.h"
#include "plugin/loader.h"

namespace perch::fuzz {
namespace {

// Sizes of ABI 1.0, as in plugin/api_check.cc.
constexpr size_t kHeaderBytes = offsetof(perch_backend_api, info);
constexpr uint32_t kBytesMax = 64 * 1024;
constexpr size_t kIdBytesMax = 63;

// One struct of which only struct_size bytes exist, at most what we know of it. A struct_size that
// is less still has `least` bytes: nobody can send half a header.
template <typename T>
std::unique_ptr<uint8_t[]> truncated(const T& value, size_t least) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  const size_t size = std::clamp<size_t>(value.struct_size, least, sizeof(T));
  return exact_copy(Bytes(bytes, size));
}

struct Forged {
  perch_backend_api api{};
  perch_backend_info info{};
  perch_struct_sizes sizes = PERCH_STRUCT_SIZES_INIT;
  uint32_t null_members = 0;
  std::string id = "good-1";
  bool terminated = true;
};

// Overwrites one byte-range of `value`, which has no pointer in it that is read afterwards.
template <typename T>
void patch(T& value, Reader& in) {
  const size_t at = in.take<uint8_t>() % (sizeof(T) / 4) * 4;
  const auto word = static_cast<uint32_t>(in.take_size());
  std::memcpy(reinterpret_cast<uint8_t*>(&value) + at, &word, sizeof(word));
}

Forged forge(Bytes bytes) {
  Forged forged;
  forged.api.struct_size = sizeof(perch_backend_api);
  forged.api.magic = PERCH_ABI_MAGIC;
  forged.api.abi_major = PERCH_ABI_MAJOR;
  forged.api.abi_minor = PERCH_ABI_MINOR;
  forged.info.struct_size = sizeof(perch_backend_info);
  Reader in(bytes);
  while (!in.empty()) {
    switch (in.take<uint8_t>() % 6) {
      case 0:
        patch(forged.api, in);
        break;
      case 1:
        patch(forged.info, in);
        break;
      case 2:
        patch(forged.sizes, in);
        break;
      case 3:
        forged.null_members ^= uint32_t{1} << (in.take<uint8_t>() % 32);
        break;
      case 4:
        forged.id = text_of(in.take_bytes(in.take<uint8_t>()));
        break;
      default:
        forged.terminated = false;
    }
  }
  return forged;
}

// Function members are never called: any address that is not NULL will do.
template <typename Function>
void set_member(Function*& member, const Forged& forged, int bit) {
  const bool null = (forged.null_members >> bit & 1u) != 0;
  member = null ? nullptr : reinterpret_cast<Function*>(uintptr_t{16});
}

void set_functions(Forged& forged) {
  perch_backend_api& api = forged.api;
  set_member(api.create, forged, 0);
  set_member(api.destroy, forged, 1);
  set_member(api.device_count, forged, 2);
  set_member(api.device_get, forged, 3);
  set_member(api.variant_count, forged, 4);
  set_member(api.query_support, forged, 5);
  set_member(api.describe, forged, 6);
  set_member(api.prepare_begin, forged, 7);
  set_member(api.prepare_put, forged, 8);
  set_member(api.prepare_end, forged, 9);
  set_member(api.prepare_abort, forged, 10);
  set_member(api.update, forged, 11);
  set_member(api.prepared_destroy, forged, 12);
  set_member(api.workspace, forged, 13);
  set_member(api.execute, forged, 14);
  set_member(api.get_extension, forged, 15);
}
constexpr uint32_t kOptionalMembers = 1u << 6 | 1u << 11 | 1u << 15;

bool is_id(const std::string& id) {
  const bool starts = !id.empty() && id[0] >= 'a' && id[0] <= 'z';
  return starts && id.size() <= kIdBytesMax &&
         id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

// What an accepted table may be relied upon for.
void check_accepted(const Forged& forged) {
  const perch_backend_api& api = forged.api;
  PERCH_FUZZ_CHECK(api.magic == PERCH_ABI_MAGIC && api.abi_major == PERCH_ABI_MAJOR);
  PERCH_FUZZ_CHECK(api.abi_minor_required <= PERCH_ABI_MINOR && api.must_understand == 0);
  PERCH_FUZZ_CHECK(api.struct_size >= sizeof(api) && api.struct_size <= kBytesMax);
  PERCH_FUZZ_CHECK((forged.null_members & 0x000F'FFFF & ~kOptionalMembers) == 0);
  PERCH_FUZZ_CHECK(forged.info.struct_size >= sizeof(perch_backend_info) && is_id(forged.id));
  const perch_struct_sizes least = PERCH_STRUCT_SIZES_INIT;
  uint32_t wanted[sizeof(least) / 4];
  uint32_t given[sizeof(least) / 4];
  std::memcpy(wanted, &least, sizeof(least));
  std::memcpy(given, &forged.sizes, sizeof(least));
  for (size_t i = 0; i < std::size(given); ++i) {
    PERCH_FUZZ_CHECK(given[i] >= wanted[i] && given[i] <= kBytesMax);
  }
}

void fuzz_backend_api(Bytes bytes) {
  Forged forged = forge(bytes);
  forged.id = forged.id.substr(0, forged.id.find('\0'));
  // An id without its NUL is read as far as an id may be long: only a longer one may lack it.
  std::string text = forged.id;
  if (forged.terminated || text.size() <= kIdBytesMax) text += '\0';
  const auto id = exact_copy(std::span<const char>(text));
  const auto null_if = [&](int bit, const char* string) {
    return (forged.null_members >> bit & 1u) != 0 ? nullptr : string;
  };
  forged.info.id = null_if(16, id.get());
  forged.info.version = null_if(17, "1");
  forged.info.vendor = null_if(18, "fuzz");
  forged.info.build = null_if(19, "");
  const auto info = truncated(forged.info, sizeof(uint32_t));
  const auto sizes = truncated(forged.sizes, sizeof(uint32_t));
  set_functions(forged);
  const bool no_info = (forged.null_members >> 20 & 1u) != 0;
  const bool no_sizes = (forged.null_members >> 21 & 1u) != 0;
  forged.api.info = no_info ? nullptr : reinterpret_cast<const perch_backend_info*>(info.get());
  forged.api.sizes = no_sizes ? nullptr : reinterpret_cast<const perch_struct_sizes*>(sizes.get());
  const auto api = truncated(forged.api, kHeaderBytes);

  const Status status = check_backend_api(reinterpret_cast<const perch_backend_api*>(api.get()));
  if (!status.ok()) {
    PERCH_FUZZ_CHECK(!status.message().empty());
    PERCH_FUZZ_CHECK(status.code() == PERCH_E_ABI_MISMATCH || status.code() == PERCH_E_CONTRACT);
    return;
  }
  accept();
  PERCH_FUZZ_CHECK(!no_info && !no_sizes);
  check_accepted(forged);
  PERCH_FUZZ_BUG(forged.api.describe == nullptr && forged.api.update == nullptr);
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TARGET(backend_api, perch::fuzz::fuzz_backend_api);
