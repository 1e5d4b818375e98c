#include "canonical/scheme_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/layer_config.h"

namespace perch {
namespace {

using nlohmann::json;

const json kAbsent;

// What a message shows of a value or key that a stranger wrote: cut, at the end of a character.
std::string shorten(std::string text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  text.resize(limit);
  return text + "...";
}

}  // namespace

Place Place::at(std::string_view key) const {
  const char* joint = path_.find(": ") == std::string::npos ? ": " : ".";
  std::string path = path_ + joint + shorten(std::string(key), 80);
  // A message is one line.
  std::replace_if(
      path.begin(), path.end(), [](char c) { return c >= 0 && c < ' '; }, '?');
  if (!value_->is_object()) return {kAbsent, std::move(path)};
  const auto found = value_->find(std::string(key));
  return {found == value_->end() ? kAbsent : *found, std::move(path)};
}

Place Place::at(size_t index) const {
  return {(*value_)[index], fmt::format("{}[{}]", path_, index)};
}

Status Place::wrong(std::string_view want) const {
  const std::string got =
      is_absent() ? "nothing"
                  : shorten(value_->dump(-1, ' ', false, json::error_handler_t::replace), 120);
  return invalid_argument(fmt::format("{}: got {}; want {}", path_, got, want));
}

Status Place::unread(std::string_view want) const { return unsupported(wrong(want).message()); }

Result<std::string> Place::text(std::string_view absent) const {
  if (is_absent()) return std::string(absent);
  if (!value_->is_string()) return wrong("a string");
  return value_->get<std::string>();
}

Result<bool> Place::flag(bool absent) const {
  if (is_absent()) return absent;
  if (!value_->is_boolean()) return wrong("true or false");
  return value_->get<bool>();
}

Result<int64_t> Place::integer(int64_t absent) const {
  if (is_absent()) return absent;
  const bool beyond = value_->is_number_unsigned() &&
                      value_->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (!value_->is_number_integer() || beyond) return wrong("an integer");
  return value_->get<int64_t>();
}

Result<std::vector<std::string_view>> Place::strings() const {
  std::vector<std::string_view> texts;
  if (is_absent()) return texts;
  if (!value_->is_array()) return wrong("a list of strings");
  for (size_t i = 0; i < value_->size(); ++i) {
    const json& element = (*value_)[i];
    if (!element.is_string()) return at(i).wrong("a string");
    texts.push_back(element.get_ref<const std::string&>());
  }
  return texts;
}

Status Place::check_object(std::string_view want) const {
  return value_->is_object() ? Status() : wrong(want);
}

bool is_group_size(int64_t value) { return value >= 1 && value <= int64_t{1} << 20; }

perch_act_quant make_act(uint32_t dtype, uint32_t mode, int64_t group, uint32_t scale_dtype) {
  perch_act_quant act = make_act_none();
  act.dtype = dtype;
  act.mode = mode;
  act.group = static_cast<uint32_t>(group);
  act.scale_dtype = scale_dtype;
  return act;
}

perch_act_quant act_static(uint32_t dtype) {
  return make_act(dtype, PERCH_ACT_STATIC, 0, PERCH_TYPE_F32);
}

perch_act_quant act_token(uint32_t dtype) {
  return make_act(dtype, PERCH_ACT_TOKEN, 0, PERCH_TYPE_F32);
}

perch_act_quant act_nvfp4() {
  return make_act(PERCH_TYPE_E2M1, PERCH_ACT_STATIC_GROUP, 16, PERCH_TYPE_E4M3FN);
}

perch_act_quant act_mx(uint32_t dtype) {
  return make_act(dtype, PERCH_ACT_GROUP, 32, PERCH_TYPE_E8M0);
}

}  // namespace perch
