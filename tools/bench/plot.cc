#include "bench/plot.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace perch_bench {
namespace {

using perch_command::Failure;

bool is_on_path(const std::string& program) {
  const char* variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "" : variable;
  for (size_t at = 0; at < path.size();) {
    const size_t colon = std::min(path.find(':', at), path.size());
    const std::string file = path.substr(at, colon - at) + "/" + program;
    if (colon > at && access(file.c_str(), X_OK) == 0) return true;
    at = colon + 1;
  }
  return false;
}

// A file that goes with the object.
class TempFile {
 public:
  TempFile() {
    const char* folder = std::getenv("TMPDIR");
    name_ = std::string(folder == nullptr ? "/tmp" : folder) + "/perch_plot_XXXXXX";
    const int file = mkstemp(name_.data());
    if (file < 0) throw Failure(perch_command::kExitBadInput, name_ + ": cannot be made");
    close(file);
  }
  ~TempFile() { unlink(name_.c_str()); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

}  // namespace

void require_plot(const std::string& file) {
  if (!is_on_path("gnuplot")) {
    throw Failure(perch_command::kExitBadInput,
                  "--plot: gnuplot draws it, and there is none on PATH; install it (Debian: "
                  "apt-get install gnuplot-nox), or leave --plot out");
  }
  if (!std::ofstream(file, std::ios::app)) {
    throw Failure(perch_command::kExitBadInput, "--plot: " + file + ": cannot be written");
  }
}

void draw_plot(const std::string& file, const PlotMachine& machine, const std::vector<Row>& rows) {
  const TempFile script;
  std::ofstream(script.name()) << plot_script(file, machine, rows);
  const std::string command = "gnuplot '" + script.name() + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw Failure(perch_command::kExitBadInput, "--plot: gnuplot: no process");
  std::string said;
  char buffer[512];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) said += buffer;
  if (pclose(pipe) != 0) throw Failure(perch_command::kExitBadInput, "--plot: gnuplot: " + said);
}

}  // namespace perch_bench
