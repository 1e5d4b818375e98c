// The inside of config_rules.h, and nobody else's: how breaches are collected, and the rules of
// perch_quant and perch_act_quant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/config_rules.h"
#include "perch/layer.h"

namespace perch {

constexpr uint32_t kStructSizeMax = 64 * 1024;  // R5: beyond it a struct_size is garbage

// Collects breaches. Every check_* that returns a bool says whether the value may be built upon.
class Breaches {
 public:
  void add(std::string field, const std::string& got, const std::string& want, perch_status code);
  void invalid(std::string field, const std::string& got, const std::string& want) {
    add(std::move(field), got, want, PERCH_E_INVALID_ARGUMENT);
  }

  // Non-NULL, a plausible struct_size, no unknown bytes at the end, a sane extension chain. The
  // fields may be read only when this is true. path is "moe.w13", or "" for the layer itself.
  template <typename T>
  bool check_struct(const std::string& path, const T* value) {
    if (value == nullptr) return invalid(path, "NULL", "a struct"), false;
    // `next` is the last field of 1.0, and structs grow behind it only (R1, R5).
    constexpr std::size_t kSize10 = offsetof(T, next) + sizeof(void*);
    if (!check_size(path, value, value->struct_size, {kSize10, sizeof(T)})) return false;
    check_chain(path, value->next);
    return true;
  }
  // One of the enumerators 1..names.size().
  bool check_enum(const std::string& field, uint32_t value, std::span<const char* const> names);
  bool check_type(const std::string& field, uint32_t type, std::initializer_list<uint32_t> allowed);
  bool check_range(const std::string& field, int64_t value, int64_t low, int64_t high);
  void check_flags(const std::string& field, uint32_t flags, uint32_t known);
  void check_reserved(const std::string& field, uint32_t value);

  std::vector<RuleBreach> take() { return std::move(breaches_); }

 private:
  struct KnownSizes {
    std::size_t first;   // of 1.0
    std::size_t latest;  // of these headers
  };
  bool check_size(const std::string& path, const void* data, uint32_t struct_size,
                  KnownSizes known);
  void check_chain(const std::string& path, const perch_ext* first);

  std::vector<RuleBreach> breaches_;
};

void check_quant(Breaches& out, const std::string& path, const perch_quant* quant);
void check_act_quant(Breaches& out, const std::string& path, const perch_act_quant& act);

}  // namespace perch
