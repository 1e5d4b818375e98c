// The picture of a run: a roofline and the shares by T, drawn by gnuplot.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/row.h"

namespace perch_bench {

// The machine of the picture's lines: medians over the run.
struct PlotMachine {
  std::string title;  // "CPU, 2 threads"
  double read_gbps = 0;
  std::vector<std::pair<std::string, double>> peaks;  // "bf16", GFLOP/s
};

// Failure where there is no gnuplot on PATH or the file cannot be written, so that a long run does
// not end with it.
void require_plot(const std::string& file);
// Writes the SVG; rows without numbers are left out. Failure where gnuplot fails, with its words.
void draw_plot(const std::string& file, const PlotMachine& machine, const std::vector<Row>& rows);

// What gnuplot is given: script and data in one.
std::string plot_script(const std::string& file, const PlotMachine& machine,
                        const std::vector<Row>& rows);

}  // namespace perch_bench
