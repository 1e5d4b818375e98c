// plot_script.cc - plot_script: two panels side by side and one legend below them.
//
// A series is a case without its T on one backend: one colour in both panels. Its points are
// labelled with T.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "bench/plot.h"

namespace perch_bench {
namespace {

constexpr double kWidth = 1280;  // pixels
constexpr double kPanel = 430;   // height of both panels
constexpr double kTop = 92;      // above them: titles
constexpr double kBottom = 62;   // below them: axes
constexpr double kLegendRow = 21;
constexpr double kLeft[2] = {0.065, 0.565};  // of the width
constexpr double kRight[2] = {0.485, 0.985};

// Told apart by most eyes, also in pairs (Okabe and Ito), then lighter ones.
constexpr const char* kColours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                    "#E69F00", "#56B4E9", "#7F7F7F", "#B2A000",
                                    "#004466", "#8C3D00", "#00523C", "#80406A"};

struct Series {
  std::string label;
  std::vector<const Row*> rows;
};

// Inside gnuplot's double quotes.
std::string quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The words of a row's name less its T.
std::vector<std::string> words_of(const Row& row) {
  std::vector<std::string> words = {row.name.backend};
  const std::string t = "t" + std::to_string(row.name.t);
  for (const std::string& word : words_of(row.name.line)) {
    if (word != t) words.push_back(word);
  }
  return words;
}

std::string join(const std::vector<std::string>& words, const std::set<std::string>& without) {
  std::string text;
  for (const std::string& word : words) {
    if (without.count(word) == 0) text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

// Series, and in *shared what all of them have in common.
std::vector<Series> series_of(const std::vector<Row>& rows, std::string* shared) {
  std::vector<std::vector<std::string>> names;
  std::vector<Series> all;
  for (const Row& row : rows) {
    // A time whose limits were measured too low is no point of the picture.
    if (!row.skipped.empty() || row.standing == Standing::kVoid) continue;
    const std::vector<std::string> name = words_of(row);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      names.push_back(name);
      all.emplace_back();
    }
    all[static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin())]
        .rows.push_back(&row);
  }
  std::set<std::string> common;
  if (!names.empty()) common.insert(names[0].begin(), names[0].end());
  for (const auto& name : names) {
    std::erase_if(common, [&](const std::string& word) {
      return std::find(name.begin(), name.end(), word) == name.end();
    });
  }
  // A series alone keeps its whole name.
  if (names.size() < 2) common.clear();
  std::set<std::string> different;
  for (const auto& name : names) {
    for (const std::string& word : name) {
      if (common.count(word) == 0) different.insert(word);
    }
  }
  *shared = names.empty() ? "" : join(names[0], different);
  for (size_t i = 0; i < all.size(); ++i) all[i].label = join(names[i], common);
  return all;
}

double intensity_of(const Row& row) { return row.work.operations / row.work.bytes; }

const char* colour(size_t series) { return kColours[series % std::size(kColours)]; }

// Marks of a logarithmic axis: 1, 2 and 5 of every decade, or its first where there are many.
std::string log_tics(double from, double to) {
  std::string tics;
  const bool few = to / from < 1000;
  for (double decade = std::pow(10.0, std::floor(std::log10(from))); decade <= to; decade *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double at = digit * decade;
      if (at < from || at > to || (digit > 1 && !few)) continue;
      tics += fmt::format("{}{:g}", tics.empty() ? "" : ", ", at);
    }
  }
  return tics;
}

class Script {
 public:
  Script(const PlotMachine& machine, std::vector<Series> series)
      : machine_(machine), series_(std::move(series)) {
    const size_t columns = series_.size() > 3 ? 2 : 1;
    legend_rows_ = (series_.size() + columns - 1) / columns;
    height_ = kTop + kPanel + kBottom + kLegendRow * static_cast<double>(legend_rows_) + 12;
  }

  std::string write(const std::string& file, const std::string& shared) {
    line("set encoding utf8");
    line(
        fmt::format("set terminal svg size {:.0f},{:.0f} noenhanced font 'DejaVu Sans,13' "
                    "background rgb '#FFFFFF'",
                    kWidth, height_));
    line("set output " + quote(file));
    line("set multiplot");
    line(fmt::format("set label 1 {} at screen 0.5, screen {:.4f} center font ',16'",
                     quote(machine_.title), 1 - 24 / height_));
    line(fmt::format("set label 2 {} at screen 0.5, screen {:.4f} center textcolor rgb '#555555'",
                     quote(shared), 1 - 46 / height_));
    line("set border 3 lc rgb '#555555'");
    line("set tics nomirror textcolor rgb '#222222'");
    line("set grid lc rgb '#DDDDDD' lt 1 lw 0.7");
    roofline();
    line("unset label");
    line("unset logscale");
    line("unset arrow");
    shares();
    line("unset multiplot");
    return text_;
  }

