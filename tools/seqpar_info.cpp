// seqpar_info: prints the library's view of the ranks that it is started with, and its choices for them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "info/facts.h"
#include "info/ranks.h"

namespace seqpar::info {
namespace {

const char* launchText() {
  switch (launcher()) {
    case Launcher::None:
      return "threads of this process";
    case Launcher::Mpi:
      return "started by MPI";
    default:
      return "started with RANK and WORLD_SIZE";
  }
}

int run(int argc, char** argv) {
  constexpr int kUsage = 2;
  constexpr int kMostThreads = 256;
  CLI::App app(
      "Prints the ranks, how they reach each other and why not faster, what the links measure, and what\nthe library "
      "would "
      "choose. Started directly it is one rank; see -t; or start it by mpirun or torchrun.",
      "seqpar_info");
  int threads = 1;
  bool json = false;
  app.add_option("-t,--threads", threads, "ranks that are threads of this process, without a launcher")
      ->check(CLI::Range(1, kMostThreads));
  app.add_flag("--json", json, "JSON instead of text");
  try {
    app.parse(argc, argv);
    if (threads > 1 && launcher() != Launcher::None) {
      throw CLI::ValidationError("-t", "got " + std::to_string(threads) + " under a launcher, expected none");
    }
  } catch (const CLI::CallForHelp&) {
    if (prints()) std::fputs(app.help().c_str(), stdout);
    return EXIT_SUCCESS;
  } catch (const CLI::ParseError& error) {
    if (prints()) std::fprintf(stderr, "seqpar_info: %s\n", error.what());
    return kUsage;
  }
  onRanks(threads, [&](seqparComm_t comm) {
    const Facts facts = collect(comm, launchText());
    int rank = 0;
    require(seqparCommUserRank(comm, &rank), "seqparCommUserRank", comm);
    if (rank == 0) std::fputs((json ? jsonOf(facts) : textOf(facts)).c_str(), stdout);
  });
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace seqpar::info

int main(int argc, char** argv) {
  try {
    return seqpar::info::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "seqpar_info: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
