// What `perch diff` found, as JSON and for people.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>

#include "check/locate.h"
#include "check/report.h"

namespace perch_command {

// A backend as the command line names it.
struct DiffSide {
  std::string given;  // an id or a file
  perch_check::Located library;
  CommonOptions common;  // whose runtime finds it

  std::string print() const;  // "reference", "mine (./libperch_mine.so)"
};

struct DiffReport {
  DiffSide a, b;
  bool of_model = false;  // rows are layers, and what is right is the reference's f32 output
  // A row per case (or layer) and pair of kernels: its one check is "diff".
  perch_check::Report rows;

  int64_t identical() const;  // rows whose outputs hold the same bytes
};

// The reason of a row that is skipped because a side refuses it.
const char* refusal_name(bool a_refuses, bool b_refuses);

nlohmann::ordered_json diff_json(const DiffReport& report);
void print_diff(const DiffReport& report, std::ostream& out);

}  // namespace perch_command
