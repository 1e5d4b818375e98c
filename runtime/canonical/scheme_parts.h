// What the scheme_<method>.cc share: a place in a configuration, read with types checked, and the
// input quantizations.
//
// A value of the wrong type is refused with file, key, found and wanted; it is never read as
// absent.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "canonical/scheme.h"
#include "perch/layer.h"

namespace perch {

// A value and the path that names it: "config.json: quantization_config.bits". Borrows the
// document.
class Place {
 public:
  Place(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  // Null counts as absent: tools write every key.
  bool is_absent() const { return value_->is_null(); }
  // Null, or a list or object without members.
  bool is_empty() const { return value_->empty(); }
  // The member; absent where there is none.
  Place at(std::string_view key) const;
  // The element of a list.
  Place at(size_t index) const;
  bool has(std::string_view key) const { return !at(key).is_absent(); }

  // "<path>: got <value>; want <want>"
  Status wrong(std::string_view want) const;
  // The same of what is understood and not read.
  Status unread(std::string_view want) const;

  // Of the value, or `absent` where there is none.
  Result<std::string> text(std::string_view absent) const;
  Result<bool> flag(bool absent) const;
  Result<int64_t> integer(int64_t absent) const;
  // The elements of a list of strings; none where absent. They live as long as the document.
  Result<std::vector<std::string_view>> strings() const;
  Status check_object(std::string_view want) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

// Sizes of groups and blocks: 1 .. 2^20.
bool is_group_size(int64_t value);

perch_act_quant make_act(uint32_t dtype, uint32_t mode, int64_t group, uint32_t scale_dtype);
// The usual ones.
perch_act_quant act_static(uint32_t dtype);
perch_act_quant act_token(uint32_t dtype);
perch_act_quant act_nvfp4();             // E2M1, 16, a static scale of E4M3 scales
perch_act_quant act_mx(uint32_t dtype);  // E2M1 or E4M3, 32, E8M0

}  // namespace perch