 private:
  void line(const std::string& text) { text_ += text + "\n"; }

  void place_panel(int panel) {
    line(fmt::format("set lmargin at screen {}\nset rmargin at screen {}", kLeft[panel],
                     kRight[panel]));
    line(fmt::format("set tmargin at screen {:.4f}\nset bmargin at screen {:.4f}",
                     1 - kTop / height_, 1 - (kTop + kPanel) / height_));
  }

  void roofline();
  void roofs(double x_min, double x_max, double y_min, double y_max);
  void shares();

  const PlotMachine& machine_;
  std::vector<Series> series_;
  size_t legend_rows_ = 0;
  double height_ = 0;
  std::string text_;
};

// The lines of the machine, from the left border along the bandwidth to each peak.
void Script::roofs(double x_min, double x_max, double y_min, double y_max) {
  // Peaks that lie together share a line: bf16 without an instruction of its own is f32's.
  std::map<double, std::string> peaks;
  for (const auto& peak_of : machine_.peaks) {
    const std::string& name = peak_of.first;
    const double gflops = peak_of.second;
    const auto near = std::find_if(peaks.begin(), peaks.end(), [&](const auto& peak) {
      return std::fabs(peak.first / gflops - 1) < 0.08;
    });
    if (near == peaks.end()) {
      peaks[gflops] = name;
    } else {
      near->second += ", " + name;
    }
  }
  for (const auto& [gflops, name] : peaks) {
    const double ridge = gflops / machine_.read_gbps;
    line(fmt::format("set arrow from {:g},{:g} to {:g},{:g} nohead lw 2 lc rgb '#333333'", ridge,
                     gflops, x_max, gflops));
    line(fmt::format("set label {} at {:g},{:g} right offset -0.5,0.7 textcolor rgb '#333333'",
                     quote(fmt::format("{} {:.0f} GFLOP/s", name, gflops)), x_max, gflops));
  }
  const double top = peaks.empty() ? y_max : peaks.rbegin()->first;
  const double begin = std::max(x_min, y_min / machine_.read_gbps);
  line(fmt::format("set arrow from {:g},{:g} to {:g},{:g} nohead lw 2 lc rgb '#333333'", begin,
                   begin * machine_.read_gbps, top / machine_.read_gbps, top));
  // Along the line: its angle on paper.
  const double wide = (kRight[0] - kLeft[0]) * kWidth / std::log10(x_max / x_min);
  const double high = kPanel / std::log10(y_max / y_min);
  const double at = begin * std::pow(top / machine_.read_gbps / begin, 0.5);
  line(
      fmt::format("set label {} at {:g},{:g} center rotate by {:.0f} offset -0.6,0.8 "
                  "textcolor rgb '#333333'",
                  quote(fmt::format("memory {:.1f} GB/s", machine_.read_gbps)), at,
                  at * machine_.read_gbps, std::atan2(high, wide) * 180 / M_PI));
}

void Script::roofline() {
  double x_min = HUGE_VAL, x_max = 0, y_min = HUGE_VAL, y_max = 0;
  for (size_t i = 0; i < series_.size(); ++i) {
    line(fmt::format("$roof{} << EOD", i));
    for (const Row* row : series_[i].rows) {
      line(fmt::format("{:g} {:g} {}", intensity_of(*row), row->gflops(), row->name.t));
      x_min = std::min(x_min, intensity_of(*row));
      x_max = std::max(x_max, intensity_of(*row));
      y_min = std::min(y_min, row->gflops());
      y_max = std::max(y_max, row->gflops());
    }
    line("EOD");
  }
  for (const auto& [name, gflops] : machine_.peaks) {
    y_max = std::max(y_max, gflops);
    x_max = std::max(x_max, 4 * gflops / machine_.read_gbps);
  }
  x_min /= 2, x_max *= 2, y_min /= 2, y_max *= 2;
  place_panel(0);
  line("set logscale xy");
  line(fmt::format("set xrange [{:g}:{:g}]\nset yrange [{:g}:{:g}]", x_min, x_max, y_min, y_max));
  line(fmt::format("set xtics ({})\nset ytics ({})", log_tics(x_min, x_max),
                   log_tics(y_min, y_max)));
  line("set xlabel 'operations per byte of weights'\nset ylabel 'GFLOP/s'");
  line("set title 'Roofline (labels: T)' offset 0,-0.4");
  line("unset key");
  roofs(x_min, x_max, y_min, y_max);
  std::string plots = "plot ";
  for (size_t i = 0; i < series_.size(); ++i) {
    // Labels of neighbours on different sides: points of several series lie together.
    plots += fmt::format(
        "{}$roof{} using 1:2 with linespoints lc rgb '{}' lw 1.5 pt 7 ps 0.8, \\\n"
        "  $roof{} using 1:2:3 with labels {} font ',11' textcolor rgb '{}'",
        i == 0 ? "" : ", \\\n  ", i, colour(i), i,
        i % 2 == 0 ? "left offset 0.3,-0.6" : "right offset -0.3,0.5", colour(i));
  }
  line(plots);
}

