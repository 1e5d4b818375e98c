// The case line: parse, print and parse again give the same line, and what was taken is a config
// whose tensors can be counted.
#include <string>

#include "base/case_line.h"
#include "base/config_rules.h"
#include "fuzz.h"
#include "mutate.h"

namespace perch::fuzz {
namespace {

constexpr std::string_view kWords[] = {" form=batched",
                                       " form=grouped",
                                       " load=zipf",
                                       " load=one:1",
                                       " load=empty:0",
                                       " ids=i64",
                                       " wx",
                                       " ep=0/2",
                                       " eg8",
                                       " strided",
                                       " seed=1",
                                       " kernel=k",
                                       " threads=2",
                                       " require=async",
                                       " in=f16",
                                       " o=f32",
                                       " w2=bf16",
                                       " a=int8t",
                                       " a2=none",
                                       "moe",
                                       "linear",
                                       "t",
                                       "e",
                                       "top",
                                       "h",
                                       "i",
                                       "n",
                                       "k",
                                       "0",
                                       "1",
                                       "2",
                                       "3",
                                       "bf16",
                                       "f16",
                                       "f32",
                                       "int2",
                                       "int4",
                                       "int8",
                                       "g32",
                                       "c",
                                       "b128",
                                       "b2x3",
                                       ":f32",
                                       ":bf16",
                                       ":e8m0",
                                       ":e4m3",
                                       "+z",
                                       "+zf",
                                       "+off",
                                       "+gidx",
                                       "+bias",
                                       "+pre",
                                       "+s2t",
                                       "+s2c",
                                       "e4m3",
                                       "e5m2",
                                       "e2m1",
                                       "e3m2",
                                       "lut4",
                                       "mxfp4",
                                       "nvfp4",
                                       "fp8",
                                       "silu",
                                       "gelu",
                                       "swigluoai",
                                       "swiglustep",
                                       "relu2",
                                       "situ",
                                       "_no_mul",
                                       ":-:2:-",
                                       ":1.702:1:7"};

void fuzz_case_line(Bytes bytes) {
  const Result<Case> parsed = parse_case(text_of(bytes));
  if (!parsed.ok()) {
    PERCH_FUZZ_CHECK(!parsed.status().message().empty());
    return;
  }
  accept();
  const std::string printed = print_case(*parsed);
  const Result<Case> again = parse_case(printed);
  PERCH_FUZZ_CHECK(again.ok());
  PERCH_FUZZ_CHECK(print_case(*again) == printed);
  PERCH_FUZZ_CHECK(check_layer_config(again->config.abi()).empty());
  PERCH_FUZZ_CHECK(parse_load(parsed->load).ok());
  for (const TensorSpec& spec : tensor_specs(parsed->config)) {
    PERCH_FUZZ_CHECK(spec.bytes() >= 0);
  }
  PERCH_FUZZ_BUG(parsed->config.is_moe() && parsed->strided && parsed->seed != 0);
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TEXT_TARGET(case_line, perch::fuzz::fuzz_case_line, perch::fuzz::kWords);
