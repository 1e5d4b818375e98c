#include "check/run_check.h"

#include <fmt/format.h>

#include <chrono>

#include "check/diff.h"

namespace perch_check {
namespace {

void run_or_skip(const Check& check, Context* context) {
  if (!context->answer().yes() && std::string(check.name) != "claims") {
    throw Skipped{Skipped::Reason::kUnsupported, context->answer().print_reasons()};
  }
  if (!context->promises(check.needs)) {
    throw Skipped{Skipped::Reason::kNotPromised, perch::print_caps(check.needs)};
  }
  check.run(*context);
}

}  // namespace

const char* status_name(Status status) {
  static constexpr const char* kNames[] = {"passed",  "FAILED",  "UNTRUSTED",
                                           "skipped", "CRASHED", "TIMEOUT"};
  return kNames[static_cast<int>(status)];
}

CheckResult run_check(const std::string& name, Context* context) {
  const auto begin = std::chrono::steady_clock::now();
  CheckResult result;
  result.check = name;
  try {
    run_or_skip(name == kDiff.name ? kDiff : *find_check(name), context);
  } catch (const Failed& failed) {
    result.status = Status::kFailed;
    result.where = failed.where;
    result.got = failed.got;
    result.want = failed.want;
  } catch (const Skipped& skipped) {
    result.status = Status::kSkipped;
    result.reason = skip_name(skipped.reason);
    result.got = skipped.text;
  } catch (const Untrusted& untrusted) {
    result.status = Status::kUntrusted;
    result.got = untrusted.text;
  } catch (const std::exception& error) {
    result.status = Status::kFailed;
    result.where = "an exception";
    result.got = error.what();
    result.want = "none: what a backend throws must stay in it";
  }
  result.figures = context->figures();
  context->figures().clear();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

nlohmann::json to_json(const CheckResult& result) {
  return {{"check", result.check},     {"status", static_cast<int>(result.status)},
          {"reason", result.reason},   {"where", result.where},
          {"got", result.got},         {"want", result.want},
          {"figures", result.figures}, {"seconds", result.seconds}};
}

CheckResult result_from_json(const nlohmann::json& json) {
  CheckResult result;
  result.check = json["check"];
  result.status = static_cast<Status>(json["status"].get<int>());
  result.reason = json["reason"];
  result.where = json["where"];
  result.got = json["got"];
  result.want = json["want"];
  // Infinite figures cross as null.
  for (const auto& [name, value] : json["figures"].items()) {
    result.figures[name] = value.is_null() ? HUGE_VAL : value.get<double>();
  }
  result.seconds = json["seconds"];
  return result;
}

}  // namespace perch_check
