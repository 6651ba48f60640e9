// seqpar_info: prints the library's view of the ranks that it is started with, and its choices for them.
#include <cstdio>
#include <cstdlib>

#include "common/options.h"
#include "common/settings.h"
#include "info/facts.h"

namespace seqpar::info {
namespace {

const char* launchText(perf::LaunchMode mode) {
  switch (mode) {
    case perf::LaunchMode::Alone:
      return "threads of this process";
    case perf::LaunchMode::Mpi:
      return "started by MPI";
    default:
      return "started with RANK and WORLD_SIZE";
  }
}

int run(int argc, char** argv) {
  constexpr int kUsage = 2;
  constexpr int kMostThreads = 256;
  perf::Settings settings;
  bool json = false;
  try {
    perf::OptionParser parser(
        "seqpar_info",
        "Prints the ranks, how they reach each other and why not faster, what the links measure, "
        "and what\nthe library would choose. Started directly it is one rank; see -t; or start it by mpirun "
        "or torchrun.");
    parser.add('t', "threads", "N", "ranks that are threads of this process", [&](const std::string& text) {
      settings.threads = static_cast<int>(perf::parseInteger(text, 1, kMostThreads));
    });
    parser.add(0, "json", "", "JSON instead of text", [&](const std::string&) { json = true; });
    if (!parser.parse(std::span(argv, static_cast<size_t>(argc)).subspan(1))) {
      if (perf::speaks()) std::fputs(parser.help().c_str(), stdout);
      return EXIT_SUCCESS;
    }
  } catch (const perf::UsageError& error) {
    if (perf::speaks()) std::fprintf(stderr, "seqpar_info: %s\n", error.what());
    return kUsage;
  }
  const auto mode = perf::launchMode();
  if (mode == perf::LaunchMode::Alone && settings.threads == 0) settings.threads = 1;
  perf::launch(settings, [&](perf::Group& group) {
    const Facts facts = collect(group, launchText(mode));
    if (group.rank() == 0) std::fputs((json ? jsonOf(facts) : textOf(facts)).c_str(), stdout);
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
