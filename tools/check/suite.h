// Suites: cases in text files, one a line, with lists in braces.
//
//   # what the lines below are about
//   include smoke
//   moe t{1,5} e8 top2 h64 i{32,96} w={bf16,int4g32:bf16+z} act=silu     8 cases
//   gated-batched: moe t4 e4 top1 h32 i32 w=bf16 act=silu form=batched   a name before a colon
//
// What stands behind " >= " is for `perch bench`: the share that a row must reach.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace perch_check {

struct SuiteLine {
  std::string name;  // "" for most
  std::string line;  // canonical: parses, and prints as itself
  std::optional<double> required;
};

// The suite's file, or "" when there is none of that name beside this command or its libraries.
std::string find_suite(const std::string& name);
std::vector<std::string> suite_names();

// In the file's order, without repetition. Errors name file and line.
perch::Result<std::vector<SuiteLine>> read_suite(const std::string& path);

// "a{b,c}d" -> "abd" "acd"; several braces multiply. Braces do not nest. Where an item has commas,
// items are separated by |: "load={zipf|empty:0,1}".
perch::Result<std::vector<std::string>> expand_braces(const std::string& line);

}  // namespace perch_check
