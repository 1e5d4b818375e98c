// load= of a case line.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/case_line.h"

namespace perch {
namespace {

// An expert's number; one spelling each, so no leading zeros.
std::optional<int64_t> read_expert(std::string_view text) {
  int32_t expert = 0;
  const bool plain = !text.empty() && text[0] != '-' && (text[0] != '0' || text.size() == 1);
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, expert);
  if (!plain || error != std::errc() || stop != end) return std::nullopt;
  return expert;
}

}  // namespace

std::optional<TextFault> scan_load(std::string_view text, ExpertLoad* load) {
  if (text == "uniform" || text == "zipf") {
    load->kind = text == "zipf" ? ExpertLoad::Kind::kZipf : ExpertLoad::Kind::kUniform;
    return std::nullopt;
  }
  const bool one = text.substr(0, 4) == "one:";
  if (!one && text.substr(0, 6) != "empty:") {
    return TextFault{0, std::string(text),
                     "uniform, zipf, one:<expert> or empty:<expert>,<expert>..."};
  }
  load->kind = one ? ExpertLoad::Kind::kOne : ExpertLoad::Kind::kEmpty;
  std::size_t begin = text.find(':');
  while (begin < text.size()) {
    ++begin;  // behind the ':' or the ','
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const std::optional<int64_t> expert = read_expert(word);
    if (!expert) return TextFault{begin, std::string(word), "an expert's number"};
    if (one && !load->experts.empty())
      return TextFault{begin, std::string(word), "one expert only"};
    load->experts.push_back(*expert);
    begin = end;
  }
  return std::nullopt;
}

Result<ExpertLoad> parse_load(std::string_view text) {
  ExpertLoad load;
  if (const std::optional<TextFault> fault = scan_load(text, &load)) {
    return invalid_argument(fmt::format("load '{}': at character {}, '{}': want {}", text,
                                        fault->offset + 1, fault->token, fault->want));
  }
  return load;
}

}  // namespace perch