void Script::shares() {
  std::set<int64_t> all_t;
  double most = 1.1;
  bool any_required = false;
  for (const Series& series : series_) {
    for (const Row* row : series.rows) {
      all_t.insert(row->name.t);
      any_required = any_required || row->name.required.has_value();
      most = std::max(most, row->share * 1.05);
    }
  }
  const std::vector<int64_t> groups(all_t.begin(), all_t.end());
  const double width = 0.84 / static_cast<double>(series_.size());
  const bool with_values = series_.size() * groups.size() <= 24;
  for (size_t i = 0; i < series_.size(); ++i) {
    line(fmt::format("$share{} << EOD", i));
    for (const Row* row : series_[i].rows) {
      const auto group = std::find(groups.begin(), groups.end(), row->name.t) - groups.begin();
      line(fmt::format("{:g} {:g} {:g}",
                       static_cast<double>(group) - 0.42 + width * (static_cast<double>(i) + 0.5),
                       100 * row->share, 100 * row->name.required.value_or(-1)));
    }
    line("EOD");
  }
  place_panel(1);
  std::string tics;
  for (size_t g = 0; g < groups.size(); ++g) {
    tics += fmt::format("{}'{}' {}", g == 0 ? "" : ", ", groups[g], g);
  }
  line(fmt::format("set xrange [-0.6:{:g}]\nset yrange [0:{:.0f}]\nset xtics scale 0 ({})",
                   static_cast<double>(groups.size()) - 0.4, 100 * most, tics));
  line("set ytics autofreq 20\nset grid ytics noxtics\nset xlabel 'T, tokens'");
  line("set ylabel 'share of the limit, %'");
  line(fmt::format("set title 'Floor / time{}' offset 0,-0.4",
                   any_required ? " (black: required)" : ""));
  line("set arrow from graph 0,first 100 to graph 1,first 100 nohead lw 1.5 lc rgb '#333333'");
  line(fmt::format("set style fill solid 0.9 noborder\nset boxwidth {:g}", 0.92 * width));
  line(
      fmt::format("set key at screen 0.5, screen {:.4f} center top Left reverse vertical maxrows "
                  "{} samplen 1.5 width 1",
                  1 - (kTop + kPanel + kBottom) / height_, legend_rows_));
  std::string plots = "plot ";
  for (size_t i = 0; i < series_.size(); ++i) {
    plots += fmt::format("{}$share{} using 1:2 with boxes lc rgb '{}' title {}",
                         i == 0 ? "" : ", \\\n  ", i, colour(i), quote(series_[i].label));
  }
  for (size_t i = 0; i < series_.size(); ++i) {
    plots += fmt::format(
        ", \\\n  $share{} using ($1-{:g}):($3<0?NaN:$3):({:g}):(0) with vectors "
        "nohead lw 2 lc rgb '#000000' notitle",
        i, 0.46 * width, 0.92 * width);
    if (with_values) {
      plots += fmt::format(
          ", \\\n  $share{} using 1:2:(sprintf('%.0f',$2)) with labels offset "
          "0,0.6 font ',10' notitle",
          i);
    }
  }
  line(plots);
}

}  // namespace

std::string plot_script(const std::string& file, const PlotMachine& machine,
                        const std::vector<Row>& rows) {
  std::string shared;
  std::vector<Series> series = series_of(rows, &shared);
  return Script(machine, std::move(series)).write(file, shared);
}

}  // namespace perch_bench
