// quant_method mxfp4 (gpt-oss): experts in E2M1, 32 to an E8M0 scale, inputs as they are. All that
// is not an expert is 16-bit, whether modules_to_not_convert names it or not.
#include "canonical/module_names.h"
#include "canonical/scheme_parts.h"

namespace perch {
namespace {

Result<Scheme> find(const nlohmann::json& json_value, const std::string& where,
                    const std::string& module) {
  Scheme scheme = plain_scheme();
  scheme.method = kMxfp4Method.name;
  scheme.where = where;
  const Place entries = Place(json_value, where).at("modules_to_not_convert");
  PERCH_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, entries.strings());
  for (size_t i = 0; i < texts.size(); ++i) {
    const Result<bool> matches = is_not_converted(module, texts[i]);
    if (!matches.ok()) return matches.status().with_context(entries.at(i).path());
    if (!*matches) continue;
    scheme.where = entries.at(i).path();
    return scheme;
  }
  if (experts_module(module).empty()) return scheme;
  scheme.quantized = true;
  scheme.bits = 4;
  scheme.is_float = true;
  scheme.strategy = Strategy::kGroup;
  scheme.group = 32;
  return scheme;
}

}  // namespace

const QuantMethod kMxfp4Method = {"mxfp4", find};

}  // namespace perch
