// perch: load MoE and quantized-linear layers, choose a backend for each, run and check them.
#include <iostream>

#include "command.h"

namespace {

using namespace perch_command;

// The exit code of a failed library call: 3 where no backend fits, else 2.
int exit_code_of(const Error& error) {
  return no_backend_fits(error) ? kExitNoBackend : kExitBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "perch: kernel backends for MoE and quantized linear layers, chosen by what each "
      "promises"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "perch " PERCH_VERSION);
  CommonOptions common;
  Handler handler;
  for (const auto& add :
       {register_list, register_inspect, register_explain, register_run, register_route,
        register_check, register_diff, register_synth, register_bench}) {
    add(&app, &common, &handler);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 says only that a subcommand is required.
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) {
      std::cerr << "perch: got subcommand \"" << argv[1] << "\"; want one of:";
      for (const CLI::App* known : app.get_subcommands(nullptr)) {
        std::cerr << " " << known->get_name();
      }
      std::cerr << "\n";
      return kExitBadInput;
    }
    const int code = app.exit(error);
    return code == 0 ? kExitFine : kExitBadInput;
  }
  try {
    const int code = handler();
    std::cout.flush();
    if (std::cout.fail()) {
      std::cerr << "perch: standard output: could not be written\n";
      return kExitBadInput;
    }
    return code;
  } catch (const Error& error) {
    std::cerr << "perch: " << error.what() << "\n";
    return exit_code_of(error);
  } catch (const Failure& failure) {
    std::cerr << "perch: " << failure.what() << "\n";
    return failure.code;
  } catch (const std::exception& error) {
    std::cerr << "perch: " << error.what() << "\n";
    return kExitBadInput;
  }
}
