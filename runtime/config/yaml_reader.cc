// See yaml_reader.h: the top level and the sections; rules are read by rule_reader.cc. Part of
// step 1, config.
#include "config/yaml_reader.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "config/limits.h"
#include "config/rule_reader.h"
#include "config/text.h"
#include "config/yaml_value.h"

namespace perch {
namespace {

using Kind = YamlNode::Kind;

Status read_paths(const YamlValue& value, std::vector<Setting<std::string>>& paths) {
  const std::string want = "an absolute path of a directory or a file";
  PERCH_ASSIGN_OR_RETURN(const std::vector<YamlValue> items,
                         read_entries(value, Kind::kList, "a list, each item " + want));
  for (const YamlValue& item : items) {
    PERCH_ASSIGN_OR_RETURN(std::string path, read_text(item, want));
    if (path[0] != '/') return wrong_type(item, want);
    paths.push_back({std::move(path), {item.where()}});
  }
  return {};
}

bool is_id_glob(std::string_view text) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789-*?";
  return text.find_first_not_of(kLetters) == std::string_view::npos;
}

Result<std::vector<std::string>> read_id_globs(const YamlValue& value) {
  const std::string want = "the id of a backend, * and ? allowed";
  PERCH_ASSIGN_OR_RETURN(const std::vector<YamlValue> items,
                         read_entries(value, Kind::kList, "a list, each item " + want));
  std::vector<std::string> globs;
  for (const YamlValue& item : items) {
    PERCH_ASSIGN_OR_RETURN(std::string glob, read_text(item, want));
    if (!is_id_glob(glob)) return wrong_type(item, want);
    globs.push_back(std::move(glob));
  }
  return globs;
}

Result<Probe> read_probe(const YamlValue& value) {
  constexpr std::array<std::string_view, 2> kWords = {"none", "process"};
  PERCH_ASSIGN_OR_RETURN(const size_t index, read_choice(value, kWords));
  return index == 0 ? Probe::kNone : Probe::kProcess;
}

Result<bool> read_trust(const YamlValue& value) {
  constexpr std::array<std::string_view, 2> kWords = {"owner", "any"};
  PERCH_ASSIGN_OR_RETURN(const size_t index, read_choice(value, kWords));
  return index == 1;
}

Status read_backend_options(const YamlValue& value, BackendsConfig& backends) {
  PERCH_ASSIGN_OR_RETURN(const std::vector<YamlValue> entries,
                         read_entries(value, Kind::kMap, "a map of backend ids"));
  for (const YamlValue& entry : entries) {
    const std::string id(entry_name(value, entry));
    if (!is_backend_id(id)) return wrong_value(entry, "the key " + quote(id), "a backend's id");
    PERCH_RETURN_IF_ERROR(assign(entry, backends.options[id], read_options(entry)));
  }
  return {};
}

Status read_backends(const YamlValue& value, BackendsConfig& b) {
  return read_map(
      value,
      {{"paths", [&](const YamlValue& v) { return read_paths(v, b.paths); }},
       {"allow", [&](const YamlValue& v) { return assign(v, b.allow, read_id_globs(v)); }},
       {"deny", [&](const YamlValue& v) { return assign(v, b.deny, read_id_globs(v)); }},
       {"must_load", [&](const YamlValue& v) { return assign(v, b.must_load, read_ids(v)); }},
       {"probe", [&](const YamlValue& v) { return assign(v, b.probe, read_probe(v)); }},
       {"trust", [&](const YamlValue& v) { return assign(v, b.trust_any, read_trust(v)); }},
       {"allow_draft", [&](const YamlValue& v) { return assign(v, b.allow_draft, read_bool(v)); }},
       {"options", [&](const YamlValue& v) { return read_backend_options(v, b); }}});
}

Status read_defaults(const YamlValue& value, SelectDefaults& d) {
  return read_map(
      value, {{"fallback",
               [&](const YamlValue& v) { return assign(v, d.fallback_allow, read_fallback(v)); }},
              {"on_prepare_error",
               [&](const YamlValue& v) {
                 return assign(v, d.on_prepare_error_next, read_on_prepare_error(v));
               }},
              {"require", [&](const YamlValue& v) { return assign(v, d.require, read_caps(v)); }},
              {"prefer", [&](const YamlValue& v) { return assign(v, d.prefer, read_caps(v)); }}});
}

Status read_rules(const YamlValue& value, std::vector<Rule>& rules) {
  PERCH_ASSIGN_OR_RETURN(const std::vector<YamlValue> items,
                         read_entries(value, Kind::kList, "a list of rules"));
  if (items.size() > kRulesMax) {
    return wrong_value(value, fmt::format("{} rules", items.size()),
                       fmt::format("at most {}", kRulesMax));
  }
  for (const YamlValue& item : items) {
    PERCH_ASSIGN_OR_RETURN(Rule rule, read_rule(item));
    rules.push_back(std::move(rule));
  }
  return {};
}

Status read_select(const YamlValue& value, SelectConfig& select) {
  return read_map(
      value, {{"defaults", [&](const YamlValue& v) { return read_defaults(v, select.defaults); }},
              {"rules", [&](const YamlValue& v) { return read_rules(v, select.rules); }}});
}

Result<int32_t> read_level(const YamlValue& value) {
  PERCH_ASSIGN_OR_RETURN(const size_t index, read_choice(value, kLogLevelNames));
  return kLogLevels[index];
}

Result<int32_t> read_threads(const YamlValue& value) {
  PERCH_ASSIGN_OR_RETURN(const int64_t threads, read_int(value, 0, kThreadsMax));
  return static_cast<int32_t>(threads);
}

Status read_log(const YamlValue& value, Config& config) {
  return read_map(
      value,
      {{"level", [&](const YamlValue& v) { return assign(v, config.log_level, read_level(v)); }}});
}

// Before all else, so that a file of another version is not taken apart by this one's rules.
Status check_version(const YamlValue& top) {
  const std::string want = "`version: 1`, the only version there is";
  const YamlNode& node = *top.node;
  if (node.kind == Kind::kNull) return wrong_value(top, "an empty file", want);
  if (node.kind != Kind::kMap) return wrong_type(top, "a map that holds " + want);
  for (const YamlNode::Child& child : node.children) {
    if (child.key != "version") continue;
    const YamlNode& version = *child.node;
    if (version.kind == Kind::kScalar && !version.quoted && version.text == "1") return {};
    const bool at_key = version.kind == Kind::kNull;
    return wrong_type({top.file, &version, at_key ? child.line : version.line,
                       at_key ? child.column : version.column, "version"},
                      want);
  }
  return wrong_value(top, "no key `version`", want);
}

Status read_top(const YamlValue& top, Config& config) {
  return read_map(
      top,
      {{"version", [](const YamlValue&) { return Status(); }},
       {"backends", [&](const YamlValue& v) { return read_backends(v, config.backends); }},
       {"select", [&](const YamlValue& v) { return read_select(v, config.select); }},
       {"log", [&](const YamlValue& v) { return read_log(v, config); }},
       {"threads", [&](const YamlValue& v) { return assign(v, config.threads, read_threads(v)); }},
       {"validate", [&](const YamlValue& v) { return assign(v, config.validate, read_bool(v)); }},
       {"allow_nan",
        [&](const YamlValue& v) { return assign(v, config.allow_nan, read_bool(v)); }}});
}

}  // namespace

Result<Config> parse_config(std::string_view text, const std::string& path) {
  PERCH_ASSIGN_OR_RETURN(const YamlTree tree, parse_yaml(text, path));
  const YamlNode& root = tree.root();
  const YamlValue top{&path, &root, root.line, root.column, ""};
  PERCH_RETURN_IF_ERROR(check_version(top));
  Config config;
  config.file = path;
  PERCH_RETURN_IF_ERROR(read_top(top, config));
  return config;
}

Result<Config> load_config(const std::string& path) {
  const auto cannot_read = [&] {
    return not_found(fmt::format("{}: cannot read it: {}", path, std::strerror(errno)));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (!file) return cannot_read();
  std::string text(kYamlBytesMax + 1, '\0');  // one more, so that too large a file is seen as such
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return cannot_read();
  if (text.size() > kYamlBytesMax) {
    return invalid_argument(
        fmt::format("{}: size: got more than {} bytes; want at most that", path, kYamlBytesMax));
  }
  return parse_config(text, path);
}

}  // namespace perch
