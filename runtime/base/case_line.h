// One problem in one line: what `perch check` and `perch bench` take, log and print as a
// reproducer.
//
//   moe t4 e8 top2 h64 i96 w=int4g32:bf16+z a=int8t act=silu load=zipf seed=7
//   linear t1 n256 k512 w=e4m3b128:f32 in=f32 o=f32
//
// Grammar: contract §3, and base/recipe.h for w=, a= and act=. Keys may stand in any order and are
// printed in the contract's, less what is default; so print is canonical, and parsing what was
// printed gives the same Case. What a LayerConfig has and the line has not: name, device, options,
// preferred caps, ALLOW_NAN. A parsed case has max_tokens = t and has passed config_rules.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/layer_config.h"
#include "base/recipe.h"
#include "base/status.h"

namespace perch {

struct Case {
  LayerConfig config;
  int64_t t = 1;                 // tokens: STANDARD T, BATCHED Tmax, GROUPED rows
  std::string load = "uniform";  // uniform | zipf | one:<e> | empty:<e>,<e>...; parse_load reads it
  bool ids64 = false;            // topk_ids are int64, else int32
  int ep_rank = 0;               // this rank of ep_size
  int ep_size = 1;               // 1: no expert map
  bool strided = false;          // rows of x and y lie further apart than their length
  uint64_t seed = 0;
  std::string kernel;  // the kernel to use; "" is any
  int threads = 0;     // 0 is the runtime's own number
};

// On failure: "column 23: 'w=int4q32': want ...", the column counted in bytes from 1.
Result<Case> parse_case(std::string_view line);
std::string print_case(const Case& problem);

// Which experts the tokens go to. Numbers are global expert ids.
struct ExpertLoad {
  enum class Kind {
    kUniform,
    kZipf,
    kOne,    // all tokens choose experts[0]
    kEmpty,  // no token chooses any of `experts`
  };
  Kind kind = Kind::kUniform;
  std::vector<int64_t> experts;
};
Result<ExpertLoad> parse_load(std::string_view text);
// The same for a caller that reports positions itself.
std::optional<TextFault> scan_load(std::string_view text, ExpertLoad* load);

}  // namespace perch
